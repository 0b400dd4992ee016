// Forward in f32: as `sm80_forward.h`, by ordinary multiply-adds. The next keys load while the output is computed, values while
// the scores are.
#pragma once
#include "simt_tiles.h"

template <int D, int QueryBlock, int KeyBlock> struct SimtForward {
  static constexpr int WIDTH = simt_width(D), DOWN = QueryBlock / SIMT_SIDE, ACROSS = KeyBlock / SIMT_SIDE;
  static constexpr int CHUNKS = WIDTH / 4 / SIMT_SIDE;
  static constexpr int QUERY_BYTES = QueryBlock * WIDTH * 4, KEY_BYTES = KeyBlock * WIDTH * 4;
  static constexpr int SHARED_BYTES = QUERY_BYTES + 2 * KEY_BYTES + QueryBlock * KeyBlock * 4;

  const ForwardArguments& arguments;
  const int batch, head, query_block, first_row;   // first_row: of this thread
  const uint32_t queries, keys, values, weights;   // shared memory
  Float4 out[DOWN][CHUNKS];
  float maximum[DOWN], sum[DOWN];

  DEVICE SimtForward(const ForwardArguments& arguments, const void* shared)
      : arguments(arguments),
        batch(blockIdx.z),
        head(blockIdx.y),
        query_block(gridDim.x - 1 - blockIdx.x),
        first_row(query_block * QueryBlock + simt_row() * DOWN),
        queries(shared_address(shared)),
        keys(queries + QUERY_BYTES),
        values(keys + KEY_BYTES),
        weights(values + KEY_BYTES) {}

  DEVICE void run() {
    load_state();
    const int first = query_block * QueryBlock;
    const float* q = row_start<float>(arguments.q, arguments.q_strides, batch, head, first);
    fill_floats<QueryBlock, WIDTH, D>(queries, q, arguments.q_strides.row, arguments.rows - first);
    for (int i = 0; i < arguments.tiles.count; ++i) fold(arguments.tiles[i]);
    copy_wait<0>();
    store_state();
  }

  DEVICE void fold(const Keys& tile) {
    const Reach& reach = reach_of<QueryBlock>(tile.query_blocks, tile.visibilities, arguments.rows, batch, query_block);
    const BlockWalk<KeyBlock> walk(reach);
    const int count = walk.count();
    if (count > 0) fill(keys, tile.k, tile, walk.block(0));
    copy_commit();
    for (int i = 0; i < count; ++i) {
      const int first_key = walk.block(i) * KeyBlock;
      copy_wait<0>();
      __syncthreads();   // all have their keys there; none reads the values and weights of before
      fill(values, tile.v, tile, walk.block(i));
      copy_commit();
      float scores[DOWN][ACROSS];
      multiply_rows<WIDTH, D>(scores, queries, keys);
      if (!is_full(reach, first_key, first_key + KeyBlock)) hide(scores, tile, first_key);
      weigh(scores);
      if (tile.dropped != nullptr) drop(scores, tile, first_key);
      store_weights(weights, scores);
      copy_wait<0>();
      __syncthreads();   // weights and values are there; none reads the keys
      if (i + 1 < count) fill(keys, tile.k, tile, walk.block(i + 1));
      copy_commit();
      add_weighted<WIDTH, KeyBlock>(out, weights, values);
    }
  }

  DEVICE void fill(uint32_t to, const void* from, const Keys& tile, int block) const {
    const int first = block * KeyBlock;
    const float* start = row_start<float>(from, tile.strides, batch, head / arguments.group, first);
    fill_floats<KeyBlock, WIDTH, D>(to, start, tile.strides.row, tile.rows - first);
  }

  DEVICE void hide(float (&scores)[DOWN][ACROSS], const Keys& tile, int first_key) const {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      hide_unseen(scores[i], spans_of(tile.queries, tile.visibilities, arguments.rows, batch, first_row + i), first_key);
    }
  }

  // Weights that are left out add to no output, but stay in the sum that divides.
  DEVICE void drop(float (&weights)[DOWN][ACROSS], const Keys& tile, int first_key) const {
    const auto key_of = [&](int j) { return first_key + simt_column() + SIMT_SIDE * j; };
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      const uint32_t kept = kept_bits(tile, batch, head, arguments.rows, first_row + i, ACROSS, key_of);
      UNROLL
      for (int j = 0; j < ACROSS; ++j) weights[i][j] *= weight_factor(tile, kept, j);
    }
  }

  // Scores become weights relative to the new maximum; what was summed before is brought down to it.
  DEVICE void weigh(float (&scores)[DOWN][ACROSS]) {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      float highest = maximum[i];
      UNROLL
      for (int j = 0; j < ACROSS; ++j) highest = max(highest, scores[i][j]);
      highest = row_max(highest);
      const float zero = highest == -infinity() ? 0.0f : highest;
      // 1 where the maximum stays: any other factor would be multiplied into the sums with every block of keys.
      const float shrink = exp2_fast((maximum[i] - zero) * arguments.scale_log2);
      maximum[i] = highest;
      float added = 0.0f;
      UNROLL
      for (int j = 0; j < ACROSS; ++j) {
        scores[i][j] = exp2_fast((scores[i][j] - zero) * arguments.scale_log2);
        added += scores[i][j];
      }
      sum[i] = multiply_add(sum[i], shrink, row_sum(added));
      UNROLL
      for (int c = 0; c < CHUNKS; ++c) {
        Float4& chunk = out[i][c];
        chunk = {chunk.x * shrink, chunk.y * shrink, chunk.z * shrink, chunk.w * shrink};
      }
    }
  }

  // Chunk `c` of row `i` of the state, or nothing where there is none.
  DEVICE Float4* chunk_of_state(int i, int c) const {
    const int chunk = simt_column() + SIMT_SIDE * c;
    if (first_row + i >= arguments.rows || 4 * chunk >= D) return nullptr;
    return reinterpret_cast<Float4*>(arguments.out + row_of_state(i) * D) + chunk;
  }

  DEVICE int64_t row_of_state(int i) const {
    return (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.rows + first_row + i;
  }

  DEVICE void load_state() {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      const bool exists = first_row + i < arguments.rows;
      maximum[i] = exists ? arguments.maximum[row_of_state(i)] : -infinity();
      sum[i] = exists ? arguments.sum[row_of_state(i)] : 0.0f;
      UNROLL
      for (int c = 0; c < CHUNKS; ++c) {
        const Float4* from = chunk_of_state(i, c);
        out[i][c] = from != nullptr ? *from : Float4{0.0f, 0.0f, 0.0f, 0.0f};
      }
    }
  }

  DEVICE void store_state() const {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      UNROLL
      for (int c = 0; c < CHUNKS; ++c) {
        Float4* to = chunk_of_state(i, c);
        if (to != nullptr) *to = out[i][c];
      }
      if (first_row + i >= arguments.rows || simt_column() != 0) continue;
      arguments.maximum[row_of_state(i)] = maximum[i];
      arguments.sum[row_of_state(i)] = sum[i];
    }
  }
};

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void forward_simt(const ForwardArguments& arguments) {
  using Forward = SimtForward<D, QueryBlock, KeyBlock>;
  static_assert(Threads == SIMT_THREADS && SharedBytes == Forward::SHARED_BYTES, "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Forward(arguments, shared).run();
}
