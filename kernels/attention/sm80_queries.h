// Backward for queries alone of sm_80: a thread block owns a block of queries of one head and walks the blocks of keys that
// any of them sees, of all tiles of the hop in order. With `Sm80Backward` without queries it makes the gradients in an order that
// every run repeats, for seven products instead of five.
//
// Groups of two warps own the rows; the two of a group share the keys of a block, half each, so that a warp reads its
// operands as rarely as in forward. At the end of a tile their two sums are added, always in the same order.
#pragma once
#include "sm80_scores.h"

template <typename T, int D, int QueryBlock, int KeyBlock, int Warps> struct Sm80Queries {
  static constexpr int SHARES = 2, GROUPS = Warps / SHARES, THREADS = 32 * Warps;
  static constexpr int DOWN = QueryBlock / GROUPS / 16, SCORES = KeyBlock / SHARES / 8, OUTPUTS = D / 8;
  static constexpr int QUERY_BYTES = panel_bytes(QueryBlock, D), KEY_BYTES = panel_bytes(KeyBlock, D);
  static constexpr int STAGE_BYTES = 2 * KEY_BYTES;
  static constexpr int SHARED_BYTES = 2 * QUERY_BYTES + 2 * STAGE_BYTES;
  static_assert(2 * STAGE_BYTES >= QueryBlock * D * 4, "sums are handed over where keys and values were");

  const BackwardArguments& arguments;
  const int batch, head, query_block;
  const int group_row, share;                   // the warp's first row of the block of queries, its half of the keys
  const uint32_t queries, gradients, stages;    // shared memory; a stage: keys and values
  RowValues<DOWN> lse_log2, delta;
  float dq[DOWN][OUTPUTS][4];

  DEVICE Sm80Queries(const BackwardArguments& arguments, const void* shared)
      : arguments(arguments),
        batch(blockIdx.z),
        head(blockIdx.y),
        query_block(gridDim.x - 1 - blockIdx.x),   // those that see most first, under a causal mask
        group_row(warp_index() % GROUPS * 16 * DOWN),
        share(warp_index() / GROUPS),
        queries(shared_address(shared)),
        gradients(queries + QUERY_BYTES),
        stages(gradients + QUERY_BYTES) {}

  DEVICE void run() {
    if (!sees_anything()) return;
    fill_queries(queries, arguments.q, arguments.q_strides);
    fill_queries(gradients, arguments.gradient, arguments.gradient_strides);
    load_row_values();
    set_zero(dq);
    if (share == 0) load_sums();
    NO_UNROLL
    for (const Keys* tile = arguments.tiles.many; tile != arguments.tiles.many + arguments.tiles.count; ++tile) add(*tile);
    if (share == 0) store_sums();
  }

  DEVICE const Reach& reach(const Keys& tile) const {
    return reach_of<QueryBlock>(tile.query_blocks, tile.visibilities, arguments.rows, batch, query_block);
  }

  DEVICE bool sees_anything() const {
    for (int i = 0; i < arguments.tiles.count; ++i) {
      if (BlockWalk<KeyBlock>(reach(arguments.tiles.many[i])).count() > 0) return true;
    }
    return false;
  }

  // What the keys of one tile add.
  DEVICE void add(const Keys& tile) {
    const BlockWalk<KeyBlock> walk(reach(tile));
    const int count = walk.count();
    if (count == 0) return;
    fill_stage(0, tile, walk.block(0));
    copy_commit();
    NO_UNROLL
    for (int i = 0; i < count; ++i) {
      copy_wait<0>();
      __syncthreads();   // all have their rows there; none reads the stage of before
      if (i + 1 < count) fill_stage((i + 1) % 2, tile, walk.block(i + 1));
      copy_commit();
      add_block(stages + i % 2 * STAGE_BYTES, tile, walk.block(i) * KeyBlock);
    }
    add_shares();
  }

  DEVICE void add_block(uint32_t keys, const Keys& tile, int first_key) {
    const int key = afresh(share) * KeyBlock / SHARES;
    const uint32_t values = keys + KEY_BYTES;
    float weights[DOWN][SCORES][4];
    set_zero(weights);
    multiply_tiles<T, D>(weights, LeftByRows<QueryBlock>(queries, group_row), RightByRows<KeyBlock>(keys, key));
    if (!is_full(reach(tile), first_key, first_key + KeyBlock)) {
      hide_unseen(weights, tile, arguments.rows, batch, query_block * QueryBlock + group_row, first_key + key);
    }
    weigh(weights, arguments.scale_log2, lse_log2);
    float slopes[DOWN][SCORES][4];
    set_zero(slopes);
    multiply_tiles<T, D>(slopes, LeftByRows<QueryBlock>(gradients, afresh_from_100(group_row)), RightByRows<KeyBlock>(values, key));
    if (tile.dropped != nullptr) {
      drop(slopes, tile, arguments.rows, batch, head, query_block * QueryBlock + group_row, first_key + key);
    }
    slope(slopes, weights, delta);
    multiply_tiles<T, KeyBlock / SHARES>(dq, LeftOfSums<T, DOWN, SCORES>{slopes},
                                         RightByColumns<KeyBlock>(keys + key * PANEL_ROW_BYTES));
  }

  // The sums of the second half of the keys are added to those of the first.
  DEVICE void add_shares() {
    const uint32_t mine = stages + warp_index() % GROUPS * (DOWN * OUTPUTS * 512) + lane_index() * 16;
    __syncthreads();   // none reads keys and values
    if (share == 1) {
      UNROLL
      for (int i = 0; i < DOWN * OUTPUTS; ++i) {
        const float(&c)[4] = dq[i / OUTPUTS][i % OUTPUTS];
        store_shared(mine + 512 * i, Float4{c[0], c[1], c[2], c[3]});
      }
      set_zero(dq);
    }
    __syncthreads();   // the second half's sums are there
    if (share == 0) {
      UNROLL
      for (int i = 0; i < DOWN * OUTPUTS; ++i) {
        const Float4 theirs = load_shared<Float4>(mine + 512 * i);
        float(&c)[4] = dq[i / OUTPUTS][i % OUTPUTS];
        c[0] += theirs.x, c[1] += theirs.y, c[2] += theirs.z, c[3] += theirs.w;
      }
    }
    __syncthreads();   // they were read
  }

  // Where the warp's rows begin in arrays of `padded` rows.
  DEVICE int64_t first_row() const {
    const int64_t row_of_head = query_block * QueryBlock + group_row;
    return (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.padded + row_of_head;
  }

  DEVICE void load_row_values() {
    UNROLL
    for (int m = 0; m < DOWN; ++m) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first_row() + 16 * m + fragment_row(half);
        lse_log2.of[m][half] = arguments.lse_log2[row];
        delta.of[m][half] = arguments.delta[row];
      }
    }
  }

  DEVICE void load_sums() {
    const float* from = arguments.dq + fragment_offset<D>(first_row(), 0);
    UNROLL
    for (int i = 0; i < DOWN * OUTPUTS * 4; ++i) dq[i / 4 / OUTPUTS][i / 4 % OUTPUTS][i % 4] = from[32 * i];
  }

  DEVICE void store_sums() const {
    float* to = arguments.dq + fragment_offset<D>(first_row(), 0);
    UNROLL
    for (int i = 0; i < DOWN * OUTPUTS * 4; ++i) to[32 * i] = dq[i / 4 / OUTPUTS][i / 4 % OUTPUTS][i % 4];
  }

  DEVICE void fill_queries(uint32_t to, const void* from, const Strides& strides) const {
    const int first = query_block * QueryBlock;
    const T* start = row_start<T>(from, strides, batch, head, first);
    fill_tile<THREADS, QueryBlock, D>(to, start, strides.row, arguments.rows - first, arguments.dim);
  }

  DEVICE void fill_stage(int stage, const Keys& tile, int block) const {
    const Strides& strides = tile.strides;
    const int first = block * KeyBlock, kv_head = head / arguments.group, left = tile.rows - first;
    const uint32_t to = stages + stage * STAGE_BYTES;
    fill_tile<THREADS, KeyBlock, D>(to, row_start<T>(tile.k, strides, batch, kv_head, first), strides.row, left, arguments.dim);
    fill_tile<THREADS, KeyBlock, D>(to + KEY_BYTES, row_start<T>(tile.v, strides, batch, kv_head, first), strides.row, left, arguments.dim);
  }
};

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_queries_sm80(const BackwardArguments& arguments) {
  using Queries = Sm80Queries<T, D, QueryBlock, KeyBlock, Threads / 32>;
  static_assert(Threads == Queries::THREADS && SharedBytes == Queries::SHARED_BYTES,
                "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Queries(arguments, shared).run();
}
