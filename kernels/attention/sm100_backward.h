// Backward attention for sm_100. As sm90_backward.h, with sums in tensor memory: a block of threads keeps 128 keys and visits the blocks
// of 128 queries that see them, of all query heads that share them; a row being a key:
//
//   scores S^T = K Q^T      slopes of weights dP^T = V dO^T
//   weights P^T = exp2(scale S^T - lse)       dV += P^T dO
//   slopes of scores dS^T = P^T (dP^T - delta)       dK += dS^T Q       dQ = dS K
//
// One thread starts all products. Two warpgroups make weights and slopes, a row to a thread, of half of the queries each: weights go
// over the scores they are of, slopes to shared memory. A fourth brings dQ, which takes the place of dP^T, to global memory by bulk
// copies: as soon as it is there (`backward`), or when its turn has come (`backward_in_turn`, sm90_turns.h). What they wait for, each
// a phase for every block of queries:
//
//   barrier      arrivals of              says
//   scores       the products             scores are there
//   weights      8 warps that weigh       weights are there, scores are read
//   slopes       the products             dP^T is there, and products with the dS^T before are complete
//   stored       8 warps that weigh       dS^T is in shared memory, dP^T is read
//   sums_full    the products             dQ is there
//   sums_empty   4 warps that add         dQ is read
//
// Columns of tensor memory: scores and then weights [0, 128), dP^T and then dQ [128, 256), dV [256, 384), dK [384, 512).
#pragma once
#include "sm100_tensor.h"
#include "sm90_backward.h"

