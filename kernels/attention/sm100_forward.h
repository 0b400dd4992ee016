// Forward attention for sm_100. As sm90_forward.h, with sums and weights in tensor memory and a row of scores to a thread: a block of
// threads keeps 256 queries, two halves of 128, and visits the blocks of 128 keys that any of them sees:
//
//   scores S = Q K^T        both from shared memory, into tensor memory; one thread starts all products
//   weights P = exp2(scale (S - maximum)), sum += P       in registers, a warpgroup to a half, while the other half's products run
//   out += P V              P from tensor memory, where its scores were
//
// The first warpgroup brings (one thread) and multiplies (another). What they and the halves wait for, of a half:
//
//   barrier   arrivals of              says                                                        phase
//   scores    the products             scores are there, and earlier sums                          a block of keys
//   weights   its 4 warps              weights are there, scores read, sums rescaled               a block of keys
//   sums      the products             sums are whole                                              an item
//
// Columns of tensor memory: scores and then weights of the two halves [0, 128) and [128, 256), sums [256, 384) and [384, 512).
// Sums are rescaled with every new maximum: to wait until it has grown by more than 2^8
// (FlashAttention-4) saves most of that, and doubles the error of rows that see few keys, whose largest weight is not 1 any more.
#pragma once
#include "sm100_tensor.h"
#include "sm90_rows.h"

