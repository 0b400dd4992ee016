// What a block of threads of backward has in shared memory (sm_90a), and what producer and consumers tell each other there.
#pragma once
#include "sm90_fragments.h"
#include "sm90_keys.h"
#include "sm90_pipeline.h"
#include "sm90_turns.h"

namespace sm90 {

// What comes with a block of queries.
struct alignas(16) QueryStep {
  float* dq;   // of the block
  int first;   // query
  int flags;   // MASKED unless all keys of the block are seen by all of these; LAST if no more come
};
constexpr int MASKED = 1, LAST = 2;

// What is kept: what its keys are seen by, and where their sums go.
struct alignas(16) KeptSpans {
  const Spans* spans;
  int rows;   // that exist from the first of the block on
  int fresh;  // as in `Keys`
};
struct alignas(16) KeptSums {
  float* dk;
  float* dv;
};
// The queries that see all keys of the block, where it is whole: two intervals, as in `Reach`.
struct alignas(16) KeptFull {
  int start[2];
  int end[2];

  DEVICE bool holds(int from, int to) const { return (from >= start[0] && to <= end[0]) || (from >= start[1] && to <= end[1]); }
};

template <class Kernel> struct BackwardMemory {
  uint32_t base;
  typename Kernel::QueryRows queries;
  typename Kernel::GradientRows gradients;
  uint32_t kept;  // the barrier of what stays

  DEVICE explicit BackwardMemory(uint32_t base)
      : base(base), queries{base + Kernel::barriers_at}, gradients{queries.barriers + Kernel::QueryRows::bytes},
        kept(gradients.barriers + Kernel::GradientRows::bytes) {}

  DEVICE void prepare() const {
    queries.prepare();
    gradients.prepare();
    barrier_init(kept, 1);
    if constexpr (Kernel::hands_over) {
      barrier_init(sums_full(), Kernel::sums_there);
      barrier_init(sums_empty(), Kernel::sums_gone);
    }
    barrier_init_fence();
  }

  DEVICE void keep(const BackwardArguments& arguments, const KeyBlock& block) const {
    const int64_t first_sum = block.first_sum(arguments);
    store_shared(kept_spans(), KeptSpans{block.spans, block.tile.rows - block.first, block.tile.fresh});
    store_shared(kept_sums(), KeptSums{block.tile.dk + first_sum, block.tile.dv + first_sum});
    const Reach& reach = *block.reach;
    store_shared(kept_walk(), BlockWalk<Kernel::queries>(reach));
    const bool whole = block.first + Kernel::keys <= block.tile.rows;
    if constexpr (Kernel::hands_over) {
      const int head = block.batch * arguments.heads + block.head * arguments.group;
      store_shared(kept_turns(), KeptTurns{block.visitors(arguments, Kernel::queries), block.first / Kernel::keys, head});
    }
    store_shared(kept_full(), KeptFull{{reach.full_start[0], reach.full_start[1]},
                                       {whole ? reach.full_end[0] : -1, whole ? reach.full_end[1] : -1}});
  }

  DEVICE Tile<Kernel::keys> key_tile() const { return {base}; }
  DEVICE Tile<Kernel::keys> value_tile() const { return {base + Kernel::values_at}; }
  DEVICE Tile<Kernel::queries> query_tile(int stage) const { return {base + Kernel::queries_at + stage * Kernel::query_bytes}; }
  DEVICE Tile<Kernel::queries> gradient_tile(int stage) const {
    return {base + Kernel::gradients_at + stage * Kernel::query_bytes};
  }
  DEVICE Tile<Kernel::keys> slope_tile(int buffer) const { return {base + Kernel::slopes_at + buffer * Kernel::slope_bytes}; }
  // Of kernels that hand dQ over: where it is on its way to global memory, whether it is there or gone, and which block this is.
  DEVICE uint32_t sums() const { return base + Kernel::sums_at; }
  DEVICE uint32_t sums_full() const { return base + Kernel::turns_at; }
  DEVICE uint32_t sums_empty() const { return base + Kernel::turns_at + 8; }
  DEVICE uint32_t number() const { return base + Kernel::turns_at + 16; }
  DEVICE uint32_t kept_turns() const { return base + Kernel::turns_at + 24; }
  DEVICE uint32_t lse(int stage) const { return base + Kernel::lse_at + stage * Kernel::row_bytes; }
  DEVICE uint32_t delta(int stage) const { return base + Kernel::delta_at + stage * Kernel::row_bytes; }
  DEVICE uint32_t step(int stage) const { return base + Kernel::steps_at + stage * 16; }
  DEVICE uint32_t kept_spans() const { return base + Kernel::kept_at; }
  DEVICE uint32_t kept_sums() const { return base + Kernel::kept_at + 16; }
  DEVICE uint32_t kept_full() const { return base + Kernel::kept_at + 32; }
  DEVICE uint32_t kept_walk() const { return base + Kernel::kept_at + 48; }
};

}  // namespace sm90
