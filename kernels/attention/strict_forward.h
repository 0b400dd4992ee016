// Forward with order-free sums. Softmax is to the base 2, with each maximum of a strict block of keys rounded up to a multiple of
// the bins' width, so that going over to a larger one moves bins and rounds nothing:
//
//   s = scale log2(e) q kT     m = 13 ceil(max(s) / 13)     p = 2^(s - m)     of a row and a block of keys
//   out = sum of 2^m (p v) / sum of 2^m (sum of p)
#pragma once
#include "strict_tiles.h"

// Beyond it, in units of the bins' width, there are no bins for what is added.
constexpr float STRICT_MOST = 524288.0f;

// 2^exponent of at most 0; 0 below what f32 has.
DEVICE float shrinking(float exponent) {
  return exponent < -126.0f ? 0.0f : bits_as<float>(static_cast<uint32_t>(127 + static_cast<int>(exponent)) << 23);
}

template <typename T, int D, int QueryBlock, int KeyBlock> struct StrictForward {
  static constexpr int DOWN = QueryBlock / SIMT_SIDE, ACROSS = KeyBlock / SIMT_SIDE, CHUNKS = D / 4 / SIMT_SIDE;
  static constexpr int QUERY_BYTES = QueryBlock * D * 4, KEY_BYTES = KeyBlock * D * 4;
  static constexpr int SHARED_BYTES = QUERY_BYTES + 2 * KEY_BYTES + QueryBlock * KeyBlock * 4;

  const StrictForwardArguments& arguments;
  const int batch, head, query_block, first_row, chunks;   // first_row: of this thread
  const uint32_t queries, keys, values, weights;           // shared memory
  StrictSums<DOWN, CHUNKS> sums;
  RowBins<1> divisors[DOWN];
  // What the strict block that is under way came to so far.
  StrictPartial<DOWN, CHUNKS> out;
  float maximum[DOWN], sum[DOWN];

  DEVICE StrictForward(const StrictForwardArguments& arguments, const void* shared)
      : arguments(arguments),
        batch(blockIdx.z),
        head(blockIdx.y),
        query_block(gridDim.x - 1 - blockIdx.x),
        first_row(query_block * QueryBlock + simt_row() * DOWN),
        chunks(ceiling_divide(arguments.dim, 4)),
        queries(shared_address(shared)),
        keys(queries + QUERY_BYTES),
        values(keys + KEY_BYTES),
        weights(values + KEY_BYTES) {}

  DEVICE void run() {
    const int first = query_block * QueryBlock, left = arguments.rows - first, dim = arguments.dim;
    const int64_t row = (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.rows + first;
    uint32_t* out_table = arguments.out + row * sums_length(dim);
    uint32_t* divisor_table = arguments.sum + (row + simt_row() * DOWN) * sums_length(1);
    sums.load_from(out_table, left, dim);
    load_divisors(divisor_table);
    const T* q = row_start<T>(arguments.q, arguments.q_strides, batch, head, first);
    fill_strict<T, D>(queries, q, arguments.q_strides.row, left, QueryBlock, dim);
    begin();
    for (int i = 0; i < arguments.tiles.count; ++i) fold(arguments.tiles[i]);
    sums.store_to(out_table, left, dim);
    store_divisors(divisor_table);
  }

  DEVICE void fold(const Keys& tile) {
    const Reach& reach = reach_of<QueryBlock>(tile.query_blocks, tile.visibilities, arguments.rows, batch, query_block);
    for_strict_blocks<KeyBlock>(
        tile.key_starts, reach, [&](int first, int count) { attend(tile, reach, first, count); },
        [&] {
          end();
          begin();
        });
  }

  DEVICE void begin() {
    out.clear();
    UNROLL
    for (int i = 0; i < DOWN; ++i) maximum[i] = -infinity(), sum[i] = 0.0f;
  }

  DEVICE void attend(const Keys& tile, const Reach& reach, int first, int count) {
    __syncthreads();   // none reads the keys, values and weights of before
    fill(keys, tile.k, tile, first, count);
    fill(values, tile.v, tile, first, count);
    __syncthreads();
    float scores[DOWN][ACROSS];
    multiply_strict<D>(scores, queries, keys, chunks, count);
    if (count < KeyBlock || !is_full(reach, first, first + count)) hide(scores, tile, first, count);
    weigh(scores);
    if (tile.dropped != nullptr) drop(scores, tile, first);
    store_weights(weights, scores);
    __syncthreads();
    out.template add<D, KeyBlock>(weights, values, chunks, count);
  }

  DEVICE void fill(uint32_t to, const void* from, const Keys& tile, int first, int count) const {
    const T* start = row_start<T>(from, tile.strides, batch, head / arguments.group, first);
    fill_strict<T, D>(to, start, tile.strides.row, count, filled_rows(count), arguments.dim);
  }

  DEVICE void hide(float (&scores)[DOWN][ACROSS], const Keys& tile, int first, int count) const {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      hide_unseen(scores[i], spans_of(tile.queries, tile.visibilities, arguments.rows, batch, first_row + i), first);
      UNROLL
      for (int j = 0; j < ACROSS; ++j) {
        if (simt_column() + SIMT_SIDE * j >= count) scores[i][j] = -infinity();
      }
    }
  }

  // Weights that are left out add to no output, but stay in the sum that divides.
  DEVICE void drop(float (&weights_of)[DOWN][ACROSS], const Keys& tile, int first) const {
    const auto key_of = [&](int j) { return first + simt_column() + SIMT_SIDE * j; };
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      const uint32_t kept = kept_bits(tile, batch, head, arguments.rows, first_row + i, ACROSS, key_of);
      UNROLL
      for (int j = 0; j < ACROSS; ++j) weights_of[i][j] = multiply(weights_of[i][j], weight_factor(tile, kept, j));
    }
  }

  // Scores become weights relative to the block's maximum so far, in steps of the bins' width; what was summed before is brought
  // down to it.
  DEVICE void weigh(float (&scores)[DOWN][ACROSS]) {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      float highest = -infinity();
      UNROLL
      for (int j = 0; j < ACROSS; ++j) highest = max(highest, scores[i][j]);
      highest = multiply(row_max(highest), arguments.scale_log2);
      const float next = max(maximum[i], multiply(ceiling(highest / BIN_BITS), static_cast<float>(BIN_BITS)));
      const float zero = next == -infinity() ? 0.0f : next;
      const float shrink = shrinking(max(maximum[i] - zero, -1000.0f));
      maximum[i] = next;
      float added = 0.0f;
      UNROLL
      for (int j = 0; j < ACROSS; ++j) {
        scores[i][j] = exp2_fast(multiply_add(scores[i][j], arguments.scale_log2, -zero));
        added += scores[i][j];
      }
      sum[i] = multiply_add(sum[i], shrink, row_sum(added));
      UNROLL
      for (int c = 0; c < CHUNKS; ++c) {
        Float4& chunk = out.rows[i][c];
        chunk = {chunk.x * shrink, chunk.y * shrink, chunk.z * shrink, chunk.w * shrink};
      }
    }
  }

  // Adds what a strict block came to.
  DEVICE void end() {
    int shifts[DOWN];
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      const float most = maximum[i] / BIN_BITS;
      shifts[i] = 0;
      if (most == -infinity()) continue;
      if (!(absolute(most) <= STRICT_MOST)) {
        divisors[i].top = SPOILT;
        continue;
      }
      shifts[i] = static_cast<int>(most);
      const float divisor[1] = {sum[i]};
      divisors[i].add(divisor, magnitude_bits(sum[i]), shifts[i]);
    }
    sums.add(out, 1.0f, shifts);
  }

  DEVICE void load_divisors(const uint32_t* table) {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      divisors[i].clear();
      if (first_row + i >= arguments.rows) continue;
      const uint32_t* from = table + i * sums_length(1);
      UNROLL
      for (int bin = 0; bin < BINS; ++bin) divisors[i].bins[bin][0] = load(from + bin);
      divisors[i].top = load(from + BINS);
    }
    __syncwarp();
  }

  DEVICE void store_divisors(uint32_t* table) const {
    UNROLL
    for (int i = 0; i < DOWN; ++i) {
      if (first_row + i >= arguments.rows || simt_column() != 0) continue;
      uint32_t* to = table + i * sums_length(1);
      UNROLL
      for (int bin = 0; bin < BINS; ++bin) store_global(to + bin, divisors[i].bins[bin][0]);
      store_global(to + BINS, divisors[i].top);
    }
  }
};