namespace sm100 {

using sm90::BackwardMemory;
using sm90::Channel;
using sm90::KeyBlock;
using sm90::QueryStep;

template <typename Number, int Dim, bool InTurn> struct Backward {
  using T = Number;
  static constexpr int dim = Dim, panels = ceiling_divide(Dim, PANEL_COLUMNS), keys = 128, queries = 128, stages = 2;
  static constexpr bool in_turn = InTurn, hands_over = true;
  static constexpr int halves = 2, columns = queries / halves;   // of S^T and dP^T, of a warpgroup
  static constexpr int threads = sm90::WARPGROUP * (2 + halves), warps = 4 * halves;
  static_assert(dim <= 128, "what 512 columns of tensor memory are shared out for");
  static constexpr int few_registers = 40, weigher_registers = 152, adder_registers = 160;

  // Of shared memory. Queries and gradients are released by the warps that weigh, by products, and queries by the thread that starts
  // these too: what comes with them says whether they are the last.
  using QueryRows = Channel<stages, warps + 2>;
  using GradientRows = Channel<1, warps + 1>;
  static constexpr int sums_there = 1, sums_gone = 4;
  static constexpr int added_columns = 32, added_bytes = 4 * queries * added_columns;   // of dQ, at a time: two tiles of them
  static constexpr int key_bytes = panel_bytes(keys, Dim), query_bytes = panel_bytes(queries, Dim), row_bytes = 4 * queries;
  static constexpr int values_at = key_bytes, queries_at = 2 * key_bytes, gradients_at = queries_at + stages * query_bytes;
  static constexpr int slopes_at = gradients_at + query_bytes, slope_bytes = panel_bytes(keys, queries);
  static constexpr int sums_at = slopes_at + slope_bytes, lse_at = sums_at + 2 * added_bytes;
  static constexpr int delta_at = lse_at + stages * row_bytes, steps_at = delta_at + row_bytes;
  static constexpr int kept_at = steps_at + stages * 16, barriers_at = kept_at + 64;
  static constexpr int turns_at = barriers_at + QueryRows::bytes + GradientRows::bytes + 8;
  static_assert((turns_at + 24) % 16 == 0, "what is kept for turns is read by 16 bytes");
  static constexpr int products_at = turns_at + 40, shared_bytes = products_at + 48;
  static_assert(shared_bytes <= 227 * 1024, "a block's shared memory on sm_100");

  // Of tensor memory. Weights of a half lie over its own scores: the other half may still be reading its.
  static constexpr uint32_t scores = 0, slopes = 128, dq = slopes, dv = 256, dk = 384;
  static DEVICE uint32_t weights(int half) { return scores + static_cast<uint32_t>(half * columns); }
};

// What products and those who weigh tell each other; each is told of once for every block of queries.
template <class Kernel> struct ProductBarriers {
  uint32_t first;
  DEVICE explicit ProductBarriers(uint32_t base) : first(base + Kernel::products_at) {}

  DEVICE uint32_t scores() const { return first; }              // are there
  DEVICE uint32_t weights() const { return first + 8; }         // are there
  DEVICE uint32_t slopes() const { return first + 16; }         // are there; and products with those of the block before are complete
  DEVICE uint32_t stored() const { return first + 24; }         // slopes of scores, in shared memory
  DEVICE uint32_t done() const { return first + 32; }           // all products, once
  DEVICE uint32_t address() const { return first + 40; }        // of tensor memory

  DEVICE void prepare() const {
    barrier_init(scores(), 1);
    barrier_init(weights(), Kernel::warps);
    barrier_init(slopes(), 1);
    barrier_init(stored(), Kernel::warps);
    barrier_init(done(), 1);
  }
};

// One thread: starts all products. Scores of the next block are made while slopes of this one are.
template <class Kernel> struct BackwardMultiplier {
  using T = typename Kernel::T;
  BackwardMemory<Kernel> memory;
  ProductBarriers<Kernel> with;
  uint32_t tensor;

  DEVICE void run() {
    barrier_wait(memory.kept, 0);
    bool last = start_scores(0);
    start_slopes(0);
    NO_UNROLL
    for (int n = 0;; ++n) {
      const bool ends = last;
      add_values(n);
      if (!ends) last = start_scores(n + 1);
      add_keys(n);
      if (ends) break;
      start_slopes(n + 1);
    }
    tensor_commit(with.done());
  }

 private:
  // Whether these queries are the last. Weights of the block before, which scores are written over, are read by then: products run in
  // order.
  DEVICE bool start_scores(int n) {
    const int stage = n % Kernel::stages;
    memory.queries.wait(stage, sm90::parity_of(n, Kernel::stages));
    const bool last = (load_shared<QueryStep>(memory.step(stage)).flags & sm90::LAST) != 0;
    barrier_arrive(memory.queries.empty(stage));
    multiply_rows<T, Kernel::dim>(tensor + Kernel::scores, memory.key_tile(), 0, memory.query_tile(stage));
    tensor_commit(with.scores());
    return last;
  }

  // dQ of the block before is gone from their place.
  DEVICE void start_slopes(int n) {
    memory.gradients.wait(0, sm90::parity_of(n));
    barrier_wait(memory.sums_empty(), sm90::parity_of(n + 1));
    tensor_fence_after();
    multiply_rows<T, Kernel::dim>(tensor + Kernel::slopes, memory.value_tile(), 0, memory.gradient_tile(0));
    tensor_commit(with.slopes());
  }

  DEVICE void add_values(int n) {
    barrier_wait(with.weights(), sm90::parity_of(n));
    tensor_fence_after();
    const uint32_t at = here(tensor);
    const auto weights = [at](int k) { return at + Kernel::weights(k / 4) + static_cast<uint32_t>(8 * (k % 4)); };
    multiply_stored<T, Kernel::dim>(tensor + Kernel::dv, weights, memory.gradient_tile(0), n > 0);
    tensor_commit(memory.gradients.empty(0));
  }

  DEVICE void add_keys(int n) {
    barrier_wait(with.stored(), sm90::parity_of(n));
    tensor_fence_after();
    multiply_by_columns<T, Kernel::dim>(tensor + Kernel::dk, memory.slope_tile(0), memory.query_tile(n % Kernel::stages), n > 0);
    tensor_commit(memory.queries.empty(n % Kernel::stages));
    multiply_columns<T, Kernel::dim>(tensor + Kernel::dq, memory.slope_tile(0), memory.key_tile());
    tensor_commit(memory.sums_full());
  }
};

// A warpgroup: weights and slopes of all keys and half of the queries, a key to a thread; at the end dV or dK.
template <class Kernel> struct Weigher {
  using T = typename Kernel::T;
  static constexpr int columns = Kernel::columns;
  const BackwardArguments& arguments;
  BackwardMemory<Kernel> memory;
  ProductBarriers<Kernel> with;
  int half;
  uint32_t tensor;   // this warp's lanes
  float weights[columns];

  DEVICE Weigher(const BackwardArguments& arguments, const BackwardMemory<Kernel>& memory, uint32_t tensor, int half)
      : arguments(arguments), memory(memory), with(memory.base), half(half), tensor(own_lanes(tensor)) {}

  DEVICE void run() {
    NO_UNROLL
    for (int n = 0;; ++n) {
      const QueryStep step = make_weights(n);
      make_slopes(n);
      if ((step.flags & sm90::LAST) != 0) break;
    }
    barrier_wait(with.done(), 0);
    tensor_fence_after();
    const sm90::KeptSums to = load_shared<sm90::KeptSums>(memory.kept_sums());
    if (half == 0) store(to.dv, Kernel::dv, 1.0f);
    else store(to.dk, Kernel::dk, arguments.scale);
  }

 private:
  DEVICE int row() const { return static_cast<int>(threadIdx.x) % Kernel::keys; }
  DEVICE int first_column() const { return half * columns; }

  DEVICE QueryStep make_weights(int n) {
    const int stage = n % Kernel::stages;
    memory.queries.wait(stage, sm90::parity_of(n, Kernel::stages));
    const QueryStep step = load_shared<QueryStep>(memory.step(stage));
    barrier_wait(with.scores(), sm90::parity_of(n));
    tensor_fence_after();
    load_columns(weights, tensor + Kernel::scores + static_cast<uint32_t>(first_column()));
    if ((step.flags & sm90::MASKED) != 0) {
      const sm90::KeptSpans kept = load_shared<sm90::KeptSpans>(memory.kept_spans());
      Seen<columns>(spans_of(kept.spans, row(), kept.rows), step.first + first_column()).hide(weights);
    }
    const uint32_t of_columns = memory.lse(stage) + static_cast<uint32_t>(4 * first_column());
    UNROLL
    for (int column = 0; column < columns; column += 4) {
      const Float4 lse = load_shared<Float4>(of_columns + static_cast<uint32_t>(4 * column));
      const float of[4] = {lse.x, lse.y, lse.z, lse.w};
      UNROLL
      for (int i = 0; i < 4; ++i) {
        float& weight = weights[column + i];
        weight = exp2_fast(multiply_add(weight, arguments.scale_log2, -of[i]));
      }
    }
    store_rounded<T>(tensor + Kernel::weights(half), weights);
    tensor_wait_stores();
    tell_of_tensor(with.weights());
    memory.queries.release(stage);
    return step;
  }

  // Of scores from those of weights, in shared memory: products with those of the block before have read theirs.
  DEVICE void make_slopes(int n) {
    memory.gradients.wait(0, sm90::parity_of(n));
    barrier_wait(with.slopes(), sm90::parity_of(n));
    tensor_fence_after();
    const uint32_t from = tensor + Kernel::slopes + static_cast<uint32_t>(first_column());
    const uint32_t of_columns = memory.delta(0) + static_cast<uint32_t>(4 * first_column());
    const uint32_t to = memory.slope_tile(0).address + panel_address(Kernel::keys, row(), first_column());
    UNROLL
    for (int column = 0; column < columns; column += 16) {
      float slopes[16];
      load_columns(slopes, from + static_cast<uint32_t>(column));
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const Float4 delta = load_shared<Float4>(of_columns + static_cast<uint32_t>(4 * (column + i)));
        const float of[4] = {delta.x, delta.y, delta.z, delta.w};
        UNROLL
        for (int j = 0; j < 4; ++j) slopes[i + j] = weights[column + i + j] * (slopes[i + j] - of[j]);
      }
      UNROLL
      for (int i = 0; i < 16; i += 8) {
        Words<4> eight;
        UNROLL
        for (int pair = 0; pair < 4; ++pair) eight.word[pair] = pack<T>(slopes[i + 2 * pair], slopes[i + 2 * pair + 1]);
        store_shared(to ^ static_cast<uint32_t>((column + i) / 8 * 16), eight);
      }
    }
    proxy_fence();
    tell_of_tensor(with.stored());
    memory.gradients.release(0);
  }