namespace sm100 {

using sm90::Channel;
using sm90::Item;
using sm90::Step;
using sm90::PipelineState;

constexpr int HALF = TENSOR_LANES;   // queries of a warpgroup

// What a forward kernel is compiled for, and where it has what.
template <typename Number, int Dim, int QueryBlock, int KeyBlock> struct Forward {
  using T = Number;
  using Arguments = ForwardArguments;
  static constexpr int dim = Dim, panels = ceiling_divide(Dim, PANEL_COLUMNS);
  static constexpr int queries = QueryBlock, keys = KeyBlock, kept = 1, stages = 2;
  static constexpr int halves = 2, warps = 4 * halves, threads = sm90::WARPGROUP * (1 + halves);
  static_assert(queries == halves * HALF && keys == 128 && dim <= 128, "what 512 columns of tensor memory are shared out for");
  using Split = sm90::Registers<halves, 56>;

  // Of shared memory. Keys and queries are released by the thread that multiplies, once it knows what came with them, and by the
  // warps, once their scores are there; values by the products.
  using KeyRows = Channel<stages, warps + 1>;
  using ValueRows = Channel<stages, 1>;
  using Once = Channel<1, warps + 1>;
  static constexpr int kept_bytes = panel_bytes(queries, Dim), key_bytes = panel_bytes(keys, Dim);
  static constexpr int keys_at = kept_bytes, values_at = keys_at + stages * key_bytes;
  static constexpr int steps_at = values_at + stages * key_bytes, item_at = steps_at + stages * static_cast<int>(sizeof(Step));
  static constexpr int barriers_at = item_at + 2 * static_cast<int>(sizeof(Item));
  static constexpr int halves_at = barriers_at + KeyRows::bytes + ValueRows::bytes + Once::bytes;
  static constexpr int address_at = halves_at + 3 * 8 * halves, shared_bytes = address_at + 8;
  static_assert(shared_bytes <= 227 * 1024, "a block's shared memory on sm_100");

  // Of tensor memory: scores, over which weights are stored, of either half; then sums.
  static DEVICE uint32_t scores(int half) { return static_cast<uint32_t>(half * keys); }
  static DEVICE uint32_t sums(int half) { return static_cast<uint32_t>(halves * keys + half * 128); }

  static DEVICE const TensorMap& kept_map(const ForwardArguments& arguments, int) { return arguments.q_map; }
  static DEVICE bool touches_all(const ForwardArguments& arguments) { return (arguments.first | arguments.last) != 0; }
};

// What a half and the products tell each other.
template <class Kernel> struct HalfBarriers {
  uint32_t first;

  DEVICE HalfBarriers(uint32_t base, int half) : first(base + Kernel::halves_at + static_cast<uint32_t>(24 * half)) {}

  DEVICE uint32_t scores() const { return first; }        // are there, and all sums before them
  DEVICE uint32_t weights() const { return first + 8; }   // are there, scores are read, sums rescaled
  DEVICE uint32_t sums() const { return first + 16; }     // are whole

  DEVICE void prepare() const {
    barrier_init(scores(), 1);
    barrier_init(weights(), 4);
    barrier_init(sums(), 1);
  }
};

// One thread: starts all products, of both halves in turn, so that one's weights are made beside the other's products.
template <class Kernel> struct Multiplier {
  using T = typename Kernel::T;
  const ForwardArguments& arguments;
  sm90::RowsMemory<Kernel> memory;
  uint32_t tensor;
  PipelineState<1> weights = {};

  DEVICE void run() {
    NO_UNROLL
    for (;;) {
      memory.kept.wait();
      const Item item = load_shared<Item>(memory.item());
      if (item.block < 0) break;
      barrier_arrive(memory.kept.empty(0));
      if (item.empty == 0) multiply();
      memory.kept.state.next();
    }
  }

 private:
  DEVICE HalfBarriers<Kernel> of(int half) const { return {memory.base, half}; }

  DEVICE void multiply() {
    bool adds = arguments.first == 0;
    bool last = await_keys();
    start_scores(0);
    start_scores(1);
    memory.keys.state.next();
    NO_UNROLL
    while (!last) {
      memory.values.wait();
      add_values(0, adds);
      last = await_keys();
      start_scores(0);
      add_values(1, adds);
      start_scores(1);
      memory.keys.state.next();
      release_values();
      adds = true;
    }
    memory.values.wait();
    add_values(0, adds);
    tensor_commit(of(0).sums());
    add_values(1, adds);
    release_values();
    tensor_commit(of(1).sums());   // the last of all: who has waited for it may end the block
  }

  // Whether they are the item's last ones.
  DEVICE bool await_keys() {
    memory.keys.wait();
    const bool last = load_shared<Step>(memory.step()).last != 0;
    barrier_arrive(memory.keys.empty(memory.keys.state.stage));
    return last;
  }

  // Products start behind this half's weights of the keys before, which its scores are written over.
  DEVICE void start_scores(int half) {
    multiply_rows<T, Kernel::dim>(tensor + Kernel::scores(half), memory.kept_tile(0), half * HALF, memory.key_tile());
    tensor_commit(of(half).scores());
  }

  DEVICE void add_values(int half, bool adds) {
    barrier_wait(of(half).weights(), weights.parity);
    if (half + 1 == Kernel::halves) weights.next();
    tensor_fence_after();
    const uint32_t at = here(tensor) + Kernel::scores(half);
    const auto of_keys = [at](int k) { return at + static_cast<uint32_t>(8 * k); };
    multiply_stored<T, Kernel::dim>(tensor + Kernel::sums(half), of_keys, memory.value_tile(), adds);
  }

  DEVICE void release_values() {
    tensor_commit(memory.values.empty(memory.values.state.stage));
    memory.values.state.next();
  }
};

// A warpgroup: a half of the queries of every item, a row to a thread, from the state of earlier hops to that of this one.
template <class Kernel> struct ForwardConsumer {
  using T = typename Kernel::T;
  const ForwardArguments& arguments;
  sm90::RowsMemory<Kernel> memory;
  int half;
  uint32_t tensor;   // this warp's lanes
  HalfBarriers<Kernel> with;
  PipelineState<1> steps = {}, items = {};
  float maximum = 0.0f, sum = 0.0f;

  DEVICE ForwardConsumer(const ForwardArguments& arguments, const sm90::RowsMemory<Kernel>& memory, uint32_t tensor, int half)
      : arguments(arguments), memory(memory), half(half),
        tensor(own_lanes(tensor)), with(memory.base, half) {}

  DEVICE void run() {
    NO_UNROLL
    for (;;) {
      memory.kept.wait();
      const Item item = load_shared<Item>(memory.item());
      if (item.block < 0) break;
      fold(item);
      memory.kept.state.next();
    }
  }

 private:
  DEVICE uint32_t scores_at() const { return tensor + Kernel::scores(half); }
  DEVICE uint32_t sums_at() const { return tensor + Kernel::sums(half); }

  // This thread's row: its place among the queries of a head, and in the state.
  DEVICE int row_of(const Item& item) const {
    return item.block * Kernel::queries + half * HALF + static_cast<int>(threadIdx.x) % HALF;
  }
  DEVICE int64_t row_index(const Item& item, int row) const {
    return (static_cast<int64_t>(item.batch) * arguments.heads + item.head) * arguments.rows + row;
  }

  DEVICE void fold(const Item& item) {
    const bool begun = arguments.first == 0;
    if (item.empty != 0) return leave_state(item);
    begin(item);
    if (begun) carry_sums(item);
    bool last = weigh_block(item, begun);
    NO_UNROLL
    while (!last) last = weigh_block(item, true);
    barrier_wait(with.sums(), items.parity);
    items.next();
    tensor_fence_after();
    store(item);
  }

  // An item that sees nothing: begun, or brought to its end.
  DEVICE void leave_state(const Item& item) {
    begin(item);
    if (arguments.first != 0) clear_sums();
    else carry_sums(item);
    memory.kept.release();
    store(item);
  }

  // The state of earlier hops, if there were any. Rows past the end repeat the last one; they are not stored.
  DEVICE void begin(const Item& item) {
    const int64_t row = row_index(item, min(row_of(item), arguments.rows - 1));
    maximum = arguments.first != 0 ? -infinity() : arguments.maximum[row];
    sum = arguments.first != 0 ? 0.0f : arguments.sum[row];
  }

  // Past the last column anything will do: it is not stored.
  DEVICE void carry_sums(const Item& item) {
    const float* from = arguments.out + row_index(item, min(row_of(item), arguments.rows - 1)) * arguments.dim;
    NO_UNROLL
    for (int column = 0; column < Kernel::dim; column += 16) {
      float sums[16];
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const Float4 four = *reinterpret_cast<const Float4*>(from + (column + i < arguments.dim ? column + i : 0));
        sums[i] = four.x, sums[i + 1] = four.y, sums[i + 2] = four.z, sums[i + 3] = four.w;
      }
      tensor_store(sums_at() + static_cast<uint32_t>(column), sums);
    }
    tensor_wait_stores();
  }

