// Backward of sm_80: a thread block owns a block of keys of one key/value head and walks the blocks of queries that see any of
// them, of all query heads of the group (Dao 2023, arXiv 2307.08691, algorithm 2). The gradients of keys and values stay in
// registers until the end; those of the queries are added to global memory as they are made, in an order that no run repeats.
// `WithQueries` false leaves them out (`sm80_queries.h` makes them instead, always in the same order).
//
//   weights P = exp2(scale_log2 * Q K^T - lse_log2), slopes S = P * (G V^T - delta), G the gradient of the output
//   dV += P^T G, dK += S^T Q (times scale), dQ += S K (times scale, at the end)
//
// Eight warps: 2 x 4 over the scores, 4 x 2 over the gradients of keys and values; or four, 2 x 2 over both. Weights and slopes go
// through shared memory.
#pragma once
#include "sm80_scores.h"

template <typename T, int D, int QueryBlock, int KeyBlock, int Warps, int Stages, bool WithQueries> struct Sm80Backward {
  static constexpr int THREADS = 32 * Warps, KEY_WARPS = Warps / 2;
  static constexpr int SCORE_DOWN = QueryBlock / 2 / 16, SCORE_ACROSS = KeyBlock / KEY_WARPS / 8;
  static constexpr int WIDTH = ceiling_divide(D, 32) * 32;   // columns that are computed; those from D on are not looked at
  static constexpr int KEY_DOWN = KeyBlock / KEY_WARPS / 16, KEY_ACROSS = WIDTH / 2 / 8;
  static constexpr int QUERY_WARPS = WIDTH % 64 == 0 ? 2 : 4, DIM_WARPS = Warps / QUERY_WARPS;
  static constexpr int QUERY_DOWN = QueryBlock / QUERY_WARPS / 16, QUERY_ACROSS = WIDTH / DIM_WARPS / 8;

  static constexpr int KEY_BYTES = panel_bytes(KeyBlock, D), QUERY_BYTES = panel_bytes(QueryBlock, D);
  static constexpr int SCORE_BYTES = panel_bytes(QueryBlock, KeyBlock), ROW_BYTES = QueryBlock * 4;
  static constexpr int STAGE_BYTES = 2 * QUERY_BYTES;
  static constexpr int SHARED_BYTES = 2 * KEY_BYTES + Stages * STAGE_BYTES + 2 * SCORE_BYTES + Stages * 2 * ROW_BYTES;

  using Scores = float[SCORE_DOWN][SCORE_ACROSS][4];

  // One block of queries of one head of the group.
  struct Visit {
    int head, index;
  };

  const BackwardArguments& arguments;
  const Keys& tile;
  const int batch, head;   // of keys and values
  const uint32_t keys, values, stages, weights_tile, slopes_tile, rows_of_stages;   // shared memory
  float dk[KEY_DOWN][KEY_ACROSS][4];
  float dv[KEY_DOWN][KEY_ACROSS][4];

  DEVICE Sm80Backward(const BackwardArguments& arguments, const void* shared)
      : arguments(arguments),
        tile(arguments.tiles.many[blockIdx.z % arguments.tiles.count]),
        batch(blockIdx.z / arguments.tiles.count),
        head(blockIdx.y),
        keys(shared_address(shared)),
        values(keys + KEY_BYTES),
        stages(values + KEY_BYTES),
        weights_tile(stages + Stages * STAGE_BYTES),
        slopes_tile(weights_tile + SCORE_BYTES),
        rows_of_stages(slopes_tile + SCORE_BYTES) {}

  DEVICE void run() {
    if (first_key() >= tile.rows) return;
    if (walk().count() == 0) return;
    set_zero(dk);
    set_zero(dv);
    fill_keys();
    fill_stage(0, 0, walk().block(0));
    copy_commit();
    int stage = 0;
    NO_UNROLL
    for (Visit here{0, 0}; here.head < arguments.group; here = after(here)) {
      const Visit ahead = after(here);
      copy_wait<0>();
      __syncthreads();   // all have their rows there; none reads the stage of before, nor its weights and slopes
      if (Stages > 1 && ahead.head < arguments.group) fill_stage(stage ^ 1, ahead.head, walk().block(ahead.index));
      copy_commit();
      add(afresh(stage), here.head, walk().block(here.index));
      if (Stages > 1) {
        stage ^= 1;
        continue;
      }
      __syncthreads();   // none reads the only stage
      if (ahead.head < arguments.group) fill_stage(0, ahead.head, walk().block(ahead.index));
      copy_commit();
    }
    add_to(tile.dk, dk, arguments.scale);
    add_to(tile.dv, dv, 1.0f);
  }

  static DEVICE int first_key() { return afresh(blockIdx.x) * KeyBlock; }

  DEVICE const Reach& reach() const {
    return reach_of<KeyBlock>(tile.key_blocks, tile.visibilities, tile.rows, batch, blockIdx.x);
  }

  // Looked up when it is needed: registers are scarcer than instructions.
  DEVICE BlockWalk<QueryBlock> walk() const { return BlockWalk<QueryBlock>(reach()); }

  DEVICE Visit after(Visit visit) const {
    return visit.index + 1 < walk().count() ? Visit{visit.head, visit.index + 1} : Visit{visit.head + 1, 0};
  }

  // What one block of queries adds.
  DEVICE void add(int stage, int group_head, int block) {
    const uint32_t queries = stages + stage * STAGE_BYTES, gradients = queries + QUERY_BYTES;
    weights_and_slopes(queries, gradients, rows_of_stages + stage * 2 * ROW_BYTES, group_head, block * QueryBlock);
    __syncthreads();   // weights and slopes are whole
    const int warp = afresh(warp_index()), key_piece = warp % KEY_WARPS, dim_piece = warp / KEY_WARPS;
    multiply_tiles<T, QueryBlock>(dv, LeftByColumns<QueryBlock>(weights_tile, key_piece, KEY_WARPS),
                                  RightByColumns<QueryBlock>(gradients, dim_piece, 2));
    if (WithQueries) add_queries(group_head, block);
    multiply_tiles<T, QueryBlock>(dk, LeftByColumns<QueryBlock>(slopes_tile, key_piece, KEY_WARPS),
                                  RightByColumns<QueryBlock>(queries, dim_piece, 2));
  }

  DEVICE void weights_and_slopes(uint32_t queries, uint32_t gradients, uint32_t rows, int group_head, int first_query) {
    const int row = warp_index() % 2 * 16 * SCORE_DOWN, column = warp_index() / 2 * 8 * SCORE_ACROSS;
    Scores weights;
    set_zero(weights);
    multiply_tiles<T, D>(weights, LeftByRows<QueryBlock>(queries, row), RightByRows<KeyBlock>(keys, column));
    const bool full = is_full(reach(), first_query, first_query + QueryBlock) && first_key() + KeyBlock <= tile.rows;
    if (!full) hide_unseen(weights, tile, arguments.rows, batch, first_query + row, first_key() + column);
    weigh(weights, arguments.scale_log2, load_rows<SCORE_DOWN>(rows + 4 * row));
    store_weights(weights, group_head, first_query, row, column);
    Scores slopes;
    set_zero(slopes);
    multiply_tiles<T, D>(slopes, LeftByRows<QueryBlock>(gradients, row), RightByRows<KeyBlock>(values, column));
    if (tile.dropped != nullptr) drop_some(slopes, group_head, first_query + row, column);
    slope(slopes, weights, load_rows<SCORE_DOWN>(rows + ROW_BYTES + 4 * row));
    store_tile<T, QueryBlock>(slopes_tile, row, column, slopes);
  }

  // Those that are not left out: slopes are made of all.
  DEVICE void store_weights(const Scores& weights, int group_head, int first_query, int row, int column) const {
    if (tile.dropped == nullptr) return store_tile<T, QueryBlock>(weights_tile, row, column, weights);
    Scores left;
    UNROLL
    for (int i = 0; i < SCORE_DOWN * SCORE_ACROSS * 4; ++i) {
      left[i / 4 / SCORE_ACROSS][i / 4 % SCORE_ACROSS][i % 4] = weights[i / 4 / SCORE_ACROSS][i / 4 % SCORE_ACROSS][i % 4];
    }
    drop_some(left, group_head, first_query + row, column);
    store_tile<T, QueryBlock>(weights_tile, row, column, left);
  }

  DEVICE void drop_some(Scores& weights, int group_head, int query, int column) const {
    drop(weights, tile, arguments.rows, batch, head * arguments.group + group_head, query, first_key() + column);
  }

  DEVICE void add_queries(int group_head, int block) const {
    const int warp = warp_index(), dim_piece = warp / QUERY_WARPS;
    const int row = warp % QUERY_WARPS * 16 * QUERY_DOWN;
    float dq[QUERY_DOWN][QUERY_ACROSS][4];
    set_zero(dq);
    multiply_tiles<T, KeyBlock>(dq, LeftByRows<QueryBlock>(slopes_tile, row),
                                RightByColumns<KeyBlock>(keys, dim_piece, DIM_WARPS));
    float* to = arguments.dq + fragment_offset<D>(query_rows(group_head) + block * QueryBlock + row, 16 * dim_piece);
    UNROLL
    for (int m = 0; m < QUERY_DOWN; ++m) {
      UNROLL
      for (int n = 0; n < QUERY_ACROSS; ++n) {
        const int column = 16 * (n / 2 * DIM_WARPS) + n % 2 * 8;
        if (WIDTH > D && column + 16 * dim_piece >= D) continue;
        UNROLL
        for (int e = 0; e < 4; ++e) add_global(to + 16 * m * D + column / 8 * FRAGMENT_ELEMENTS + 32 * e, dq[m][n][e]);
      }
    }
  }

  // Sums that this block alone owns, to their rows.
  DEVICE void add_to(float* gradient, const float (&sums)[KEY_DOWN][KEY_ACROSS][4], float factor) const {
    const int warp = warp_index(), key_piece = warp % KEY_WARPS, dim_piece = warp / KEY_WARPS;
    const int kv_heads = arguments.heads / arguments.group;
    UNROLL
    for (int m = 0; m < KEY_DOWN; ++m) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first_key() + 16 * (KEY_WARPS * m + key_piece) + fragment_row(half);
        if (row >= tile.rows) continue;
        float* to = gradient + ((static_cast<int64_t>(batch) * kv_heads + head) * tile.rows + row) * arguments.dim;
        UNROLL
        for (int n = 0; n < KEY_ACROSS; ++n) {
          const int column = 16 * (n / 2 * 2 + dim_piece) + n % 2 * 8 + fragment_column();
          if (column >= arguments.dim) continue;
          const float(&c)[4] = sums[m][n];
          Float2& pair = *reinterpret_cast<Float2*>(to + column);
          pair = {multiply_add(c[2 * half], factor, pair.x), multiply_add(c[2 * half + 1], factor, pair.y)};
        }
      }
    }
  }

  // Where a head's rows begin in arrays of `padded` rows.
  DEVICE int64_t query_rows(int group_head) const {
    return (static_cast<int64_t>(batch) * arguments.heads + head * arguments.group + group_head) * arguments.padded;
  }

  DEVICE void fill_keys() const {
    const Strides& strides = tile.strides;
    const int left = tile.rows - first_key();
    fill_tile<THREADS, KeyBlock, D>(keys, row_start<T>(tile.k, strides, batch, head, first_key()), strides.row, left, arguments.dim);
    fill_tile<THREADS, KeyBlock, D>(values, row_start<T>(tile.v, strides, batch, head, first_key()), strides.row, left, arguments.dim);
  }

  // A block of queries with the gradients of their outputs, and both numbers of each row.
  DEVICE void fill_stage(int stage, int group_head, int block) const {
    const uint32_t queries = stages + stage * STAGE_BYTES;
    fill_rows(queries, arguments.q, arguments.q_strides, group_head, block);
    fill_rows(queries + QUERY_BYTES, arguments.gradient, arguments.gradient_strides, group_head, block);
    constexpr int Copies = QueryBlock / 4;
    const int copy = afresh(threadIdx.x);
    if (copy < 2 * Copies) {
      const float* from = copy < Copies ? arguments.lse_log2 : arguments.delta;
      const int64_t row = query_rows(group_head) + block * QueryBlock + copy % Copies * 4;
      copy_async(rows_of_stages + stage * 2 * ROW_BYTES + 16 * copy, from + row, true);
    }
  }

  DEVICE void fill_rows(uint32_t to, const void* from, const Strides& strides, int group_head, int block) const {
    const int first = block * QueryBlock;
    const T* start = row_start<T>(from, strides, afresh(batch), afresh(head) * arguments.group + group_head, first);
    fill_tile<THREADS, QueryBlock, D>(to, start, strides.row, arguments.rows - first, arguments.dim);
  }
};

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes, bool WithQueries>
DEVICE void run_backward_sm80(const BackwardArguments& arguments) {
  using TwoStages = Sm80Backward<T, D, QueryBlock, KeyBlock, Threads / 32, 2, WithQueries>;
  constexpr int Stages = SharedBytes == TwoStages::SHARED_BYTES ? 2 : 1;
  using Backward = Sm80Backward<T, D, QueryBlock, KeyBlock, Threads / 32, Stages, WithQueries>;
  static_assert(Threads == Backward::THREADS && SharedBytes == Backward::SHARED_BYTES,
                "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Backward(arguments, shared).run();
}

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_sm80(const BackwardArguments& arguments) {
  run_backward_sm80<T, D, QueryBlock, KeyBlock, Threads, SharedBytes, true>(arguments);
}

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_keys_sm80(const BackwardArguments& arguments) {
  run_backward_sm80<T, D, QueryBlock, KeyBlock, Threads, SharedBytes, false>(arguments);
}