  // A row of sums in tensor memory, written or added to where they belong.
  DEVICE void store(float* rows, uint32_t from, float factor) const {
    const sm90::KeptSpans kept = load_shared<sm90::KeptSpans>(memory.kept_spans());
    NO_UNROLL
    for (int column = 0; column < Kernel::dim; column += 16) {
      float sums[16];
      load_columns(sums, tensor + from + static_cast<uint32_t>(column));
      UNROLL
      for (int i = 0; i < 16; i += 4) {
        const Float4 four{factor * sums[i], factor * sums[i + 1], factor * sums[i + 2], factor * sums[i + 3]};
        float* to = rows + row() * arguments.dim + column + i;
        if (row() >= kept.rows || column + i >= arguments.dim) continue;
        if (kept.fresh != 0) store_global(reinterpret_cast<Float4*>(to), four);
        else add_global(to, four);
      }
      __syncwarp();   // all lanes load together
    }
  }
};

// A warpgroup: adds dQ of one block of queries after the other to global memory, [columns, 128 queries] of each.
template <class Kernel> struct Adder {
  static constexpr int meeting = 1;   // of its threads
  sm90::Visited<Kernel, BackwardMemory<Kernel>> visited;
  uint32_t tensor;                    // this warp's lanes
  uint32_t tile = 0;                  // which of the two comes next
  float sums[Kernel::dim];

  DEVICE Adder(const BackwardArguments& arguments, const BackwardMemory<Kernel>& memory, uint32_t tensor)
      : visited{arguments, memory}, tensor(own_lanes(tensor)) {}

  DEVICE void run() {
    uint32_t parity = 0;
    NO_UNROLL
    for (int head = 0; head < visited.arguments.group; ++head) {
      NO_UNROLL
      for (int index = 0; index < visited.walk().count(); ++index, parity ^= 1) {
        take(parity);
        add(head, index);
      }
    }
    if (leads()) wait_until_added();
  }

 private:
  DEVICE int row() const { return static_cast<int>(threadIdx.x) % Kernel::queries; }
  DEVICE bool leads() const { return row() == 0; }

  // Out of the place that dP^T takes next.
  DEVICE void take(uint32_t parity) {
    barrier_wait(visited.memory.sums_full(), parity);
    tensor_fence_after();
    load_columns(sums, tensor + Kernel::dq);
    tell_of_tensor(visited.memory.sums_empty());
  }

  DEVICE void add(int head, int index) {
    const int number = visited.number_at(head, index);
    sm90::Place place;
    if (Kernel::in_turn && leads()) place = visited.place_at(index);
    float* to = visited.arguments.dq + static_cast<int64_t>(number) * (Kernel::queries * Kernel::dim);
    UNROLL
    for (int first = 0; first < Kernel::dim; first += Kernel::added_columns, tile ^= 1) {
      const int count = min(Kernel::added_columns, Kernel::dim - first);
      const uint32_t at = visited.memory.sums() + tile * Kernel::added_bytes;
      if (leads()) wait_until_read<1>();
      __syncwarp();   // what warps meet at, their lanes come to together
      named_sync(meeting, Kernel::queries);
      UNROLL
      for (int column = 0; column < count; ++column) {
        store_shared(at + static_cast<uint32_t>(4 * (column * Kernel::queries + row())), sums[first + column]);
      }
      proxy_fence();
      named_sync(meeting, Kernel::queries);
      if (leads()) {
        if (Kernel::in_turn && first == 0) wait_for_turn(visited.arguments.turns + number, place.before);
        start_adding(to + first * Kernel::queries, at, 4 * Kernel::queries * count);
      }
    }
    if (Kernel::in_turn && leads()) {
      wait_until_added();
      pass_turn(visited.arguments.turns + number, place.next);
    }
    __syncwarp();   // all lanes load the next sums together
  }
};

