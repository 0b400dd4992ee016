// What the f32 generation shares: tiles of f32 rows in shared memory and products of them by ordinary multiply-adds, for inputs that the
// tensor cores would round.
//
// 256 threads stand 16 x 16. A thread owns `Down` neighbouring rows of the block that stays and every 16th row of the block that
// visits, so a product is made of 16-byte reads: of the rows that stay, the same for 16 threads; of those that visit, one
// each. The 16-byte chunks of row r lie at index XOR (r & 7), so eight threads read eight different groups of banks.
#pragma once
#include "../vocabulary/reductions.h"
#include "dropout.h"
#include "rows.h"

constexpr int SIMT_THREADS = 256, SIMT_SIDE = 16;

DEVICE int simt_row() { return static_cast<int>(threadIdx.x) / SIMT_SIDE; }
DEVICE int simt_column() { return static_cast<int>(threadIdx.x) % SIMT_SIDE; }

// Of rows of `Width` floats, a multiple of 32.
template <int Width> DEVICE uint32_t chunk_address(uint32_t tile, int row, int chunk) {
  return tile + row * Width * 4 + ((chunk ^ (row & 7)) << 4);
}

// Starts to copy rows 0 .. valid of `source`, `Columns` of each; zeros in the rows below.
template <int Rows, int Width, int Columns>
DEVICE void fill_floats(uint32_t tile, const float* source, int64_t stride, int valid) {
  constexpr int Chunks = Columns / 4;
  for (int i = threadIdx.x; i < Rows * Chunks; i += SIMT_THREADS) {
    const int row = i / Chunks, chunk = i % Chunks;
    copy_async(chunk_address<Width>(tile, row, chunk), source + row * stride + 4 * chunk, row < valid);
  }
}

// scores += rows that stay times rows that visit, over the four columns of `chunk`.
template <int Width, int Down, int Across>
DEVICE void add_products(float (&scores)[Down][Across], uint32_t stays, uint32_t visits, int chunk) {
  Float4 left[Down];
  UNROLL
  for (int i = 0; i < Down; ++i) left[i] = load_shared<Float4>(chunk_address<Width>(stays, simt_row() * Down + i, chunk));
  UNROLL
  for (int j = 0; j < Across; ++j) {
    const Float4 right = load_shared<Float4>(chunk_address<Width>(visits, simt_column() + SIMT_SIDE * j, chunk));
    UNROLL
    for (int i = 0; i < Down; ++i) {
      float& score = scores[i][j];
      score = multiply_add(left[i].x, right.x, score);
      score = multiply_add(left[i].y, right.y, score);
      score = multiply_add(left[i].z, right.z, score);
      score = multiply_add(left[i].w, right.w, score);
    }
  }
}

// scores = rows that stay times rows that visit, over `Columns`: the sum of sums over 16 each, which rounds less than one long sum.
template <int Width, int Columns, int Down, int Across>
DEVICE void multiply_rows(float (&scores)[Down][Across], uint32_t stays, uint32_t visits) {
  static_assert(Columns % 16 == 0, "pieces of 16 columns");
  UNROLL
  for (int i = 0; i < Down * Across; ++i) scores[i / Across][i % Across] = 0.0f;
  NO_UNROLL
  for (int first = 0; first < Columns / 4; first += 4) {
    float piece[Down][Across] = {};
    NO_UNROLL
    for (int chunk = first; chunk < first + 4; ++chunk) add_products<Width>(piece, stays, visits, chunk);
    UNROLL
    for (int i = 0; i < Down * Across; ++i) scores[i / Across][i % Across] += piece[i / Across][i % Across];
  }
}

// Weights to a tile of one row for each that stays and one column for each that visits.
template <int Down, int Across> DEVICE void store_weights(uint32_t tile, const float (&weights)[Down][Across]) {
  UNROLL
  for (int i = 0; i < Down; ++i) {
    UNROLL
    for (int j = 0; j < Across; ++j) {
      const int row = simt_row() * Down + i, column = simt_column() + SIMT_SIDE * j;
      store_shared(chunk_address<Across * SIMT_SIDE>(tile, row, column / 4) + column % 4 * 4, weights[i][j]);
    }
  }
}

DEVICE void add_scaled(Float4& sum, float factor, Float4 value) {
  sum.x = multiply_add(factor, value.x, sum.x);
  sum.y = multiply_add(factor, value.y, sum.y);
  sum.z = multiply_add(factor, value.z, sum.z);
  sum.w = multiply_add(factor, value.w, sum.w);
}

// sums += weights times rows that visit: a thread has chunks simt_column(), + 16, ... of its rows' sums.
template <int Width, int Visit, int Down, int Chunks>
DEVICE void add_weighted(Float4 (&sums)[Down][Chunks], uint32_t weights, uint32_t visits) {
  NO_UNROLL
  for (int four = 0; four < Visit / 4; ++four) {
    Float4 factors[Down];
    UNROLL
    for (int i = 0; i < Down; ++i) factors[i] = load_shared<Float4>(chunk_address<Visit>(weights, simt_row() * Down + i, four));
    UNROLL
    for (int visitor = 0; visitor < 4; ++visitor) {
      UNROLL
      for (int c = 0; c < Chunks; ++c) {
        const int chunk = simt_column() + SIMT_SIDE * c;
        const Float4 value = load_shared<Float4>(chunk_address<Width>(visits, 4 * four + visitor, chunk));
        UNROLL
        for (int i = 0; i < Down; ++i) {
          const Float4& f = factors[i];
          add_scaled(sums[i][c], visitor == 0 ? f.x : visitor == 1 ? f.y : visitor == 2 ? f.z : f.w, value);
        }
      }
    }
  }
}

// Scores of what a row does not see become -inf; column 0 of the block is `first`.
template <int Across> DEVICE void hide_unseen(float (&scores)[Across], const Spans& spans, int first) {
  UNROLL
  for (int j = 0; j < Across; ++j) {
    if (!sees(spans, first + simt_column() + SIMT_SIDE * j)) scores[j] = -infinity();
  }
}

// Over the 16 threads that own the same rows.
DEVICE float row_max(float value) {
  UNROLL
  for (int mask = SIMT_SIDE / 2; mask > 0; mask /= 2) value = max(value, shuffle_xor(value, mask));
  return value;
}
DEVICE float row_sum(float value) {
  UNROLL
  for (int mask = SIMT_SIDE / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

// How far apart rows of `dim` floats lie in a tile: a thread's chunks all have their place, if not their use.
constexpr int simt_width(int dim) { return (dim + 63) / 64 * 64; }
