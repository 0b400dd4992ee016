// How the warpgroups of a block hand each other work (sm_90a, and sm_100). One warpgroup, the producer, decides what comes next and has
// TMA bring it; the others, the consumers, multiply. Only the producer knows of tiles, reaches and order: with
// each buffer it hands over a `Step` that says all that a consumer has to know of it.
#pragma once
#include "../vocabulary/panels.h"
#include "../vocabulary/reductions.h"
#include "../vocabulary/spans.h"
#include "../vocabulary/warpgroup.h"

namespace sm90 {

constexpr int WARPGROUP = 128;

// Which of the block's warpgroups this thread is of. The shuffle tells the compiler that all lanes agree: addresses that depend
// on it then are in registers of the warp instead of every thread's.
DEVICE int warpgroup_index() { return shuffle_from(static_cast<int>(threadIdx.x) / WARPGROUP, 0); }

// How the registers of a block are shared out. What a producer gives back is all that consumers can get: a block is launched
// with as many for every thread as fit a multiprocessor, in eights, and one that asks for more than that waits for ever.
template <int Consumers, int Producer> struct Registers {
  static constexpr int at_launch = 65536 / (WARPGROUP * (1 + Consumers)) / 8 * 8;
  static constexpr int producer = Producer, consumer = ((1 + Consumers) * at_launch - Producer) / Consumers / 8 * 8;
};

// What a wait for the `use`-th filling of one of `stages` buffers, counted from 0 over all of them, passes to `barrier_wait`.
DEVICE uint32_t parity_of(int use, int stages = 1) { return static_cast<uint32_t>(use / stages % 2); }

// Which of `Stages` buffers comes next, and the parity of how often all of them have been used.
template <int Stages> struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;

  DEVICE void next() {
    stage = stage + 1 == Stages ? 0 : stage + 1;
    parity ^= stage == 0;
  }
};

// `Stages` buffers between the producer and `Warps` warps of consumers. Each side keeps its own state.
template <int Stages, int Warps> struct Channel {
  static constexpr int bytes = 16 * Stages;  // of barriers: Stages x full, then Stages x empty
  uint32_t barriers;
  PipelineState<Stages> state = {};

  DEVICE uint32_t full() const { return barriers + 8 * state.stage; }
  DEVICE uint32_t empty(int stage) const { return barriers + 8 * (Stages + stage); }

  // One thread, before anybody uses it.
  DEVICE void prepare() const {
    UNROLL
    for (int stage = 0; stage < Stages; ++stage) {
      barrier_init(barriers + 8 * stage, 1);
      barrier_init(empty(stage), Warps);
    }
  }

  // The producer: waits until the next buffer may be written.
  DEVICE void claim() const { barrier_wait(empty(state.stage), state.parity ^ 1); }

  // A consumer: waits until a buffer holds its data.
  DEVICE void wait(int stage, uint32_t parity) const { barrier_wait(barriers + 8 * stage, parity); }
  DEVICE void wait() const { wait(state.stage, state.parity); }

  // A consumer: its warp is done with a buffer. A warp arrives by itself: nobody assumes that four finish together.
  DEVICE void release(int stage) const {
    if (lane_index() == 0) barrier_arrive(empty(stage));
  }
  DEVICE void release() const { release(state.stage); }
};

// What comes with a block of rows: keys, where queries stay in place; queries, where keys do.
struct alignas(16) Step {
  const Spans* spans;  // of the rows that stay; null where all of them see all of the block
  int first;           // row of the block
  int last;            // 1 if it is the last one for the rows that stay
};

// A block of queries of one head; nothing is left to do where `block` is negative.
struct alignas(16) Item {
  int block;
  int head;
  int batch;
  int empty;  // 1 if it sees no keys: none come
};

// The blocks of rows of a launch, in their order: `heads` heads of each of `outer` batch rows (or tiles of batch rows, with lists
// of their own for the `tiles` of one batch row).
struct Items {
  const Order& order;
  int blocks, heads, outer, tiles;

  DEVICE int total() const { return blocks * heads * outer; }

