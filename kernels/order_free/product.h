// A product of matrices whose elements have the same bits whatever rows are multiplied with them: of f32, an element is the sum,
// along its depth and in order, of sums over 16, by ordinary multiply-adds. 256 threads have a tile of 64 x 64.
#pragma once
#include "weights.h"

// c [rows, columns] = a [rows, depth] times b [depth, columns], summed in f32 and rounded once; or added to it. Of a and b one of
// the two steps is 1. Grid: `ceiling_divide(columns, 64)`, `ceiling_divide(rows, 64)` in x. Shared memory: 8 KiB.
struct ProductArguments {
  const void* a;
  const void* b;
  void* c;
  int64_t a_row, a_depth;      // elements from one row, one place along the depth, to the next
  int64_t b_depth, b_column;
  int64_t c_row;
  int rows, columns, depth;
  int onto;                    // 1: added to what is there
};

// A side of a product: of lines (rows of a, columns of b), elements along the depth.
template <typename T> struct Side {
  const T* start;
  int64_t line, along;   // steps
  int lines, depth;

  DEVICE float at(int64_t one, int64_t place) const {
    return one < lines && place < depth ? to_float(load(start + one * line + place * along)) : 0.0f;
  }

  // Copies 64 lines of 16 places each, as [place][line].
  DEVICE void fill(uint32_t to, int first, int place) const {
    const int thread = static_cast<int>(threadIdx.x);
    // Neighbouring threads read what lies together.
    const bool by_line = along == 1;
    const int own_line = by_line ? thread / 4 : thread % WEIGHT_SIDE * 4;
    const int own_place = by_line ? thread % 4 * 4 : thread / WEIGHT_SIDE;
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const int one = own_line + (by_line ? 0 : i), at_place = own_place + (by_line ? i : 0);
      store_shared(to + 4u * static_cast<uint32_t>(at_place * WEIGHT_TILE + one), at(first + one, place + at_place));
    }
  }
};

template <typename T, typename C> DEVICE void product(const ProductArguments& arguments) {
  SHARED_MEMORY(shared);
  const uint32_t left = shared_address(shared), right = left + 4 * WEIGHT_DEPTH * WEIGHT_TILE;
  const int across = ceiling_divide(arguments.columns, WEIGHT_TILE);
  const int row = static_cast<int>(blockIdx.x) / across * WEIGHT_TILE, column = static_cast<int>(blockIdx.x) % across * WEIGHT_TILE;
  const Side<T> a{static_cast<const T*>(arguments.a), arguments.a_row, arguments.a_depth, arguments.rows, arguments.depth};
  const Side<T> b{static_cast<const T*>(arguments.b), arguments.b_column, arguments.b_depth, arguments.columns, arguments.depth};
  float sums[WEIGHT_OWN][WEIGHT_OWN] = {};
  for (int place = 0; place < arguments.depth; place += WEIGHT_DEPTH) {
    a.fill(left, row, place);
    b.fill(right, column, place);
    __syncthreads();
    float pieces[WEIGHT_OWN][WEIGHT_OWN] = {};
    multiply_tiles(pieces, left, right);
    __syncthreads();
    UNROLL
    for (int i = 0; i < WEIGHT_OWN * WEIGHT_OWN; ++i) sums[i / WEIGHT_OWN][i % WEIGHT_OWN] += pieces[i / WEIGHT_OWN][i % WEIGHT_OWN];
  }
  UNROLL
  for (int i = 0; i < WEIGHT_OWN * WEIGHT_OWN; ++i) {
    const int own_row = row + weight_row() * WEIGHT_OWN + i / WEIGHT_OWN;
    const int own_column = column + weight_column() * WEIGHT_OWN + i % WEIGHT_OWN;
    if (own_row >= arguments.rows || own_column >= arguments.columns) continue;
    C* to = static_cast<C*>(arguments.c) + own_row * arguments.c_row + own_column;
    const float sum = sums[i / WEIGHT_OWN][i % WEIGHT_OWN];
    store_global(to, from_float<C>(arguments.onto != 0 ? to_float(load(to)) + sum : sum));
  }
}