template <typename T, int D, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void strict_forward_simt(const StrictForwardArguments& arguments) {
  using Forward = StrictForward<T, D, QueryBlock, KeyBlock>;
  static_assert(Threads == SIMT_THREADS && SharedBytes == Forward::SHARED_BYTES, "the table tells the host what the kernel needs");
  SHARED_MEMORY(shared);
  Forward(arguments, shared).run();
}

// After the last tile, one warp per row: the only division, in f64.
template <typename T, int...> DEVICE void strict_finish_rows(const StrictFinishArguments& arguments) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index();
  if (row >= arguments.rows) return;
  const int dim = arguments.dim;
  const uint32_t* sums = arguments.out + row * sums_length(dim);
  const uint32_t* divisor = arguments.sum + row * sums_length(1);
  const uint32_t top = load_global(sums + BINS * dim), divisor_top = load_global(divisor + BINS);
  const bool is_spoilt = top == SPOILT || divisor_top == SPOILT;
  const double sum = whole_sum(load_global(divisor), load_global(divisor + 1), load_global(divisor + 2));
  const int unit = is_spoilt ? 0 : unit_of(divisor_top);
  const double share = is_spoilt || sum == 0.0 ? 0.0 : power_of_two(unit_of(top) - unit) / sum;
  T* result = static_cast<T*>(arguments.result) + row * dim;
  for (int column = lane_index(); column < dim; column += 32) {
    const double whole = whole_sum(load_global(sums + column), load_global(sums + dim + column), load_global(sums + 2 * dim + column));
    store_global(result + column, from_float<T>(is_spoilt ? not_a_number() : static_cast<float>(whole * share)));
  }
  if (lane_index() != 0) return;
  const double lse = fma(static_cast<double>(unit), 0.6931471805599453, log(sum > 0.0 ? sum : 1.0));
  store_global(arguments.lse + row, is_spoilt ? not_a_number() : sum == 0.0 ? -infinity() : static_cast<float>(lse));
}