  DEVICE Item at(int number) const {
    const int section = number / (order.heads * blocks), before_last = heads * outer - order.last;
    const bool last = section * order.heads >= before_last;
    const int first = last ? before_last : section * order.heads, width = last ? order.last : order.heads;
    const int rest = number - first * blocks;
    const int row = first + rest % width, batch = row / heads;
    const int list = order.lists == tiles ? batch % tiles : batch;
    return {order.blocks[list * blocks + rest / width], row % heads, batch, 0};
  }

  // The next one that no block of threads has taken, and whether there is one. Each of them asks until there is none: the last
  // to be told so leaves the counter as it was.
  DEVICE bool take(Item& item) const {
    const int number = take_number(order.taken), last = total() + static_cast<int>(gridDim.x) - 1;
    if (number == last) store_global(order.taken, 0);
    if (number >= total()) return false;
    item = at(number);
    return true;
  }
};

// The blocks of `Block` keys, tile after tile, that a block of queries sees. It stands on the next one, or is `done`. The item is
// read where it is needed: a producer has few registers.
template <int Block> struct KeyWalk {
  const Tiles& tiles;
  int query_blocks;
  uint32_t item;  // in shared memory
  int tile = -1, index = 0;
  BlockWalk<Block> walk{Reach{}};

  DEVICE KeyWalk(const Tiles& tiles, int query_blocks, uint32_t item) : tiles(tiles), query_blocks(query_blocks), item(item) {
    next_tile();
  }

  DEVICE bool done() const { return tile == tiles.count; }
  DEVICE const Keys& keys() const { return tiles[tile]; }
  DEVICE int row() const { return walk.block(index) * Block; }

  DEVICE void next() {
    if (++index == walk.count()) next_tile();
  }

  // The step to this block, for `rows` queries of which a block of `queries` stays; the caller says whether it is the last.
  DEVICE Step step(int rows, int queries) const {
    const Item of = load_shared<Item>(item);
    const int visibility = keys().visibilities == 1 ? 0 : of.batch;
    const bool full = is_full(keys().query_blocks[visibility * query_blocks + of.block], row(), row() + Block);
    const Spans* spans = keys().queries + visibility * rows + of.block * queries;
    return {full ? nullptr : spans, row(), 0};
  }

 private:
  // To the next tile that has a block to visit.
  DEVICE void next_tile() {
    index = 0;
    while (++tile < tiles.count) {
      const Item of = load_shared<Item>(item);
      const int visibility = keys().visibilities == 1 ? 0 : of.batch;
      walk = BlockWalk<Block>(keys().query_blocks[visibility * query_blocks + of.block]);
      if (walk.count() > 0) return;
    }
  }
};

// The producer, before it uses the maps of a tile: those in the arguments need no fence, and may have none.
DEVICE void see_maps(const Tiles& tiles, const Keys& tile) {
  if (tiles.many == nullptr) return;
  tensor_map_fence(&tile.k_map);
  tensor_map_fence(&tile.v_map);
}

// Has `Rows` rows of `Panels` panels brought to shared memory, `Panels * Rows * 128` bytes that count at `barrier`.
template <int Rows, int Panels>
DEVICE void load_rows(uint32_t shared, const TensorMap& map, uint32_t barrier, int row, int head, int batch) {
  UNROLL
  for (int panel = 0; panel < Panels; ++panel) {
    load_tile(shared + panel * Rows * PANEL_ROW_BYTES, &map, barrier, panel * PANEL_COLUMNS, row, head, batch);
  }
}

// Consumers start products one after the other, round and round, so that one's exponentials run beside the products of another (the
// ping-pong schedule of FlashAttention-3).
template <int Consumers> struct PingPong {
  static constexpr int first_barrier = 2;  // and one for every consumer
  int consumer;

  static DEVICE int barrier(int of) { return first_barrier + of; }

  // Consumer 0 is the first.
  DEVICE void begin() const {
    if (consumer == Consumers - 1) named_arrive(barrier(0), 2 * WARPGROUP);
  }
  DEVICE void take() const { named_sync(barrier(consumer), 2 * WARPGROUP); }
  DEVICE void pass() const { named_arrive(barrier(consumer + 1 == Consumers ? 0 : consumer + 1), 2 * WARPGROUP); }

  // Meets the last arrival, which nobody waits for.
  DEVICE void end() const {
    if (consumer == 0) named_sync(barrier(0), 2 * WARPGROUP);
  }
};

}  // namespace sm90
