// Gradients of parameters that are no products: tables of order-free sums of what blocks of neighbouring tokens come to. One warp
// to a row of a table, whose bins stay in registers while blocks go by.
#pragma once
#include "tables.h"

// The sums of `partials` [count, width], each row of which a block of tokens came to: [ceiling_divide(width, 64), 193].
// Grid: `ceiling_divide(rows of the table, 8)`.
struct FoldPartialsArguments {
  const float* partials;
  uint32_t* sums;
  int64_t count;
  int width;
};

// Of a table of `rows` rows of `width`: for every token its row of dy, summed over a block's places of the same token.
// Grid: as above.
struct EmbeddingSumsArguments {
  const uint32_t* tokens;   // [count], in order; those that are not of the table last, in any
  const uint32_t* places;   // [count]: where each of them is in dy; those of a token ascend
  const void* dy;           // [count, width]
  uint32_t* sums;           // [ceiling_divide(rows * width, 64), 193]
  int64_t rows;             // tokens not below it are left out
  int count;
  int width;
  int block;                // places of a block
};

constexpr int ROW_LANES = PARAMETER_ROW / 32;

// A row of a parameter's table: a lane has every 32nd of its sums.
struct WarpRow {
  RowBins<ROW_LANES> own;

  DEVICE WarpRow() { own.clear(); }

  // All lanes of the warp.
  DEVICE void add(const float (&numbers)[ROW_LANES]) {
    uint32_t most = 0;
    UNROLL
    for (int i = 0; i < ROW_LANES; ++i) most = max(most, magnitude_bits(numbers[i]));
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) most = max(most, shuffle_xor(most, mask));
    own.add(numbers, most, 0);
  }

  DEVICE void store(uint32_t* row) const {
    UNROLL
    for (int i = 0; i < BINS * ROW_LANES; ++i) {
      store_global(row + i / ROW_LANES * PARAMETER_ROW + lane_index() + i % ROW_LANES * 32, own.bins[i / ROW_LANES][i % ROW_LANES]);
    }
    if (lane_index() == 0) store_global(row + BINS * PARAMETER_ROW, own.top);
  }
};

DEVICE void fold_partials(const FoldPartialsArguments& arguments) {
  const int64_t row = row_of_warp();
  if (row >= ceiling_divide(arguments.width, PARAMETER_ROW)) return;
  const int first = static_cast<int>(row) * PARAMETER_ROW + lane_index();
  WarpRow sums;
  for (int64_t block = 0; block < arguments.count; ++block) {
    const float* partial = arguments.partials + block * arguments.width;
    float numbers[ROW_LANES];
    UNROLL
    for (int i = 0; i < ROW_LANES; ++i) {
      const int column = first + 32 * i;
      numbers[i] = column < arguments.width ? load_global(partial + column) : 0.0f;
    }
    sums.add(numbers);
  }
  sums.store(arguments.sums + row * sums_length(PARAMETER_ROW));
}

// Where tokens not below `token` begin.
DEVICE int first_place(const EmbeddingSumsArguments& arguments, int64_t token) {
  int below = 0, end = arguments.count;
  while (below < end) {
    const int middle = below + (end - below) / 2;
    if (load_global(arguments.tokens + middle) < token) {
      below = middle + 1;
    } else {
      end = middle;
    }
  }
  return below;
}

// Adds what the places of a token come to, block by block, to those elements of a row from `first` on that are of the token.
template <typename T> DEVICE void add_token(const EmbeddingSumsArguments& arguments, int64_t token, int64_t first, WarpRow& sums) {
  const int width = arguments.width;
  const int64_t column = first + lane_index() - token * width;
  const T* dy = static_cast<const T*>(arguments.dy);
  int at = first_place(arguments, token);
  while (at < arguments.count && load_global(arguments.tokens + at) == token) {
    const uint32_t block = load_global(arguments.places + at) / static_cast<uint32_t>(arguments.block);
    float numbers[ROW_LANES] = {};
    for (; at < arguments.count && load_global(arguments.tokens + at) == token; ++at) {
      const uint32_t place = load_global(arguments.places + at);
      if (place / static_cast<uint32_t>(arguments.block) != block) break;
      UNROLL
      for (int i = 0; i < ROW_LANES; ++i) {
        if (column + 32 * i < 0 || column + 32 * i >= width) continue;
        numbers[i] += to_float(load_global(dy + static_cast<int64_t>(place) * width + column + 32 * i));
      }
    }
    sums.add(numbers);
  }
}

template <typename T> DEVICE void embedding_sums(const EmbeddingSumsArguments& arguments) {
  const int64_t row = row_of_warp(), elements = arguments.rows * arguments.width;
  if (row >= ceiling_divide(elements, static_cast<int64_t>(PARAMETER_ROW))) return;
  const int64_t first = row * PARAMETER_ROW, last = min(first + PARAMETER_ROW, elements) - 1;
  WarpRow sums;
  for (int64_t token = first / arguments.width; token <= last / arguments.width; ++token) {
    add_token<T>(arguments, token, first, sums);
  }
  sums.store(arguments.sums + row * sums_length(PARAMETER_ROW));
}
