// Backward attention for sm_90a. A block of threads keeps a block of keys and visits the blocks of queries that see it, of all
// query heads that share it. All is transposed, a row being a key: then the mask of a row, its weights and their slopes stay in
// the registers of one thread, as left operands of what is summed over queries:
//
//   scores S^T = K Q^T      slopes of weights dP^T = V dO^T
//   weights P^T = exp2(scale S^T - lse)       dV += P^T dO
//   slopes of scores dS^T = P^T (dP^T - delta)       dK += dS^T Q       dQ += dS K
//
// Only dQ sums over keys: for it dS^T goes through shared memory, and its sums to global memory, where those of other blocks of
// keys go as well (`QuerySums`): in an order that is not fixed, or in turn, or not at all: then sm90_queries.h makes dQ anew.
//
// A warpgroup has registers for the sums of 64 keys and 128 columns. Of longer heads both have the same 64 keys, of whose sums each
// has half of the columns, and make scores and slopes twice: seven products for five, and no weights to hand over.
//
// Of block n the products run beside: scores and slopes of block n + 1 start before dK of block n is awaited, weights are made
// while slopes are multiplied, slopes while dV is.
#pragma once
#include "../vocabulary/reductions.h"
#include "sm90_backward_memory.h"

namespace sm90 {

// Who adds to dQ of a block of queries, and when. All but `Unordered` give the same bits every time.
enum class QuerySums {
  Elsewhere,  // nobody here
  Unordered,  // every block of keys as soon as it can
  InTurn,     // one after the other, the last block of keys first: see sm90_turns.h
};

template <typename Number, int Dim, int QueryBlock, QuerySums Sums> struct Backward {
  using T = Number;
  static constexpr int dim = Dim, panels = ceiling_divide(Dim, PANEL_COLUMNS);
  static constexpr int consumers = 2, queries = QueryBlock, stages = 2;
  static constexpr bool shares_keys = Dim > 128;  // and not its columns
  static constexpr int keys = shares_keys ? 64 : 64 * consumers, columns = shares_keys ? Dim / consumers : Dim;
  static constexpr bool with_queries = Sums != QuerySums::Elsewhere, in_turn = Sums == QuerySums::InTurn;
  static constexpr int threads = WARPGROUP * (1 + consumers), warps = 4 * consumers;
  using Split = Registers<consumers, 24>;
  // Two warpgroups share the sums of dQ: of 64 queries by panels, or of one panel by 64 of 128 queries.
  static constexpr bool by_panels = queries == 64;
  static_assert(by_panels ? panels % consumers == 0 : queries == 128 && panels == 1, "dQ of a block in halves");
  static constexpr int query_panels = by_panels ? panels / consumers : 1;

  static constexpr int key_bytes = panel_bytes(keys, Dim), query_bytes = panel_bytes(queries, Dim), row_bytes = 4 * queries;
  static constexpr int slope_bytes = with_queries ? panel_bytes(keys, queries) : 0, sum_bytes = in_turn ? 4 * queries * Dim : 0;
  static constexpr int values_at = key_bytes, queries_at = 2 * key_bytes, gradients_at = queries_at + stages * query_bytes;
  static constexpr int slopes_at = gradients_at + stages * query_bytes, sums_at = slopes_at + 2 * slope_bytes;
  static constexpr int lse_at = sums_at + sum_bytes;
  static constexpr int delta_at = lse_at + stages * row_bytes, steps_at = delta_at + stages * row_bytes;
  static constexpr int kept_at = steps_at + stages * 16, barriers_at = kept_at + 64;
  static constexpr bool hands_over = in_turn;  // dQ to who adds it: so many arrivals say that it is there, and gone
  static constexpr int sums_there = warps, sums_gone = 1;
  using QueryRows = Channel<stages, warps>;
  using GradientRows = QueryRows;
  static constexpr int turns_at = barriers_at + QueryRows::bytes + GradientRows::bytes + 8;
  static_assert((turns_at + 24) % 16 == 0, "what is kept for turns is read by 16 bytes");
  static constexpr int shared_bytes = turns_at + (hands_over ? 40 : 0);
  static_assert(shared_bytes <= 227 * 1024, "a block's shared memory on sm_90");
};

// One thread: brings the keys and values, then queries, gradients and what belongs to their rows.
template <class Kernel> struct BackwardProducer {
  const BackwardArguments& arguments;
  BackwardMemory<Kernel> memory;
  const KeyBlock& block;

  DEVICE void run() {
    see_maps(arguments.tiles, block.tile);
    barrier_expect(memory.kept, 2 * Kernel::key_bytes);
    bring_kept(memory.key_tile().address, block.tile.k_map);
    bring_kept(memory.value_tile().address, block.tile.v_map);
    // It has few registers: loops stay loops, and the walk stays in shared memory.
    const int first_head = block.head * arguments.group;
    int left = walk().count() * arguments.group;
    NO_UNROLL
    for (int head = first_head; left > 0; ++head) {
      NO_UNROLL
      for (int index = 0; index < walk().count(); ++index) bring(walk().block(index) * Kernel::queries, head, --left == 0);
    }
  }

 private:
  DEVICE BlockWalk<Kernel::queries> walk() const { return load_shared<BlockWalk<Kernel::queries>>(memory.kept_walk()); }

  DEVICE void bring_kept(uint32_t shared, const TensorMap& map) {
    load_rows<Kernel::keys, Kernel::panels>(shared, map, memory.kept, block.first, block.head, block.batch);
  }

  DEVICE void bring(int first, int head, bool last) {
    const bool whole = load_shared<KeptFull>(memory.kept_full()).holds(first, first + Kernel::queries);
    const int64_t row = (static_cast<int64_t>(block.batch) * arguments.heads + head) * arguments.padded + first;
    const int stage = memory.queries.state.stage;
    memory.queries.claim();
    const int flags = (whole ? 0 : MASKED) | (last ? LAST : 0);
    store_shared(memory.step(stage), QueryStep{arguments.dq + row * Kernel::dim, first, flags});
    bring_rows(memory.queries, memory.query_tile(stage).address, arguments.q_map, first, head);
    load_bytes(memory.lse(stage), arguments.lse_log2 + row, Kernel::row_bytes, memory.queries.full());
    // Gradients take the turns of queries, where they have as many buffers.
    constexpr bool alike = Kernel::QueryRows::bytes == Kernel::GradientRows::bytes;
    if constexpr (alike) memory.gradients.state.stage = stage, memory.gradients.state.parity = memory.queries.state.parity;
    const int buffer = memory.gradients.state.stage;
    memory.gradients.claim();
    bring_rows(memory.gradients, memory.gradient_tile(buffer).address, arguments.gradient_map, first, head);
    load_bytes(memory.delta(buffer), arguments.delta + row, Kernel::row_bytes, memory.gradients.full());
    if constexpr (!alike) memory.gradients.state.next();
    memory.queries.state.next();
  }

  template <class Rows> DEVICE void bring_rows(const Rows& channel, uint32_t tile, const TensorMap& map, int first, int head) {
    barrier_expect(channel.full(), Kernel::query_bytes + Kernel::row_bytes);
    load_rows<Kernel::queries, Kernel::panels>(tile, map, channel.full(), first, head, block.batch);
  }
};

// A warpgroup: 64 keys, their dK and dV or half of the columns of these, and its part of dQ.
template <class Kernel> struct BackwardConsumer {
  using T = typename Kernel::T;
  static constexpr int slopes_barrier = 1;  // both warpgroups have stored their slopes
  const BackwardArguments& arguments;
  BackwardMemory<Kernel> memory;
  int consumer;
  float dk[Kernel::columns / 2] = {};
  float dv[Kernel::columns / 2] = {};
  float scores[Kernel::queries / 2];  // then weights
  float slopes[Kernel::queries / 2];
  uint32_t left_of_dv[Kernel::queries / 16][4];
  uint32_t left_of_dk[Kernel::queries / 16][4];

  DEVICE BackwardConsumer(const BackwardArguments& arguments, const BackwardMemory<Kernel>& memory, int consumer)
      : arguments(arguments), memory(memory), consumer(consumer) {}

  DEVICE void run() {
    warpgroup_hold(dk);
    warpgroup_hold(dv);
    barrier_wait(memory.kept, 0);
    start_scores(0, 0);
    start_slopes(0, 0);
    for (int n = 0;; ++n) {
      const int stage = n % Kernel::stages;
      const QueryStep step = load_shared<QueryStep>(memory.step(stage));
      make_weights(step, stage);
      make_slopes(stage);
      add_keys(step, stage);
      if ((step.flags & LAST) != 0) break;
      start_scores(1 - stage, parity_of(n + 1, Kernel::stages));
      warpgroup_wait<1>();
      warpgroup_hold(left_of_dk);
      memory.queries.release(stage);
      start_slopes(1 - stage, parity_of(n + 1, Kernel::stages));
    }
    warpgroup_wait<0>();
    warpgroup_hold(dk);
    warpgroup_hold(dv);
    const KeptSums to = load_shared<KeptSums>(memory.kept_sums());
    store(to.dk, dk, arguments.scale);
    store(to.dv, dv, 1.0f);
  }

 private:
  // Of the block's keys, and the first column of its sums.
  DEVICE int first_row() const { return Kernel::shares_keys ? 0 : 64 * consumer; }
  DEVICE int first_column() const { return Kernel::shares_keys ? Kernel::columns * consumer : 0; }

  // What stays as an operand: its many descriptors would be kept in registers, and these are all taken.
  static DEVICE Tile<Kernel::keys> kept(const Tile<Kernel::keys>& tile) {
    return {Kernel::shares_keys ? static_cast<uint32_t>(afresh(static_cast<int>(tile.address))) : tile.address};
  }

  DEVICE void start_scores(int stage, uint32_t parity) {
    memory.queries.wait(stage, parity);
    multiply_rows<T, Kernel::queries, Kernel::dim>(scores, kept(memory.key_tile()), first_row(), memory.query_tile(stage));
    warpgroup_commit();
  }

  DEVICE void start_slopes(int stage, uint32_t parity) {
    memory.gradients.wait(stage, parity);
    multiply_rows<T, Kernel::queries, Kernel::dim>(slopes, kept(memory.value_tile()), first_row(), memory.gradient_tile(stage));
    warpgroup_commit();
  }

  // Weights from scores, then starts dV.
  DEVICE void make_weights(const QueryStep& step, int stage) {
    Seen<Kernel::queries> seen;
    const bool masked = (step.flags & MASKED) != 0;
    if (masked) {
      const KeptSpans kept = load_shared<KeptSpans>(memory.kept_spans());
      seen.look(kept.spans, first_row(), kept.rows, step.first);
    }
    warpgroup_wait<1>();
    warpgroup_hold(scores);
    if (masked) seen.hide(scores);
    const uint32_t of_columns = afresh(memory.lse(stage) + 4 * sums_column());
    UNROLL
    for (int j = 0; j < Kernel::queries / 8; ++j) {
      const Float2 lse = load_shared<Float2>(of_columns + 32 * j);
      UNROLL
      for (int e = 0; e < 4; ++e) {
        float& score = scores[4 * j + e];
        score = exp2_fast(multiply_add(score, arguments.scale_log2, -(e % 2 == 0 ? lse.x : lse.y)));
      }
    }
    round_sums<T, Kernel::queries>(left_of_dv, scores);
    multiply_fragments<T, Kernel::columns>(dv, left_of_dv, memory.gradient_tile(stage), first_column() / PANEL_COLUMNS);
    warpgroup_commit();
  }

  // Slopes of scores from those of weights, in registers, and in shared memory for dQ.
  DEVICE void make_slopes(int stage) {
    warpgroup_wait<1>();
    warpgroup_hold(slopes);
    const uint32_t of_columns = afresh(memory.delta(stage) + 4 * sums_column());
    UNROLL
    for (int j = 0; j < Kernel::queries / 8; ++j) {
      const Float2 delta = load_shared<Float2>(of_columns + 32 * j);
      UNROLL
      for (int e = 0; e < 4; ++e) slopes[4 * j + e] = scores[4 * j + e] * (slopes[4 * j + e] - (e % 2 == 0 ? delta.x : delta.y));
    }
    round_sums<T, Kernel::queries>(left_of_dk, slopes);
    if constexpr (Kernel::with_queries) share_slopes(memory.slope_tile(stage).address);
  }

  // Two tiles take turns: who stores into one has met all that read it two blocks ago.
  DEVICE void share_slopes(uint32_t tile) const {
    const uint32_t at = afresh(tile + panel_address(Kernel::keys, first_row() + sums_row(), 0) + 2 * sums_column());
    UNROLL
    for (int k = 0; k < Kernel::queries / 16; ++k) {
      // Slopes that both have are stored by halves.
      if (Kernel::shares_keys && k * 32 / Kernel::queries != consumer) continue;
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int chunk = 2 * k + e / 2, panel = chunk / 8 * Kernel::keys * PANEL_ROW_BYTES;
        store_shared((at ^ (chunk % 8 * 16)) + panel + e % 2 * 8 * PANEL_ROW_BYTES, left_of_dk[k][e]);
      }
    }
    proxy_fence();
    named_sync(slopes_barrier, Kernel::consumers * WARPGROUP);
  }

