// Backward in f32, in a fixed order: one kernel whose blocks own keys, one whose blocks own queries. Both are the same work with
// the sides exchanged: a block of rows stays, blocks of the other side visit, and of each pair of rows
//
//   weight = exp2(scale_log2 * first . first - lse_log2), slope = weight * (factor * second . second - delta)
//
// where the first are queries and keys, the second gradients of the output and values. Values meet weight * factor: 1, or what
// dropout makes of the pair.
#pragma once
#include "simt_tiles.h"

template <int D, int Stay, int Visit> struct SimtPairs {
  static constexpr int WIDTH = simt_width(D), DOWN = Stay / SIMT_SIDE, ACROSS = Visit / SIMT_SIDE;
  static constexpr int CHUNKS = WIDTH / 4 / SIMT_SIDE;
  static constexpr int STAY_BYTES = Stay * WIDTH * 4, VISIT_BYTES = Visit * WIDTH * 4, WEIGHT_BYTES = Stay * Visit * 4;
  static constexpr int SHARED_BYTES = 2 * STAY_BYTES + 2 * VISIT_BYTES + 2 * WEIGHT_BYTES;

  using Sums = Float4[DOWN][CHUNKS];
  // Of the query of each pair.
  struct Numbers {
    float lse_log2[DOWN][ACROSS], delta[DOWN][ACROSS];
  };
  using Factors = float[DOWN][ACROSS];

  const uint32_t stay_first, stay_second, visit_first, visit_second, weights_tile, slopes_tile;   // shared memory
  float weights[DOWN][ACROSS], slopes[DOWN][ACROSS];

  DEVICE explicit SimtPairs(const void* shared)
      : stay_first(shared_address(shared)),
        stay_second(stay_first + STAY_BYTES),
        visit_first(stay_second + STAY_BYTES),
        visit_second(visit_first + VISIT_BYTES),
        weights_tile(visit_second + VISIT_BYTES),
        slopes_tile(weights_tile + WEIGHT_BYTES) {}

  template <int Rows>
  DEVICE void fill(uint32_t to, const void* from, const Strides& strides, int batch, int head, int first, int rows) const {
    fill_floats<Rows, WIDTH, D>(to, row_start<float>(from, strides, batch, head, first), strides.row, rows - first);
  }

  DEVICE void multiply() {
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    multiply_rows<WIDTH, D>(weights, stay_first, visit_first);
    multiply_rows<WIDTH, D>(slopes, stay_second, visit_second);
  }

  // `list`: what the `rows` rows that stay see, or are seen by.
  DEVICE void hide(const Spans* list, int visibilities, int rows, int batch, int first_stay, int first_visit) {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      hide_unseen(weights[i], spans_of(list, visibilities, rows, batch, first_stay + simt_row() * DOWN + i), first_visit);
    }
  }

  DEVICE void weigh(float scale_log2, const Numbers& numbers, const Factors& factors) {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      UNROLL
      for (int j = 0; j < ACROSS; ++j) {
        const float weight = exp2_fast(multiply_add(weights[i][j], scale_log2, -numbers.lse_log2[i][j]));
        slopes[i][j] = weight * (slopes[i][j] * factors[i][j] - numbers.delta[i][j]);
        weights[i][j] = weight * factors[i][j];
      }
    }
    store_weights(weights_tile, weights);
    store_weights(slopes_tile, slopes);
    __syncthreads();
  }

  // Adds a thread's sums to its rows, of `left` that there are.
  DEVICE void add_to(float* rows, int left, const Sums& sums, float factor) const {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      const int row = simt_row() * DOWN + i;
      UNROLL
      for (int c = 0; c < CHUNKS; ++c) {
        const int chunk = simt_column() + SIMT_SIDE * c;
        if (row >= left || 4 * chunk >= D) continue;
        add_scaled(reinterpret_cast<Float4*>(rows + static_cast<int64_t>(row) * D)[chunk], factor, sums[i][c]);
      }
    }
  }
};

template <int Down, int Chunks> DEVICE void set_zero(Float4 (&sums)[Down][Chunks]) {
  UNROLL
  for (int i = 0; i < Down * Chunks; ++i) sums[i / Chunks][i % Chunks] = {0.0f, 0.0f, 0.0f, 0.0f};
}