  DEVICE void clear_sums() {
    float zeros[16];
    UNROLL
    for (int i = 0; i < 16; ++i) zeros[i] = 0.0f;
    UNROLL
    for (int column = 0; column < Kernel::dim; column += 16) tensor_store(sums_at() + static_cast<uint32_t>(column), zeros);
    tensor_wait_stores();
  }

  // Scores of a block of keys become weights; whether it was the item's last. `begun`: there are sums already.
  DEVICE bool weigh_block(const Item& item, bool begun) {
    memory.keys.wait();
    const Step step = load_shared<Step>(memory.step());
    barrier_wait(with.scores(), steps.parity);
    steps.next();
    tensor_fence_after();
    float scores[Kernel::keys];
    load_columns(scores, scores_at());
    memory.keys.release();   // all lanes have read the step: they loaded together
    memory.keys.state.next();
    if (step.last != 0) memory.kept.release();
    if (step.spans != nullptr) {
      const int row = half * HALF + static_cast<int>(threadIdx.x) % HALF, rows = arguments.rows - item.block * Kernel::queries;
      Seen<Kernel::keys>(spans_of(step.spans, row, rows), step.first).hide(scores);
    }
    const float factor = weigh(scores);
    if (begun && warp_any(factor != 1.0f)) rescale(factor);
    store_rounded<T>(scores_at(), scores);
    tensor_wait_stores();
    tell_of_tensor(with.weights());
    return step.last != 0;
  }

  // Scores become weights; what earlier ones have to be multiplied by is returned.
  DEVICE float weigh(float (&scores)[Kernel::keys]) {
    const float scale = arguments.scale_log2;
    float highest[4] = {scores[0], scores[1], scores[2], scores[3]};
    UNROLL
    for (int column = 4; column < Kernel::keys; ++column) highest[column % 4] = max(highest[column % 4], scores[column]);
    const float top = max(max(highest[0], highest[1]), max(highest[2], highest[3]));
    const float before = maximum;
    maximum = max(maximum, top);
    const float zero = maximum == -infinity() ? 0.0f : maximum, shift = zero * scale;
    // 1 where the maximum stays: any other factor would be multiplied into the sums with every block of keys.
    const float factor = exp2_fast((before - zero) * scale);
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    UNROLL
    for (int column = 0; column < Kernel::keys; ++column) {
      scores[column] = exp2_fast(multiply_add(scores[column], scale, -shift));
      total[column % 4] += scores[column];
    }
    sum = multiply_add(sum, factor, (total[0] + total[1]) + (total[2] + total[3]));
    return factor;
  }

