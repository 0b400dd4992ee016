// What kernels of sm_100 are written in: products of tiles in shared memory on sums in tensor memory, and the mask of a row of sums.
#pragma once
#include "../vocabulary/tensor_memory.h"
#include "sm90_fragments.h"

namespace sm100 {

using sm90::Tile;

constexpr int KEEPER = 2;   // the warp that takes tensor memory and gives it back

// This warp's lanes of tensor memory.
DEVICE uint32_t own_lanes(uint32_t tensor) { return tensor + (static_cast<uint32_t>(warp_index() % 4 * 32) << 16); }

// What is computed from it is computed where it is used: kept from round to round it would not fit the registers of who multiplies.
DEVICE uint32_t here(uint32_t address) { return static_cast<uint32_t>(afresh(static_cast<int>(address))); }

// Operands: rows of a tile from `first` on, where the sum runs along them; or its columns, where it runs down the rows.
template <int Rows> DEVICE uint64_t along_rows(const Tile<Rows>& tile, int first = 0) {
  return tensor_descriptor(here(tile.address + static_cast<uint32_t>(first * PANEL_ROW_BYTES)), 16, 1024);
}
template <int Rows> DEVICE uint64_t down_columns(const Tile<Rows>& tile) {
  return tensor_descriptor(here(tile.address), tile.panel, 1024);
}

// Starts sums = left right^T over `Depth` columns of both; 128 rows of `left` from `first` on, all of `right`.
template <typename T, int Depth, int LeftRows, int RightRows>
DEVICE void multiply_rows(uint32_t sums, const Tile<LeftRows>& left, int first, const Tile<RightRows>& right) {
  const uint64_t a = along_rows(left, first), b = along_rows(right);
  constexpr uint32_t product = tensor_product<T, RightRows, false, false>();
  UNROLL
  for (int k = 0; k < Depth / 16; ++k) tensor_multiply(sums, a + left.column_step(k), b + right.column_step(k), product, k > 0);
}

// Starts sums = (adds ? sums : 0) + left right over all `Rows` rows of `right`, N of its columns; 16 columns of `left`, a pair to a
// word, from column `left_at(k)` of tensor memory on.
template <typename T, int N, int Rows, typename LeftAt>
DEVICE void multiply_stored(uint32_t sums, LeftAt left_at, const Tile<Rows>& right, bool adds) {
  const uint64_t b = down_columns(right);
  constexpr uint32_t product = tensor_product<T, N, false, true>();
  UNROLL
  for (int k = 0; k < Rows / 16; ++k) tensor_multiply(sums, left_at(k), b + right.row_step(k), product, adds || k > 0);
}

// The same, `left` by rows in shared memory: 128 of them, as many columns as `right` has rows.
template <typename T, int N, int LeftRows, int Rows>
DEVICE void multiply_by_columns(uint32_t sums, const Tile<LeftRows>& left, const Tile<Rows>& right, bool adds) {
  const uint64_t a = along_rows(left), b = down_columns(right);
  constexpr uint32_t product = tensor_product<T, N, false, true>();
  UNROLL
  for (int k = 0; k < Rows / 16; ++k) tensor_multiply(sums, a + left.column_step(k), b + right.row_step(k), product, adds || k > 0);
}

// Starts sums = left^T right over all `Rows` rows of both: 128 columns of `left`, N of `right`.
template <typename T, int N, int Rows>
DEVICE void multiply_columns(uint32_t sums, const Tile<Rows>& left, const Tile<Rows>& right) {
  const uint64_t a = down_columns(left), b = down_columns(right);
  constexpr uint32_t product = tensor_product<T, N, true, true>();
  UNROLL
  for (int k = 0; k < Rows / 16; ++k) tensor_multiply(sums, a + left.row_step(k), b + right.row_step(k), product, k > 0);
}

// Loads as many columns as there are registers, a multiple of 16.
template <int Count> DEVICE void load_columns(float (&registers)[Count], uint32_t address) {
  UNROLL
  for (int column = 0; column < Count; column += 16) tensor_load(registers + column, address + static_cast<uint32_t>(column));
  tensor_wait_loads(registers);
}

// Starts to store numbers, rounded, a pair to a column.
template <typename T, int Count> DEVICE void store_rounded(uint32_t address, const float (&numbers)[Count]) {
  UNROLL
  for (int first = 0; first < Count; first += 32) {
    uint32_t pairs[16];
    UNROLL
    for (int i = 0; i < 16; ++i) pairs[i] = pack<T>(numbers[first + 2 * i], numbers[first + 2 * i + 1]);
    tensor_store(address + static_cast<uint32_t>(first / 2), pairs);
  }
}

// A warp, when its loads and stores are complete: tells who waits at a barrier that counts warps.
DEVICE void tell_of_tensor(uint32_t barrier) {
  tensor_fence_before();
  __syncwarp();
  if (lane_index() == 0) barrier_arrive(barrier);
}

// What a row sees of N columns, a bit each.
template <int N> struct Seen {
  uint32_t words[N / 32];

  DEVICE Seen(const Spans& spans, int first) {
    UNROLL
    for (int word = 0; word < N / 32; ++word) {
      const int from = first + 32 * word;
      words[word] = (before(spans.end[0] - from) & ~before(spans.start[0] - from)) |
                    (before(spans.end[1] - from) & ~before(spans.start[1] - from));
    }
  }

  // What is not seen weighs nothing.
  DEVICE void hide(float (&scores)[N]) const {
    UNROLL
    for (int column = 0; column < N; ++column) {
      scores[column] = (words[column / 32] >> column % 32 & 1u) != 0 ? scores[column] : -infinity();
    }
  }

 private:
  static DEVICE uint32_t before(int limit) { return limit >= 32 ? ~0u : (1u << max(limit, 0)) - 1u; }
};

// What row `row` of `rows` sees; nothing where there is no such row.
DEVICE Spans spans_of(const Spans* spans, int row, int rows) {
  const Int4 found = load_global(reinterpret_cast<const Int4*>(spans + min(row, rows - 1)));
  return row < rows ? bits_as<Spans>(found) : sees_nothing();
}

}  // namespace sm100
