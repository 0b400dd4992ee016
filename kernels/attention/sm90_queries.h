// Backward attention for sm_90a, the gradient of queries alone: for runs that have to repeat bit by bit. A block of threads keeps
// a block of queries and of their outputs' gradients, and visits the blocks of keys that they see:
//
//   scores S = Q K^T        slopes of weights dP = dO V^T
//   weights P = exp2(scale S - lse)       slopes of scores dS = P (dP - delta)       dQ += dS K
//
// The sums are in registers, start from those of earlier hops and go back in place, in the order of `lane_order`. Scores of a
// block start before dQ of the one before is awaited.
#pragma once
#include "sm90_fragments.h"
#include "sm90_rows.h"

namespace sm90 {

template <typename Number, int Dim, int QueryBlock, int KeyBlock>
struct BackwardQueries : KeptQueries<Number, Dim, QueryBlock, KeyBlock, 2> {
  using Arguments = BackwardArguments;
  static DEVICE const TensorMap& kept_map(const BackwardArguments& arguments, int which) {
    return which == 0 ? arguments.q_map : arguments.gradient_map;
  }
  static DEVICE bool touches_all(const BackwardArguments&) { return false; }
};

// A warpgroup: dQ of 64 queries of every item.
template <class Kernel> struct QueriesConsumer {
  using T = typename Kernel::T;
  static constexpr int keys = Kernel::keys, dim = Kernel::dim;
  const BackwardArguments& arguments;
  RowsMemory<Kernel> memory;
  int consumer;
  float dq[dim / 2];
  float scores[keys / 2];  // then weights
  float slopes[keys / 2];
  float lse[2], delta[2];
  uint32_t left_of_dq[keys / 16][4];

  DEVICE QueriesConsumer(const BackwardArguments& arguments, const RowsMemory<Kernel>& memory, int consumer)
      : arguments(arguments), memory(memory), consumer(consumer) {}

  DEVICE void run() {
    for (;;) {
      memory.kept.wait();
      const Item item = load_shared<Item>(memory.item());
      if (item.block < 0) break;
      load_rows_of(item);
      add_blocks(item);
      store_rows_of(item);
      memory.kept.state.next();
    }
  }

 private:
  DEVICE int first_row() const { return 64 * consumer; }

  DEVICE void add_blocks(const Item& item) {
    memory.keys.wait();
    Step step = start_scores();
    start_slopes();
    for (;;) {
      make_slopes(step, arguments.rows - item.block * Kernel::queries);
      const int stage = memory.keys.state.stage;
      add_keys();
      memory.keys.state.next();
      if (step.last != 0) break;
      step = start_scores();
      warpgroup_wait<1>();
      warpgroup_hold(left_of_dq);
      memory.keys.release(stage);
      start_slopes();
    }
    warpgroup_wait<0>();
    warpgroup_hold(dq);
    memory.keys.release((memory.keys.state.stage + 1) % Kernel::stages);
    memory.kept.release();
  }

  // The keys have been waited for.
  DEVICE Step start_scores() {
    const Step step = load_shared<Step>(memory.step());
    multiply_rows<T, keys, dim>(scores, memory.kept_tile(0), first_row(), memory.key_tile());
    warpgroup_commit();
    return step;
  }

  DEVICE void start_slopes() {
    memory.values.wait();
    multiply_rows<T, keys, dim>(slopes, memory.kept_tile(1), first_row(), memory.value_tile());
    warpgroup_commit();
  }

  // Weights from scores, and slopes of scores from those of weights. That the next keys are awaited before the slopes are keeps
  // the compiler from waiting for the slopes before it makes weights: it moves no wait across a loop.
  DEVICE void make_slopes(const Step& step, int rows) {
    Seen<keys> seen;
    if (step.spans != nullptr) seen.look(step.spans, first_row(), rows, step.first);
    warpgroup_wait<1>();
    warpgroup_hold(scores);
    if (step.spans != nullptr) seen.hide(scores);
    UNROLL
    for (int i = 0; i < keys / 2; ++i) scores[i] = exp2_fast(multiply_add(scores[i], arguments.scale_log2, -lse[i / 2 % 2]));
    if (step.last == 0) await_next_keys();
    warpgroup_wait<0>();
    warpgroup_hold(slopes);
    memory.values.release();
    memory.values.state.next();
    UNROLL
    for (int i = 0; i < keys / 2; ++i) slopes[i] = scores[i] * (slopes[i] - delta[i / 2 % 2]);
    round_sums<T, keys>(left_of_dq, slopes);
  }

  DEVICE void await_next_keys() const {
    PipelineState<Kernel::stages> next = memory.keys.state;
    next.next();
    memory.keys.wait(next.stage, next.parity);
  }

  DEVICE void add_keys() {
    multiply_fragments<T, dim>(dq, left_of_dq, memory.key_tile());
    warpgroup_commit();
  }

  // Of this warpgroup's first query, among those of all heads.
  DEVICE int64_t row_index(const Item& item) const {
    return (static_cast<int64_t>(item.batch) * arguments.heads + item.head) * arguments.padded + item.block * Kernel::queries +
           first_row();
  }

  DEVICE void load_rows_of(const Item& item) {
    const int64_t first = row_index(item);
    UNROLL
    for (int r = 0; r < 2; ++r) {
      lse[r] = load_global(arguments.lse_log2 + first + sums_row() + 8 * r);
      delta[r] = load_global(arguments.delta + first + sums_row() + 8 * r);
    }
    const Float4* from = reinterpret_cast<const Float4*>(arguments.dq + first * dim + lane_order<dim>());
    UNROLL
    for (int j = 0; j < dim / 8; ++j) {
      const Float4 sums = from[32 * j];
      dq[4 * j] = sums.x;
      dq[4 * j + 1] = sums.y;
      dq[4 * j + 2] = sums.z;
      dq[4 * j + 3] = sums.w;
    }
    warpgroup_hold(dq);
  }

  DEVICE void store_rows_of(const Item& item) const {
    Float4* to = reinterpret_cast<Float4*>(arguments.dq + row_index(item) * dim + lane_order<dim>());
    UNROLL
    for (int j = 0; j < dim / 8; ++j) {
      store_global(to + 32 * j, Float4{dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
    }
  }
};

}  // namespace sm90