  // Starts dQ and dK, and adds dQ when it is there: dV is by then, or before where dQ takes the registers of its operand.
  DEVICE void add_keys(const QueryStep& step, int stage) {
    constexpr bool before = Kernel::with_queries && Kernel::query_panels > 1;
    float dq[32 * Kernel::query_panels];
    if constexpr (before) release_gradients<0>(stage);
    if constexpr (Kernel::with_queries) {
      multiply_columns<T, 64 * Kernel::query_panels>(dq, memory.slope_tile(stage), first_panel(false), memory.key_tile(),
                                                     first_panel(true));
      warpgroup_commit();
    }
    multiply_fragments<T, Kernel::columns>(dk, left_of_dk, memory.query_tile(stage), first_column() / PANEL_COLUMNS);
    warpgroup_commit();
    if constexpr (before) warpgroup_wait<1>();
    else release_gradients<1>(stage);
    if constexpr (Kernel::with_queries) {
      warpgroup_hold(dq);
      if constexpr (Kernel::in_turn) hand_queries(dq, stage);
      else add_queries(step.dq, dq);
    }
  }

  // dV is there when at most the newest `Pending` groups of products are not.
  template <int Pending> DEVICE void release_gradients(int stage) {
    warpgroup_wait<Pending>();
    warpgroup_hold(left_of_dv);
    memory.gradients.release(stage);
  }

