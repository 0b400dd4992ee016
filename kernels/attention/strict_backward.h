// Backward with order-free sums: a block of rows stays, strict blocks of the other side visit, as in `simt_backward.h`. What a
// strict block of queries of a head and a key come to, or a strict block of keys and a query, is added to its sums at once.
#pragma once
#include "strict_tiles.h"

template <typename T, int D, int Stay, int Visit> struct StrictPairs {
  static constexpr int DOWN = Stay / SIMT_SIDE, ACROSS = Visit / SIMT_SIDE, CHUNKS = D / 4 / SIMT_SIDE;
  static constexpr int STAY_BYTES = Stay * D * 4, VISIT_BYTES = Visit * D * 4, WEIGHT_BYTES = Stay * Visit * 4;
  static constexpr int SHARED_BYTES = 2 * STAY_BYTES + 2 * VISIT_BYTES + 2 * WEIGHT_BYTES;

  using Partial = StrictPartial<DOWN, CHUNKS>;
  using Sums = StrictSums<DOWN, CHUNKS>;
  using Factors = float[DOWN][ACROSS];
  // Of a query.
  struct Numbers {
    float lse_log2, delta;
  };

  const uint32_t stay_first, stay_second, visit_first, visit_second, weights_tile, slopes_tile;   // shared memory
  const int dim;
  float weights[DOWN][ACROSS], slopes[DOWN][ACROSS];

  DEVICE StrictPairs(const void* shared, int dim)
      : stay_first(shared_address(shared)),
        stay_second(stay_first + STAY_BYTES),
        visit_first(stay_second + STAY_BYTES),
        visit_second(visit_first + VISIT_BYTES),
        weights_tile(visit_second + VISIT_BYTES),
        slopes_tile(weights_tile + WEIGHT_BYTES),
        dim(dim) {}

  DEVICE int chunks() const { return ceiling_divide(dim, 4); }

  DEVICE void fill_stay(uint32_t to, const void* from, const Strides& strides, int batch, int head, int first, int rows) const {
    fill_strict<T, D>(to, row_start<T>(from, strides, batch, head, first), strides.row, rows - first, Stay, dim);
  }

  DEVICE void fill_visit(uint32_t to, const void* from, const Strides& strides, int batch, int head, int first, int count) const {
    fill_strict<T, D>(to, row_start<T>(from, strides, batch, head, first), strides.row, count, filled_rows(count), dim);
  }

  DEVICE void multiply_both(int count) {
    __syncthreads();
    multiply_strict<D>(weights, stay_first, visit_first, chunks(), count);
    multiply_strict<D>(slopes, stay_second, visit_second, chunks(), count);
  }

  // `list`: what the `rows` rows that stay see, or are seen by; visitors from `count` on are not there.
  DEVICE void hide(const Spans* list, int visibilities, int rows, int batch, int first_stay, int first_visit, int count) {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      hide_unseen(weights[i], spans_of(list, visibilities, rows, batch, first_stay + simt_row() * DOWN + i), first_visit);
      UNROLL
      for (int j = 0; j < ACROSS; ++j) {
        if (simt_column() + SIMT_SIDE * j >= count) weights[i][j] = -infinity();
      }
    }
  }

  template <typename NumbersOf> DEVICE void weigh(float scale_log2, const Factors& factors, NumbersOf numbers_of) {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      UNROLL
      for (int j = 0; j < ACROSS; ++j) {
        const Numbers numbers = numbers_of(i, j);
        const float weight = exp2_fast(multiply_add(weights[i][j], scale_log2, -numbers.lse_log2));
        slopes[i][j] = multiply(weight, multiply_add(slopes[i][j], factors[i][j], -numbers.delta));
        weights[i][j] = multiply(weight, factors[i][j]);
      }
    }
    store_weights(weights_tile, weights);
    store_weights(slopes_tile, slopes);
    __syncthreads();
  }

  DEVICE void add_to(Partial& partial, uint32_t weights_of, uint32_t visits, int count) const {
    partial.template add<D, Visit>(weights_of, visits, chunks(), count);
  }

  static DEVICE void add_to_sums(Sums& sums, Partial& partial, float factor) {
    const int shifts[DOWN] = {};
    sums.add(partial, factor, shifts);
    partial.clear();
  }
};