template <class Kernel> DEVICE void attention_backward(const BackwardArguments& arguments) {
  SHARED_MEMORY(shared);
  const BackwardMemory<Kernel> memory(shared_address(shared));
  const ProductBarriers<Kernel> with(memory.base);
  const KeyBlock block(arguments, Kernel::keys, sm90::block_number<Kernel>(arguments, memory));
  if (block.reach == nullptr) return;
  if (BlockWalk<Kernel::queries>(*block.reach).count() == 0) return sm90::leave_unseen<Kernel>(arguments, block);
  if (threadIdx.x == 0) {
    with.prepare();
    memory.prepare();
    memory.keep(arguments, block);
  }
  const int warp = shuffle_from(warp_index(), 0);
  if (warp == KEEPER) tensor_take(with.address());
  __syncthreads();
  const uint32_t tensor = load_shared<uint32_t>(with.address());
  if (warp < 4) {
    registers_release<Kernel::few_registers>();
    if (warp == 0 && elected()) sm90::BackwardProducer<Kernel>{arguments, memory, block}.run();
    if (warp == 1 && elected()) BackwardMultiplier<Kernel>{memory, with, tensor}.run();
    __syncwarp();
  } else if (warp < 4 + Kernel::warps) {
    registers_claim<Kernel::weigher_registers>();
    Weigher<Kernel>(arguments, memory, tensor, warp / 4 - 1).run();
  } else {
    registers_claim<Kernel::adder_registers>();
    Adder<Kernel>(arguments, memory, tensor).run();
  }
  tensor_fence_before();
  __syncthreads();
  tensor_fence_after();
  if (warp == KEEPER) tensor_give(tensor);
}

}  // namespace sm100