  // This warpgroup's first panel of queries, or of columns of dQ.
  DEVICE int first_panel(bool of_columns) const {
    return Kernel::by_panels == of_columns ? consumer * Kernel::query_panels : 0;
  }

  DEVICE void add_queries(float* block, const float (&dq)[32 * Kernel::query_panels]) const {
    each_of_queries(dq, [block](int at, Float4 sums) { add_global(block + at, sums); });
  }

  // Leaves the block's dQ to the writer, as it lies in global memory. Blocks follow each other as stages do.
  DEVICE void hand_queries(const float (&dq)[32 * Kernel::query_panels], int stage) const {
    barrier_wait(memory.sums_empty(), 1 - stage);
    each_of_queries(dq, [to = memory.sums()](int at, Float4 sums) { store_shared(to + 4 * at, sums); });
    hand_over(memory);
  }

  // In the order of `lane_order`, whole warps next to each other.
  template <typename Take> DEVICE void each_of_queries(const float (&dq)[32 * Kernel::query_panels], Take take) const {
    const int panel = first_panel(true);
    const int first = first_panel(false) * 64 * Kernel::dim + lane_order<Kernel::dim>() + panel * 8 * 128;
    UNROLL
    for (int j = 0; j < 8 * Kernel::query_panels; ++j) {
      if (Kernel::dim % 64 != 0 && panel * 64 + 8 * j >= Kernel::dim) break;
      take(first + j * 128, Float4{dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
    }
  }

  DEVICE void store(float* rows, const float (&sums)[Kernel::columns / 2], float factor) const {
    const KeptSpans kept = load_shared<KeptSpans>(memory.kept_spans());
    UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = first_row() + sums_row() + 8 * r;
      if (row >= kept.rows) continue;
      float* to = rows + row * arguments.dim + first_column() + sums_column();
      UNROLL
      for (int j = 0; j < Kernel::columns / 8; ++j) {
        if (first_column() + 8 * j >= arguments.dim) continue;
        const Float2 pair{factor * sums[4 * j + 2 * r], factor * sums[4 * j + 2 * r + 1]};
        if (kept.fresh != 0) store_global(reinterpret_cast<Float2*>(to + 8 * j), pair);
        else add_global(to + 8 * j, pair);
      }
    }
  }
};

template <class Kernel> DEVICE void attention_backward(const BackwardArguments& arguments) {
  SHARED_MEMORY(shared);
  const BackwardMemory<Kernel> memory(shared_address(shared));
  const KeyBlock block(arguments, Kernel::keys, block_number<Kernel>(arguments, memory));
  if (block.reach == nullptr) return;
  if (BlockWalk<Kernel::queries>(*block.reach).count() == 0) return leave_unseen<Kernel>(arguments, block);
  if (threadIdx.x == 0) {
    memory.prepare();
    memory.keep(arguments, block);
  }
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == 0) {
    registers_release<Kernel::Split::producer>();
    if (threadIdx.x == 0) BackwardProducer<Kernel>{arguments, memory, block}.run();
    if constexpr (Kernel::in_turn) {
      if (threadIdx.x == 32) TurnWriter<Kernel, BackwardMemory<Kernel>>{arguments, memory}.run();
    }
  } else {
    registers_claim<Kernel::Split::consumer>();
    BackwardConsumer<Kernel>(arguments, memory, warpgroup - 1).run();
  }
}

}  // namespace sm90