// dk and dv of a block of keys: all strict blocks of queries, of the group's heads, that see any of them visit.
template <typename T, int D, int QueryBlock, int KeyBlock> struct StrictKeys {
  using Pairs = StrictPairs<T, D, KeyBlock, QueryBlock>;

  const StrictBackwardArguments& arguments;
  const Keys& tile;
  const int batch, head, first_key;   // of keys and values
  Pairs pairs;
  typename Pairs::Partial dk, dv;
  typename Pairs::Sums dk_sums, dv_sums;

  DEVICE StrictKeys(const StrictBackwardArguments& arguments, const void* shared)
      : arguments(arguments),
        tile(arguments.tiles[blockIdx.z % arguments.tiles.count]),
        batch(blockIdx.z / arguments.tiles.count),
        head(blockIdx.y),
        first_key(blockIdx.x * KeyBlock),
        pairs(shared, arguments.dim) {}

  DEVICE void run() {
    if (first_key >= tile.rows) return;
    const int left = tile.rows - first_key, dim = arguments.dim;
    const int64_t kv_heads = arguments.heads / arguments.group;
    const int64_t own = ((batch * kv_heads + head) * tile.rows + first_key) * sums_length(dim);
    uint32_t *dk_table = reinterpret_cast<uint32_t*>(tile.dk) + own, *dv_table = reinterpret_cast<uint32_t*>(tile.dv) + own;
    dk_sums.load_from(dk_table, left, dim);
    dv_sums.load_from(dv_table, left, dim);
    dk.clear();
    dv.clear();
    pairs.fill_stay(pairs.stay_first, tile.k, tile.strides, batch, head, first_key, tile.rows);
    pairs.fill_stay(pairs.stay_second, tile.v, tile.strides, batch, head, first_key, tile.rows);
    for (int i = 0; i < arguments.group; ++i) add_head(head * arguments.group + i);
    dk_sums.store_to(dk_table, left, dim);
    dv_sums.store_to(dv_table, left, dim);
  }

  DEVICE void add_head(int query_head) {
    const Reach& reach = reach_of<KeyBlock>(tile.key_blocks, tile.visibilities, tile.rows, batch, blockIdx.x);
    for_strict_blocks<QueryBlock>(
        tile.query_starts, reach, [&](int first, int count) { add(query_head, first, count, reach); },
        [&] {
          Pairs::add_to_sums(dk_sums, dk, arguments.scale);
          Pairs::add_to_sums(dv_sums, dv, 1.0f);
        });
  }

  DEVICE void add(int query_head, int first, int count, const Reach& reach) {
    __syncthreads();   // none reads the rows and weights of before
    pairs.fill_visit(pairs.visit_first, arguments.q, arguments.q_strides, batch, query_head, first, count);
    pairs.fill_visit(pairs.visit_second, arguments.gradient, arguments.gradient_strides, batch, query_head, first, count);
    pairs.multiply_both(count);
    const bool full = count == QueryBlock && is_full(reach, first, first + count) && first_key + KeyBlock <= tile.rows;
    if (!full) pairs.hide(tile.keys, tile.visibilities, tile.rows, batch, first_key, first, count);
    typename Pairs::Numbers numbers[Pairs::ACROSS];
    const int64_t row = (static_cast<int64_t>(batch) * arguments.heads + query_head) * arguments.rows + first;
    UNROLL
    for (int j = 0; j < Pairs::ACROSS; ++j) {
      const int visitor = simt_column() + SIMT_SIDE * j;
      numbers[j] = {0.0f, 0.0f};
      if (visitor < count) numbers[j] = {load_global(arguments.lse_log2 + row + visitor), load_global(arguments.delta + row + visitor)};
    }
    typename Pairs::Factors factors;
    find_factors(factors, query_head, first);
    pairs.weigh(arguments.scale_log2, factors, [&](int, int j) { return numbers[j]; });
    pairs.add_to(dv, pairs.weights_tile, pairs.visit_second, count);
    pairs.add_to(dk, pairs.slopes_tile, pairs.visit_first, count);
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

// dq of a block of queries: all strict blocks of keys that any of them sees visit, of all tiles.
template <typename T, int D, int QueryBlock, int KeyBlock> struct StrictQueries {
  using Pairs = StrictPairs<T, D, QueryBlock, KeyBlock>;

  const StrictBackwardArguments& arguments;
  const int batch, head, query_block, first_query;
  Pairs pairs;
  typename Pairs::Numbers numbers[Pairs::DOWN];
  typename Pairs::Partial dq;
  typename Pairs::Sums sums;

  DEVICE StrictQueries(const StrictBackwardArguments& arguments, const void* shared)
      : arguments(arguments),
        batch(blockIdx.z),
        head(blockIdx.y),
        query_block(gridDim.x - 1 - blockIdx.x),
        first_query(query_block * QueryBlock),
        pairs(shared, arguments.dim) {}

  DEVICE void run() {
    const Strides &of_q = arguments.q_strides, &of_gradient = arguments.gradient_strides;
    const int left = arguments.rows - first_query;
    const int64_t row = (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.rows + first_query;
    uint32_t* table = arguments.dq + row * sums_length(arguments.dim);
    sums.load_from(table, left, arguments.dim);
    dq.clear();
    pairs.fill_stay(pairs.stay_first, arguments.q, of_q, batch, head, first_query, arguments.rows);
    pairs.fill_stay(pairs.stay_second, arguments.gradient, of_gradient, batch, head, first_query, arguments.rows);
    UNROLL
    for (int i = 0; i < Pairs::DOWN; ++i) {
      const int own = simt_row() * Pairs::DOWN + i;
      numbers[i] = {0.0f, 0.0f};
      if (own < left) numbers[i] = {load_global(arguments.lse_log2 + row + own), load_global(arguments.delta + row + own)};
    }
    for (int i = 0; i < arguments.tiles.count; ++i) add_tile(arguments.tiles[i]);
    sums.store_to(table, left, arguments.dim);
  }

  DEVICE void add_tile(const Keys& tile) {
    const Reach& reach = reach_of<QueryBlock>(tile.query_blocks, tile.visibilities, arguments.rows, batch, query_block);
    for_strict_blocks<KeyBlock>(
        tile.key_starts, reach, [&](int first, int count) { add(tile, reach, first, count); },
        [&] { Pairs::add_to_sums(sums, dq, arguments.scale); });
  }

  DEVICE void add(const Keys& tile, const Reach& reach, int first, int count) {
    const int kv_head = head / arguments.group;
    __syncthreads();   // none reads the rows and weights of before
    pairs.fill_visit(pairs.visit_first, tile.k, tile.strides, batch, kv_head, first, count);
    pairs.fill_visit(pairs.visit_second, tile.v, tile.strides, batch, kv_head, first, count);
    pairs.multiply_both(count);
    if (count < KeyBlock || !is_full(reach, first, first + count)) {
      pairs.hide(tile.queries, tile.visibilities, arguments.rows, batch, first_query, first, count);
    }
    typename Pairs::Factors factors;
    find_factors(factors, tile, first);
    pairs.weigh(arguments.scale_log2, factors, [&](int i, int) { return numbers[i]; });
    pairs.add_to(dq, pairs.slopes_tile, pairs.visit_first, count);
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
DEVICE void strict_keys_simt(const StrictBackwardArguments& arguments) {
  using Backward = StrictKeys<T, D, QueryBlock, KeyBlock>;
  static_assert(Threads == SIMT_THREADS && SharedBytes == Backward::Pairs::SHARED_BYTES,
                "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Backward(arguments, shared).run();
}

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void strict_queries_simt(const StrictBackwardArguments& arguments) {
  using Backward = StrictQueries<T, D, QueryBlock, KeyBlock>;
  static_assert(Threads == SIMT_THREADS && SharedBytes == Backward::Pairs::SHARED_BYTES,
                "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Backward(arguments, shared).run();
}
