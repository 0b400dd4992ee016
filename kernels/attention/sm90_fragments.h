// Tiles, sums and fragments of a warpgroup's products (sm_90a), and the mask on sums.
//
// The sums of 64 rows x N columns lie in N / 2 registers of each of 128 threads: element 4 * j + 2 * r + e is that of row
// `sums_row() + 8 * r`, column 8 * j + `sums_column()` + e. Rounded in pairs, the same registers are the left operand of a
// product whose sum runs along those columns: fragment k has columns 16 * k .. 16 * k + 16.
#pragma once
#include "../vocabulary/panels.h"
#include "../vocabulary/spans.h"
#include "../vocabulary/warpgroup.h"

namespace sm90 {

DEVICE int sums_thread() { return afresh(static_cast<int>(threadIdx.x)) & 127; }
DEVICE int sums_row() {
  const int thread = sums_thread();
  return thread / 32 * 16 + thread % 32 / 4;
}
DEVICE int sums_column() { return sums_thread() % 4 * 2; }

// The order in which sums of 64 rows x `Columns` go to global memory, the four of a lane and the 32 lanes of a warp next to each
// other: [rows / 16, columns / 8, lane, element]. Where this thread's first four are; eight columns further are 128 numbers.
template <int Columns> DEVICE int lane_order() {
  const int thread = sums_thread();
  return thread / 32 * 16 * Columns + thread % 32 * 4;
}

// A tile of `Rows` rows in shared memory, in panels, as an operand.
template <int Rows> struct Tile {
  static constexpr int panel = Rows * PANEL_ROW_BYTES;
  uint32_t address;

  // The sum runs along the columns: the operand's own rows are those of the tile, from row `first` on, a multiple of 8.
  DEVICE uint64_t along_rows(int first = 0) const { return descriptor(address + first * PANEL_ROW_BYTES, 16, 1024); }
  static DEVICE constexpr uint64_t column_step(int k) { return (k % 4 * 32 + k / 4 * panel) >> 4; }

  // The sum runs down the rows: the operand's own rows are the columns of the tile, from a panel on.
  DEVICE uint64_t down_columns(int first_panel = 0) const { return descriptor(address + first_panel * panel, panel, 1024); }
  static DEVICE constexpr uint64_t row_step(int k) { return k * 16 * PANEL_ROW_BYTES >> 4; }
};

// What the registers hold is not needed: else the compiler keeps old sums for a product that does not read them. No
// instruction comes of it.
template <int Count> DEVICE void forget(float (&sums)[Count]) {
  UNROLL
  for (int i = 0; i < Count; ++i) sums[i] = 0.0f;
}

// Products write registers when they like: what was written to them before is ordered by a fence, in each of the following
// (PTX ISA, wgmma.fence).

// Starts sums = left right^T over `Depth` columns of both; N rows of `right`.
template <typename T, int N, int Depth, int LeftRows, int RightRows>
DEVICE void multiply_rows(float (&sums)[N / 2], const Tile<LeftRows>& left, int left_first, const Tile<RightRows>& right) {
  const uint64_t a = left.along_rows(left_first), b = right.along_rows();
  forget(sums);
  warpgroup_fence();
  UNROLL
  for (int k = 0; k < Depth / 16; ++k) {
    multiply_shared<T, N, false, false>(sums, a + left.column_step(k), b + right.column_step(k), k > 0);
  }
}

// Starts sums += left right, left from registers, over all `Rows` rows of `right`; N columns from a panel on. Who awaits it holds
// both.
template <typename T, int N, int Rows>
DEVICE void multiply_fragments(float (&sums)[N / 2], uint32_t (&left)[Rows / 16][4], const Tile<Rows>& right,
                               int right_panel = 0) {
  const uint64_t b = right.down_columns(right_panel);
  warpgroup_hold(sums);
  warpgroup_hold(left);
  warpgroup_fence();
  UNROLL
  for (int k = 0; k < Rows / 16; ++k) multiply_registers<T, N, true>(sums, left[k], b + right.row_step(k));
}

// Starts sums = left^T right over all `Rows` rows of both: 64 columns of `left` from a panel on, N of `right` from a panel on.
template <typename T, int N, int Rows>
DEVICE void multiply_columns(float (&sums)[N / 2], const Tile<Rows>& left, int left_panel, const Tile<Rows>& right,
                             int right_panel) {
  const uint64_t a = left.down_columns(left_panel), b = right.down_columns(right_panel);
  forget(sums);
  warpgroup_fence();
  UNROLL
  for (int k = 0; k < Rows / 16; ++k) {
    multiply_shared<T, N, true, true>(sums, a + left.row_step(k), b + right.row_step(k), k > 0);
  }
}

// Sums, rounded, as left operands.
template <typename T, int N> DEVICE void round_sums(uint32_t (&fragments)[N / 16][4], const float (&sums)[N / 2]) {
  UNROLL
  for (int k = 0; k < N / 16; ++k) {
    UNROLL
    for (int e = 0; e < 4; ++e) fragments[k][e] = pack<T>(sums[8 * k + 2 * e], sums[8 * k + 2 * e + 1]);
  }
}

// The mask of 128 columns of one row of sums as a word: bit 2 * j + e says whether column 8 * j + e from the thread's first column
// on is seen. However many intervals a row has, an element costs the test of a bit.
DEVICE uint32_t columns_before(int limit) {
  const int count = min(max(2 * (limit >> 3) + min(limit & 7, 2), 0), 32);
  return count == 32 ? ~0u : (1u << count) - 1u;
}
DEVICE uint32_t columns_seen(const Spans& spans, int first_column) {
  const int from = first_column + sums_column();
  return (columns_before(spans.end[0] - from) & ~columns_before(spans.start[0] - from)) |
         (columns_before(spans.end[1] - from) & ~columns_before(spans.start[1] - from));
}

// What a thread's two rows see of N columns.
template <int N> struct Seen {
  static constexpr int words = ceiling_divide(N, 128);
  uint32_t rows[2][words];

  // `spans` are those of the tile's 64 rows from `first` on, of which `rows_there` exist.
  DEVICE void look(const Spans* spans, int first, int rows_there, int first_column) {
    const int row = first + sums_row();
    Int4 of_row[2];
    UNROLL
    for (int r = 0; r < 2; ++r) {
      of_row[r] = load_global(reinterpret_cast<const Int4*>(spans + min(row + 8 * r, rows_there - 1)));
    }
    UNROLL
    for (int r = 0; r < 2; ++r) {
      UNROLL
      for (int word = 0; word < words; ++word) {
        const int column = first_column + 128 * word;
        rows[r][word] = row + 8 * r < rows_there ? columns_seen(bits_as<Spans>(of_row[r]), column) : 0;
      }
    }
  }

  // What is not seen weighs nothing.
  DEVICE void hide(float (&sums)[N / 2]) const {
    UNROLL
    for (int i = 0; i < N / 2; ++i) {
      const int bit = i / 4 * 2 + i % 2;
      sums[i] = (rows[i / 2 % 2][bit / 32] >> bit % 32 & 1u) != 0 ? sums[i] : -infinity();
    }
  }
};

}  // namespace sm90
