// What the kernels of the first generation (sm_80 and later) share: tiles of keys, values and queries in shared memory, filled row by
// row without waiting, and read as operands of the tensor cores.
//
// A tile has `Rows` rows of 16-bit numbers in swizzled panels of 64 columns (`panels.h`). The tensor cores take pieces of 16 x
// 16, four 8 x 8 matrices at once. Whether a piece is an operand's own or its transpose, and whether the second of the four
// matrices lies below or beside the first, is all that differs between the products:
//
//   left operand    stored [M, K]: as it is, below first      stored [K, M]: transposed, beside first
//   right operand   stored [N, K]: as it is, beside first     stored [K, N]: transposed, below first
//
// The row of a matrix that a lane reads is lane % 8, so the swizzle is the lane's own constant, and the address of any other
// piece differs by an XOR of the column bits and a constant. Eight rows of one matrix lie in eight different groups of banks.
#pragma once
#include "../vocabulary/matrix.h"
#include "../vocabulary/memory.h"
#include "../vocabulary/panels.h"

// Starts to copy rows 0 .. valid of `source`, `dim` numbers each, to a tile of `Columns` columns, a multiple of 16; zeros in the
// rows below and in columns from `dim`, a multiple of 8, on. Eight neighbouring threads read 128 bytes of a row.
template <int Threads, int Rows, int Columns, typename T>
DEVICE void fill_tile(uint32_t tile, const T* source, int64_t stride, int valid, int dim) {
  constexpr int Step = Threads / 8, Whole = Columns / PANEL_COLUMNS, Rest = Columns % PANEL_COLUMNS;
  static_assert(Rows % Step == 0 && Step % 8 == 0, "threads keep their place in the swizzle");
  const int thread = afresh(threadIdx.x), row = thread / 8, chunk = thread % 8;
  const uint32_t to = tile + panel_address(Rows, row, 8 * chunk);
  const T* from = source + row * stride + 8 * chunk;
  UNROLL
  for (int first = 0; first < Rows; first += Step) {
    const bool exists = first + row < valid;
    UNROLL
    for (int panel = 0; panel < Whole; ++panel) {
      const bool within = exists && panel * PANEL_COLUMNS + 8 * chunk < dim;
      copy_async(to + (panel * Rows + first) * PANEL_ROW_BYTES, from + panel * PANEL_COLUMNS, within);
    }
    if (Rest != 0 && chunk < Rest / 8) {
      const bool within = exists && Whole * PANEL_COLUMNS + 8 * chunk < dim;
      copy_async(to + (Whole * Rows + first) * PANEL_ROW_BYTES, from + Whole * PANEL_COLUMNS, within);
    }
    from += Step * stride;
  }
}