// dk and dv of a block of keys: all queries of the group's heads that see any of them visit.
template <int D, int QueryBlock, int KeyBlock> struct SimtKeys {
  using Pairs = SimtPairs<D, KeyBlock, QueryBlock>;

  const BackwardArguments& arguments;
  const Keys& tile;
  const int batch, head, first_key;   // of keys and values
  Pairs pairs;
  typename Pairs::Sums dk, dv;

  DEVICE SimtKeys(const BackwardArguments& arguments, const void* shared)
      : arguments(arguments),
        tile(arguments.tiles[blockIdx.z % arguments.tiles.count]),
        batch(blockIdx.z / arguments.tiles.count),
        head(blockIdx.y),
        first_key(blockIdx.x * KeyBlock),
        pairs(shared) {}

  DEVICE void run() {
    if (first_key >= tile.rows) return;
    const Reach& reach = reach_of<KeyBlock>(tile.key_blocks, tile.visibilities, tile.rows, batch, blockIdx.x);
    const BlockWalk<QueryBlock> walk(reach);
    set_zero(dk);
    set_zero(dv);
    pairs.template fill<KeyBlock>(pairs.stay_first, tile.k, tile.strides, batch, head, first_key, tile.rows);
    pairs.template fill<KeyBlock>(pairs.stay_second, tile.v, tile.strides, batch, head, first_key, tile.rows);
    for (int of_group = 0; of_group < arguments.group; ++of_group) {
      for (int i = 0; i < walk.count(); ++i) {
        add(head * arguments.group + of_group, walk.block(i) * QueryBlock, reach);
        __syncthreads();
      }
    }
    copy_wait<0>();
    const int64_t kv_heads = arguments.heads / arguments.group;
    const int64_t own = ((batch * kv_heads + head) * tile.rows + first_key) * D;
    pairs.add_to(tile.dk + own, tile.rows - first_key, dk, arguments.scale);
    pairs.add_to(tile.dv + own, tile.rows - first_key, dv, 1.0f);
  }

  DEVICE void add(int query_head, int first, const Reach& reach) {
    const Strides &of_q = arguments.q_strides, &of_gradient = arguments.gradient_strides;
    pairs.template fill<QueryBlock>(pairs.visit_first, arguments.q, of_q, batch, query_head, first, arguments.rows);
    pairs.template fill<QueryBlock>(pairs.visit_second, arguments.gradient, of_gradient, batch, query_head, first, arguments.rows);
    pairs.multiply();
    const bool full = is_full(reach, first, first + QueryBlock) && first_key + KeyBlock <= tile.rows;
    if (!full) pairs.hide(tile.keys, tile.visibilities, tile.rows, batch, first_key, first);
    const int64_t row = (static_cast<int64_t>(batch) * arguments.heads + query_head) * arguments.padded + first + simt_column();
    typename Pairs::Numbers numbers;
    UNROLL
    for (int i = 0; i < Pairs::DOWN * Pairs::ACROSS; ++i) {
      const int down = i / Pairs::ACROSS, across = i % Pairs::ACROSS;
      numbers.lse_log2[down][across] = load_global(arguments.lse_log2 + row + SIMT_SIDE * across);
      numbers.delta[down][across] = load_global(arguments.delta + row + SIMT_SIDE * across);
    }
    typename Pairs::Factors factors;
    find_factors(factors, query_head, first);
    pairs.weigh(arguments.scale_log2, numbers, factors);
    add_weighted<Pairs::WIDTH, QueryBlock>(dv, pairs.weights_tile, pairs.visit_second);
    add_weighted<Pairs::WIDTH, QueryBlock>(dk, pairs.slopes_tile, pairs.visit_first);
  }

  DEVICE void find_factors(typename Pairs::Factors& factors, int query_head, int first) const {
    const auto key_of = [&](int i) { return first_key + simt_row() * Pairs::DOWN + i; };
    UNROLL
    for (int j = 0; j < Pairs::ACROSS; ++j) {
      const int query = first + simt_column() + SIMT_SIDE * j;
      const uint32_t kept = kept_bits(tile, batch, query_head, arguments.rows, query, Pairs::DOWN, key_of);
      UNROLL
      for (int i = 0; i < Pairs::DOWN; ++i) factors[i][j] = weight_factor(tile, kept, i);
    }
  }
};