  // Products on the sums are complete: the scores that came were started behind them.
  DEVICE void rescale(float factor) const {
    NO_UNROLL
    for (int column = 0; column < Kernel::dim; column += 16) {
      float sums[16];
      const uint32_t at = sums_at() + static_cast<uint32_t>(column);
      load_columns(sums, at);
      UNROLL
      for (int i = 0; i < 16; ++i) sums[i] *= factor;
      tensor_store(at, sums);
    }
  }

  DEVICE void store(const Item& item) const {
    const int row = row_of(item);
    const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
    if (row < arguments.rows) store_row(item, row);
    NO_UNROLL
    for (int column = 0; column < Kernel::dim; column += 16) {
      float sums[16];
      load_columns(sums, sums_at() + static_cast<uint32_t>(column));
      if (row < arguments.rows) {
        if (arguments.last != 0) store_result(sums, item, row, column, share);
        else store_sums(sums, row_index(item, row), column);
      }
      __syncwarp();   // all lanes load together
    }
  }

  // The log-sum-exp, or maximum and sum.
  DEVICE void store_row(const Item& item, int row) const {
    const int64_t index = row_index(item, row);
    if (arguments.last != 0) {
      const float lse = sum > 0.0f ? multiply_add(maximum, arguments.scale, log_exact(sum)) : -infinity();
      store_global(arguments.lse + index, lse);
    } else {
      store_global(arguments.maximum + index, maximum);
      store_global(arguments.sum + index, sum);
    }
  }

  // The only division and the only rounding, as in finish.h.
  DEVICE void store_result(const float (&sums)[16], const Item& item, int row, int column, float share) const {
    const int64_t by_token = (static_cast<int64_t>(item.batch) * arguments.rows + row) * arguments.heads + item.head;
    T* to = static_cast<T*>(arguments.result) + by_token * arguments.dim + column;
    UNROLL
    for (int i = 0; i < 16; i += 8) {
      Words<4> eight;
      UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        eight.word[pair] = pack<T>(sums[i + 2 * pair] * share, sums[i + 2 * pair + 1] * share);
      }
      if (column + i < arguments.dim) store_global(reinterpret_cast<Words<4>*>(to + i), eight);
    }
  }

  DEVICE void store_sums(const float (&sums)[16], int64_t index, int column) const {
    UNROLL
    for (int i = 0; i < 16; i += 4) {
      Float4* to = reinterpret_cast<Float4*>(arguments.out + index * arguments.dim + column + i);
      if (column + i < arguments.dim) store_global(to, Float4{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
    }
  }
};

// A block of threads: of the first warpgroup one thread brings and one multiplies, the others are a half each.
template <class Kernel> DEVICE void attend_halves(const ForwardArguments& arguments) {
  SHARED_MEMORY(shared);
  const sm90::RowsMemory<Kernel> memory(shared_address(shared));
  const uint32_t address_at = memory.base + Kernel::address_at;
  if (threadIdx.x == 0) {
    for (int half = 0; half < Kernel::halves; ++half) HalfBarriers<Kernel>(memory.base, half).prepare();
    memory.prepare();
  }
  const int warp = shuffle_from(warp_index(), 0);
  if (warp == KEEPER) tensor_take(address_at);
  __syncthreads();
  const uint32_t tensor = load_shared<uint32_t>(address_at);
  if (warp < 4) {
    registers_release<Kernel::Split::producer>();
    if (warp == 0 && elected()) sm90::RowsProducer<Kernel>{arguments, memory}.run();
    if (warp == 1 && elected()) Multiplier<Kernel>{arguments, memory, tensor}.run();
    __syncwarp();
  } else {
    registers_claim<Kernel::Split::consumer>();
    ForwardConsumer<Kernel>(arguments, memory, tensor, warp / 4 - 1).run();
  }
  tensor_fence_before();
  __syncthreads();
  tensor_fence_after();
  if (warp == KEEPER) tensor_give(tensor);
}

}  // namespace sm100