// A tile as this lane reads it: the address of its part of the piece at (0, 0), and of any other piece from there.
template <int Rows> struct Pieces {
  uint32_t at;

  static DEVICE uint32_t below_first(uint32_t tile) {
    const int lane = lane_index();
    return tile + panel_address(Rows, lane % 16, lane / 16 * 8);
  }

  static DEVICE uint32_t beside_first(uint32_t tile) {
    const int lane = lane_index();
    return tile + panel_address(Rows, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
  }

  // Both multiples of 16; the bits of the column must not carry into those of a column that was added before.
  DEVICE uint32_t piece(int row, int column) const {
    return (at ^ (column / 16 % 4 * 32)) + (column / PANEL_COLUMNS * Rows + row) * PANEL_ROW_BYTES;
  }
};

// Left operand of a product, stored [M, K], from row `first` on.
template <int Rows> struct LeftByRows : Pieces<Rows> {
  DEVICE explicit LeftByRows(uint32_t tile, int first = 0)
      : Pieces<Rows>{Pieces<Rows>::below_first(tile) + first * PANEL_ROW_BYTES} {}
  DEVICE void load(uint32_t (&fragment)[4], int m, int k) const { load_matrices(fragment, this->piece(16 * m, 16 * k)); }
};

// The same stored [K, M]: pieces first, first + turn, ... of its columns, where `turn` warps take turns.
template <int Rows> struct LeftByColumns : Pieces<Rows> {
  int turn;
  DEVICE LeftByColumns(uint32_t tile, int first, int turn)
      : Pieces<Rows>{Pieces<Rows>::beside_first(tile) ^ (first * 32)}, turn(turn) {}
  DEVICE void load(uint32_t (&fragment)[4], int m, int k) const {
    load_matrices_transposed(fragment, this->piece(16 * k, 16 * m * turn));
  }
};

// Right operand, stored [N, K], from row `first` on.
template <int Rows> struct RightByRows : Pieces<Rows> {
  DEVICE explicit RightByRows(uint32_t tile, int first = 0)
      : Pieces<Rows>{Pieces<Rows>::beside_first(tile) + first * PANEL_ROW_BYTES} {}
  DEVICE void load(uint32_t (&fragment)[4], int n, int k) const { load_matrices(fragment, this->piece(16 * n, 16 * k)); }
};

// The same stored [K, N]: pieces first, first + turn, ... of its columns, where `turn` warps take turns.
template <int Rows> struct RightByColumns : Pieces<Rows> {
  int turn;
  DEVICE explicit RightByColumns(uint32_t tile, int first = 0, int turn = 1)
      : Pieces<Rows>{Pieces<Rows>::below_first(tile) ^ (first * 32)}, turn(turn) {}
  DEVICE void load(uint32_t (&fragment)[4], int n, int k) const {
    load_matrices_transposed(fragment, this->piece(16 * k, 16 * n * turn));
  }
};

// Sums that were just made as the left operand of the next product: a fragment of sums is a fragment of operands, rounded.
template <typename T, int Down, int Across> struct LeftOfSums {
  const float (&sums)[Down][Across][4];
  DEVICE void load(uint32_t (&fragment)[4], int m, int k) const {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const float(&piece)[4] = sums[m][2 * k + half];
      fragment[2 * half] = pack<T>(piece[0], piece[1]);
      fragment[2 * half + 1] = pack<T>(piece[2], piece[3]);
    }
  }
};

// sums += left right over `Depth` columns of left; sums of 16 * Down rows and 8 * Across columns.
template <typename T, int Depth, int Down, int Across, typename Left, typename Right>
DEVICE void multiply_tiles(float (&sums)[Down][Across][4], const Left& left, const Right& right) {
  UNROLL
  for (int k = 0; k < Depth / 16; ++k) {
    uint32_t a[Down][4];
    UNROLL
    for (int m = 0; m < Down; ++m) left.load(a[m], m, k);
    UNROLL
    for (int n = 0; n < Across / 2; ++n) {
      uint32_t b[4];
      right.load(b, n, k);
      UNROLL
      for (int m = 0; m < Down; ++m) {
        multiply_add<T>(sums[m][2 * n], a[m], b[0], b[1]);
        multiply_add<T>(sums[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <int Down, int Across> DEVICE void set_zero(float (&sums)[Down][Across][4]) {
  UNROLL
  for (int m = 0; m < Down; ++m) {
    UNROLL
    for (int n = 0; n < Across; ++n) {
      UNROLL
      for (int e = 0; e < 4; ++e) sums[m][n][e] = 0.0f;
    }
  }
}

// Which row of a fragment's 16 a lane's elements 2 * half + {0, 1} are of, and the first of their columns.
DEVICE int fragment_row(int half) { return lane_index() / 4 + 8 * half; }
DEVICE int fragment_column() { return lane_index() % 4 * 2; }

// Sums to a shared tile, rounded: from row `row` and column `column` on, a multiple of 8 * Across. Eight rows go to eight
// different groups of banks.
template <typename T, int Rows, int Down, int Across>
DEVICE void store_tile(uint32_t tile, int row, int column, const float (&sums)[Down][Across][4]) {
  static_assert(8 % Across == 0, "the columns lie in one panel and do not carry");
  const uint32_t to = tile + panel_address(Rows, row + fragment_row(0), column) + 2 * fragment_column();
  UNROLL
  for (int m = 0; m < Down; ++m) {
    UNROLL
    for (int n = 0; n < Across; ++n) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = pack<T>(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
        store_shared((to ^ (n * 16)) + (16 * m + 8 * half) * PANEL_ROW_BYTES, pair);
      }
    }
  }
}