// dq of a block of queries, before the scale: all keys that any of them sees visit, of all tiles. In rows.
template <int D, int QueryBlock, int KeyBlock> struct SimtQueries {
  using Pairs = SimtPairs<D, QueryBlock, KeyBlock>;

  const BackwardArguments& arguments;
  const int batch, head, query_block, first_query;
  Pairs pairs;
  typename Pairs::Sums dq;

  DEVICE SimtQueries(const BackwardArguments& arguments, const void* shared)
      : arguments(arguments),
        batch(blockIdx.z),
        head(blockIdx.y),
        query_block(gridDim.x - 1 - blockIdx.x),
        first_query(query_block * QueryBlock),
        pairs(shared) {}

  DEVICE void run() {
    const Strides &of_q = arguments.q_strides, &of_gradient = arguments.gradient_strides;
    pairs.template fill<QueryBlock>(pairs.stay_first, arguments.q, of_q, batch, head, first_query, arguments.rows);
    pairs.template fill<QueryBlock>(pairs.stay_second, arguments.gradient, of_gradient, batch, head, first_query, arguments.rows);
    float* own = arguments.dq + (row_of_head() + first_query) * D;
    for (int i = 0; i < arguments.tiles.count; ++i) {
      set_zero(dq);
      add(arguments.tiles[i]);
      pairs.add_to(own, arguments.rows - first_query, dq, 1.0f);
    }
    copy_wait<0>();
  }

  DEVICE int64_t row_of_head() const { return (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.padded; }

  DEVICE void add(const Keys& tile) {
    const Reach& reach = reach_of<QueryBlock>(tile.query_blocks, tile.visibilities, arguments.rows, batch, query_block);
    const BlockWalk<KeyBlock> walk(reach);
    typename Pairs::Numbers numbers;
    UNROLL
    for (int i = 0; i < Pairs::DOWN * Pairs::ACROSS; ++i) {
      const int64_t row = row_of_head() + first_query + simt_row() * Pairs::DOWN + i / Pairs::ACROSS;
      numbers.lse_log2[i / Pairs::ACROSS][i % Pairs::ACROSS] = load_global(arguments.lse_log2 + row);
      numbers.delta[i / Pairs::ACROSS][i % Pairs::ACROSS] = load_global(arguments.delta + row);
    }
    const int kv_head = head / arguments.group;
    for (int i = 0; i < walk.count(); ++i) {
      const int first = walk.block(i) * KeyBlock;
      pairs.template fill<KeyBlock>(pairs.visit_first, tile.k, tile.strides, batch, kv_head, first, tile.rows);
      pairs.template fill<KeyBlock>(pairs.visit_second, tile.v, tile.strides, batch, kv_head, first, tile.rows);
      pairs.multiply();
      if (!is_full(reach, first, first + KeyBlock)) {
        pairs.hide(tile.queries, tile.visibilities, arguments.rows, batch, first_query, first);
      }
      typename Pairs::Factors factors;
      find_factors(factors, tile, first);
      pairs.weigh(arguments.scale_log2, numbers, factors);
      add_weighted<Pairs::WIDTH, KeyBlock>(dq, pairs.slopes_tile, pairs.visit_first);
      __syncthreads();
    }
  }

  DEVICE void find_factors(typename Pairs::Factors& factors, const Keys& tile, int first) const {
    const auto key_of = [&](int j) { return first + simt_column() + SIMT_SIDE * j; };
    UNROLL
    for (int i = 0; i < Pairs::DOWN; ++i) {
      const int query = first_query + simt_row() * Pairs::DOWN + i;
      const uint32_t kept = kept_bits(tile, batch, head, arguments.rows, query, Pairs::ACROSS, key_of);
      UNROLL
      for (int j = 0; j < Pairs::ACROSS; ++j) factors[i][j] = weight_factor(tile, kept, j);
    }
  }
};

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_keys_simt(const BackwardArguments& arguments) {
  using Backward = SimtKeys<D, QueryBlock, KeyBlock>;
  static_assert(Threads == SIMT_THREADS && SharedBytes == Backward::Pairs::SHARED_BYTES,
                "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Backward(arguments, shared).run();
}

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_queries_simt(const BackwardArguments& arguments) {
  using Backward = SimtQueries<D, QueryBlock, KeyBlock>;
  static_assert(Threads == SIMT_THREADS && SharedBytes == Backward::Pairs::SHARED_BYTES,
                "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Backward(arguments, shared).run();
}
