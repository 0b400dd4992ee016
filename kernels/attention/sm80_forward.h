// Forward of sm_80: a thread block owns a block of queries of one head and walks the blocks of keys that any of them sees, of
// all tiles of the hop in order. Scores, their running maximum and sum, and the output stay in registers (Dao 2023, arXiv
// 2307.08691, algorithm 1); the state begins where the tiles before left it, so that hops and tiles are invisible in the result.
//
// One block of values and two of keys are in shared memory: values load while scores are computed, the next keys while the
// output is.
#pragma once
#include "../vocabulary/reductions.h"
#include "sm80_scores.h"

template <typename T, int D, int QueryBlock, int KeyBlock, int Warps> struct Sm80Forward {
  static constexpr int THREADS = 32 * Warps;
  static constexpr int DOWN = QueryBlock / Warps / 16;   // fragments of 16 rows of a warp
  static constexpr int SCORES = KeyBlock / 8, OUTPUTS = D / 8;
  static constexpr int QUERY_BYTES = panel_bytes(QueryBlock, D), KEY_BYTES = panel_bytes(KeyBlock, D);
  static constexpr int SHARED_BYTES = QUERY_BYTES + 3 * KEY_BYTES;

  const ForwardArguments& arguments;
  const int batch, head, warp_row;   // warp_row: the warp's first row of the block of queries
  const uint32_t queries, keys, values;           // shared memory
  int turn = 0;                                   // of the two blocks of keys
  float scores[DOWN][SCORES][4];
  float out[DOWN][OUTPUTS][4];
  float maximum[DOWN][2];
  float sum[DOWN][2];   // this lane's part

  DEVICE Sm80Forward(const ForwardArguments& arguments, const void* shared)
      : arguments(arguments),
        batch(blockIdx.z),
        head(blockIdx.y),
        warp_row(warp_index() * 16 * DOWN),
        queries(shared_address(shared)),
        keys(queries + QUERY_BYTES),
        values(keys + 2 * KEY_BYTES) {}

  DEVICE void run() {
    if (!sees_anything()) return;
    load_state();
    fill_queries();
    NO_UNROLL
    for (const Keys* tile = arguments.tiles.many; tile != arguments.tiles.many + arguments.tiles.count; ++tile) fold(*tile);
    store_state();
  }

  // Those that see most first, under a causal mask.
  static DEVICE int query_block() { return afresh(gridDim.x - 1 - blockIdx.x); }

  DEVICE const Reach& reach(const Keys& tile) const {
    return reach_of<QueryBlock>(tile.query_blocks, tile.visibilities, arguments.rows, batch, query_block());
  }

  DEVICE bool sees_anything() const {
    for (int i = 0; i < arguments.tiles.count; ++i) {
      if (BlockWalk<KeyBlock>(reach(arguments.tiles.many[i])).count() > 0) return true;
    }
    return false;
  }

  // Folds the keys and values of one tile into the state.
  DEVICE void fold(const Keys& tile) {
    const BlockWalk<KeyBlock> walk(reach(tile));
    const int count = walk.count();
    if (count > 0) fill_keys(tile, walk.block(0));
    copy_commit();
    NO_UNROLL
    for (int i = 0; i < count; ++i) {
      const int first_key = walk.block(i) * KeyBlock;
      copy_wait<0>();
      __syncthreads();   // all have their keys there; none reads the values and the keys of before
      fill_values(tile, walk.block(i));
      copy_commit();
      set_zero(scores);
      multiply_tiles<T, D>(scores, LeftByRows<QueryBlock>(queries, warp_row), RightByRows<KeyBlock>(keys + turn * KEY_BYTES));
      turn ^= 1;
      if (i + 1 < count) fill_keys(tile, walk.block(i + 1));
      copy_commit();
      if (!is_full(reach(tile), first_key, first_key + KeyBlock)) {
        hide_unseen(scores, tile, arguments.rows, batch, query_block() * QueryBlock + afresh(warp_row), first_key);
      }
      weigh();
      if (tile.dropped != nullptr) {
        drop(scores, tile, arguments.rows, batch, head, query_block() * QueryBlock + afresh(warp_row), first_key);
      }
      copy_wait<1>();
      __syncthreads();   // all have their values there
      multiply_tiles<T, KeyBlock>(out, LeftOfSums<T, DOWN, SCORES>{scores}, RightByColumns<KeyBlock>(values));
    }
    gather_sums();
  }

  // Scores become weights relative to the new maximum; what was summed before is brought down to it.
  DEVICE void weigh() {
    UNROLL
    for (int m = 0; m < DOWN; ++m) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        float highest = maximum[m][half];
        UNROLL
        for (int n = 0; n < SCORES; ++n) highest = max(highest, max(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        highest = quad_max(highest);
        const float zero = highest == -infinity() ? 0.0f : highest, shift = zero * arguments.scale_log2;
        // 1 where the maximum stays: any other factor would be multiplied into the sums with every block of keys.
        const float shrink = exp2_fast((maximum[m][half] - zero) * arguments.scale_log2);
        maximum[m][half] = highest;
        float added = 0.0f;
        UNROLL
        for (int n = 0; n < SCORES; ++n) {
          UNROLL
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            scores[m][n][e] = exp2_fast(multiply_add(scores[m][n][e], arguments.scale_log2, -shift));
            added += scores[m][n][e];
          }
        }
        sum[m][half] = multiply_add(sum[m][half], shrink, added);
        if (warp_any(shrink != 1.0f)) shrink_output(m, half, shrink);
      }
    }
  }

  DEVICE void shrink_output(int m, int half, float shrink) {
    UNROLL
    for (int n = 0; n < OUTPUTS; ++n) {
      out[m][n][2 * half] *= shrink;
      out[m][n][2 * half + 1] *= shrink;
    }
  }

  // At the end of a tile one lane of four has the whole sum, as when a launch begins: the sum does not depend on how many tiles
  // one launch folds.
  DEVICE void gather_sums() {
    UNROLL
    for (int m = 0; m < DOWN; ++m) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const float whole = quad_sum(sum[m][half]);
        sum[m][half] = lane_index() % 4 == 0 ? whole : 0.0f;
      }
    }
  }

  DEVICE int row_of(int m, int half) const { return query_block() * QueryBlock + afresh(warp_row) + 16 * m + fragment_row(half); }

  DEVICE int64_t state_row(int row) const {
    return (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.rows + row;
  }

  DEVICE void load_state() {
    UNROLL
    for (int m = 0; m < DOWN; ++m) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const bool valid = row_of(m, half) < arguments.rows;
        const int64_t row = state_row(row_of(m, half));
        maximum[m][half] = valid ? arguments.maximum[row] : -infinity();
        sum[m][half] = valid && lane_index() % 4 == 0 ? arguments.sum[row] : 0.0f;
        const Float2* from = reinterpret_cast<const Float2*>(arguments.out + row * arguments.dim + fragment_column());
        UNROLL
        for (int n = 0; n < OUTPUTS; ++n) {
          const Float2 pair = valid && 8 * n < arguments.dim ? from[4 * n] : Float2{0.0f, 0.0f};
          out[m][n][2 * half] = pair.x;
          out[m][n][2 * half + 1] = pair.y;
        }
      }
    }
  }

  DEVICE void store_state() const {
    UNROLL
    for (int m = 0; m < DOWN; ++m) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        if (row_of(m, half) >= arguments.rows) continue;
        const int64_t row = state_row(row_of(m, half));
        if (lane_index() % 4 == 0) {
          arguments.maximum[row] = maximum[m][half];
          arguments.sum[row] = sum[m][half];
        }
        Float2* to = reinterpret_cast<Float2*>(arguments.out + row * arguments.dim + fragment_column());
        UNROLL
        for (int n = 0; n < OUTPUTS; ++n) {
          if (8 * n < arguments.dim) to[4 * n] = {out[m][n][2 * half], out[m][n][2 * half + 1]};
        }
      }
    }
  }

  DEVICE void fill_queries() const {
    const int first = query_block() * QueryBlock;
    const T* from = row_start<T>(arguments.q, arguments.q_strides, batch, head, first);
    fill_tile<THREADS, QueryBlock, D>(queries, from, arguments.q_strides.row, arguments.rows - first, arguments.dim);
  }

  DEVICE void fill_keys(const Keys& tile, int block) const { fill(keys + turn * KEY_BYTES, tile.k, tile, block); }
  DEVICE void fill_values(const Keys& tile, int block) const { fill(values, tile.v, tile, block); }

  DEVICE void fill(uint32_t to, const void* from, const Keys& tile, int block) const {
    const int first = block * KeyBlock;
    const T* start = row_start<T>(from, tile.strides, batch, head / arguments.group, first);
    fill_tile<THREADS, KeyBlock, D>(to, start, tile.strides.row, tile.rows - first, arguments.dim);
  }
};

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void forward_sm80(const ForwardArguments& arguments) {
  using Forward = Sm80Forward<T, D, QueryBlock, KeyBlock, Threads / 32>;
  static_assert(SharedBytes == Forward::SHARED_BYTES, "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Forward(arguments, shared).run();
}
