// What kernels share that keep a block of queries and visit the blocks of keys it sees (sm_90a): the buffers of their shared
// memory, and the warpgroup that has them filled.
#pragma once
#include "sm90_fragments.h"
#include "sm90_pipeline.h"

namespace sm90 {

// Where shared memory has what: `Kept` tiles of `QueryBlock` rows that stay, then stages of keys and of values.
template <typename Number, int Dim, int QueryBlock, int KeyBlock, int Kept> struct KeptQueries {
  using T = Number;
  static constexpr int dim = Dim, panels = ceiling_divide(Dim, PANEL_COLUMNS);
  static constexpr int queries = QueryBlock, keys = KeyBlock, kept = Kept, stages = 2;
  static constexpr int consumers = QueryBlock / 64, threads = WARPGROUP * (1 + consumers), warps = 4 * consumers;
  using Split = Registers<consumers, consumers == 2 ? 40 : 32>;

  static constexpr int kept_bytes = panel_bytes(queries, Dim), key_bytes = panel_bytes(keys, Dim);
  static constexpr int keys_at = Kept * kept_bytes, values_at = keys_at + stages * key_bytes;
  static constexpr int steps_at = values_at + stages * key_bytes, item_at = steps_at + stages * static_cast<int>(sizeof(Step));
  static constexpr int barriers_at = item_at + 2 * static_cast<int>(sizeof(Item));
  using KeyRows = Channel<stages, warps>;
  using ValueRows = Channel<stages, warps>;
  using Once = Channel<1, warps>;
  static constexpr int shared_bytes = barriers_at + KeyRows::bytes + ValueRows::bytes + Once::bytes;
  static_assert(shared_bytes <= 227 * 1024, "a block's shared memory on sm_90");
};

// The buffers of a block of threads, and the turns of whoever holds this.
template <class Kernel> struct RowsMemory {
  uint32_t base;
  typename Kernel::KeyRows keys;
  typename Kernel::ValueRows values;
  typename Kernel::Once kept;

  DEVICE explicit RowsMemory(uint32_t base)
      : base(base), keys{base + Kernel::barriers_at}, values{keys.barriers + Kernel::KeyRows::bytes},
        kept{values.barriers + Kernel::ValueRows::bytes} {}

  DEVICE void prepare() const {
    keys.prepare();
    values.prepare();
    kept.prepare();
    barrier_init_fence();
  }

  DEVICE Tile<Kernel::queries> kept_tile(int which) const { return {base + which * Kernel::kept_bytes}; }
  DEVICE Tile<Kernel::keys> key_tile(int stage) const { return {base + Kernel::keys_at + stage * Kernel::key_bytes}; }
  DEVICE Tile<Kernel::keys> value_tile(int stage) const { return {base + Kernel::values_at + stage * Kernel::key_bytes}; }
  DEVICE Tile<Kernel::keys> key_tile() const { return key_tile(keys.state.stage); }
  DEVICE Tile<Kernel::keys> value_tile() const { return value_tile(values.state.stage); }
  DEVICE uint32_t step() const { return base + Kernel::steps_at + keys.state.stage * static_cast<int>(sizeof(Step)); }
  DEVICE uint32_t item() const { return base + Kernel::item_at; }
  DEVICE uint32_t producers_item() const { return item() + static_cast<int>(sizeof(Item)); }
};

// One thread: brings what stays, keys and values of every item that sees anything.
template <class Kernel> struct RowsProducer {
  const typename Kernel::Arguments& arguments;
  RowsMemory<Kernel> memory;

  DEVICE void run() {
    for (const Keys& tile : arguments.tiles) see_maps(arguments.tiles, tile);
    const int blocks = ceiling_divide(arguments.rows, Kernel::queries);
    NO_UNROLL
    while (take()) {
      KeyWalk<Kernel::keys> walk(arguments.tiles, blocks, memory.producers_item());
      if (walk.done()) {
        if (Kernel::touches_all(arguments)) tell_of_empty();
        continue;
      }
      bring_kept();
      NO_UNROLL
      while (!walk.done()) bring_keys(walk);
    }
    memory.kept.claim();
    store_shared(memory.item(), Item{-1, 0, 0, 0});
    barrier_arrive(memory.kept.full());
  }

 private:
  DEVICE bool take() {
    const int blocks = ceiling_divide(arguments.rows, Kernel::queries);
    Item item;
    if (!Items{arguments.order, blocks, arguments.heads, arguments.batch, 1}.take(item)) return false;
    store_shared(memory.producers_item(), item);
    return true;
  }
  DEVICE Item item() const { return load_shared<Item>(memory.producers_item()); }

  DEVICE void tell_of_empty() {
    memory.kept.claim();
    Item empty = item();
    empty.empty = 1;
    store_shared(memory.item(), empty);
    barrier_arrive(memory.kept.full());
    memory.kept.state.next();
  }

  DEVICE void bring_kept() {
    memory.kept.claim();
    const Item own = item();
    store_shared(memory.item(), own);
    barrier_expect(memory.kept.full(), Kernel::kept * Kernel::kept_bytes);
    UNROLL
    for (int which = 0; which < Kernel::kept; ++which) {
      load_rows<Kernel::queries, Kernel::panels>(memory.kept_tile(which).address, Kernel::kept_map(arguments, which),
                                                 memory.kept.full(), own.block * Kernel::queries, own.head, own.batch);
    }
    memory.kept.state.next();
  }

  // Keys and values of the block that the walk stands on, which then goes on.
  DEVICE void bring_keys(KeyWalk<Kernel::keys>& walk) {
    const Keys& tile = walk.keys();
    Step step = walk.step(arguments.rows, Kernel::queries);
    walk.next();
    step.last = walk.done();
    memory.keys.claim();
    store_shared(memory.step(), step);
    bring(memory.key_tile().address, tile.k_map, memory.keys, step.first);
    memory.values.claim();
    bring(memory.value_tile().address, tile.v_map, memory.values, step.first);
  }

  template <class Rows> DEVICE void bring(uint32_t shared, const TensorMap& map, Rows& channel, int row) {
    const Item own = item();
    barrier_expect(channel.full(), Kernel::key_bytes);
    load_rows<Kernel::keys, Kernel::panels>(shared, map, channel.full(), row, own.head / arguments.group, own.batch);
    channel.state.next();
  }
};

// A block of threads: one warpgroup produces, each of the others is a `Consumer`.
template <class Kernel, template <class> class Consumer>
DEVICE void attend_rows(const typename Kernel::Arguments& arguments) {
  SHARED_MEMORY(shared);
  const RowsMemory<Kernel> memory(shared_address(shared));
  if (threadIdx.x == 0) memory.prepare();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == 0) {
    registers_release<Kernel::Split::producer>();
    if (threadIdx.x == 0) RowsProducer<Kernel>{arguments, memory}.run();
  } else {
    registers_claim<Kernel::Split::consumer>();
    Consumer<Kernel>(arguments, memory, warpgroup - 1).run();
  }
}

}  // namespace sm90
