// The same products by tensor cores, for 16-bit numbers. An element depends on its row, its column and the depth alone: each
// instruction adds 16 places of the depth, in order, whichever of its 16 x 8 elements it is.
//
// Tiles in shared memory are panels (`../vocabulary/panels.h`) of 64 rows as the matrix lies in memory: lines (rows of a, columns of b)
// by places along the depth, or, where lines lie together, places by lines, which are then transposed as they are loaded.
#pragma once
#include "../vocabulary/matrix.h"
#include "../vocabulary/panels.h"
#include "product.h"

constexpr int TENSOR_DEPTH = 64, TENSOR_ROWS = 64;

// Copies 64 rows of `Columns` neighbours to a tile, `rows` by `columns` of which there are; zeros of others.
template <typename T, int Columns> DEVICE void fill_panels(uint32_t to, const T* from, int64_t step, int rows, int columns) {
  constexpr int Chunks = Columns / 8;
  const bool grouped = aligned(from) && step % 8 == 0;
  for (int i = threadIdx.x; i < TENSOR_ROWS * Chunks; i += OPERATOR_THREADS) {
    const int row = i / Chunks, column = i % Chunks * 8;
    const T* chunk = from + row * step + column;
    Words<4> words{};
    if (row < rows && column + 8 <= columns && grouped) {
      words = load(reinterpret_cast<const Words<4>*>(chunk));
    } else if (row < rows) {
      UNROLL
      for (int j = 0; j < 8; ++j) {
        const uint32_t bits = column + j < columns ? load(chunk + j).bits : 0;
        words.word[j / 2] |= bits << (j % 2 * 16);
      }
    }
    store_shared(to + panel_address(TENSOR_ROWS, row, column), words);
  }
}

// A side of a product as its tile lies: `by_line` of lines by places.
struct TensorTile {
  uint32_t start;
  bool by_line;

  // Four matrices of 8 x 8: lines `line` and 8 further, places `place` and 8 further; lines change first, or places.
  DEVICE void load_fragments(uint32_t (&r)[4], int line, int place, bool lines_first) const {
    const int matrix = lane_index() / 8, own = lane_index() % 8;
    const int first = matrix % 2 * 8, second = matrix / 2 * 8;
    line += lines_first ? first : second;
    place += lines_first ? second : first;
    if (by_line) {
      load_matrices(r, start + panel_address(TENSOR_ROWS, line + own, place));
    } else {
      load_matrices_transposed(r, start + panel_address(TENSOR_ROWS, place + own, line));
    }
  }
};

// sums += 16 lines of a by 8 * Across lines of b, over `depth` places, whole sixteens.
template <typename T, int Across>
DEVICE void multiply_fragments(float (&sums)[Across][4], TensorTile a, TensorTile b, int a_line, int b_line, int depth) {
  for (int place = 0; place < depth; place += 16) {
    uint32_t left[4];
    a.load_fragments(left, a_line, place, true);
    UNROLL
    for (int j = 0; j < Across; j += 2) {
      uint32_t right[4];
      b.load_fragments(right, b_line + 8 * j, place, false);
      multiply_add<T>(sums[j], left, right[0], right[1]);
      multiply_add<T>(sums[j + 1], left, right[2], right[3]);
    }
  }
}

// Row `half` of a thread's two in a fragment, and its first of two neighbouring columns.
DEVICE int tensor_row(int half) { return lane_index() / 4 + 8 * half; }
DEVICE int tensor_column() { return lane_index() % 4 * 2; }

constexpr int WEIGHT_LINES = 128;

// The gradient of a weight whose rows are whole rows of the table: 128 outputs by 64 inputs, 16 outputs to a warp.
// Grid: `ceiling_divide(outputs, 128) * (inputs / 64)`. Shared memory: 24 KiB.
template <typename T> struct TensorWeightSums {
  static constexpr int ACROSS = PARAMETER_ROW / 8, OWN = 2 * ACROSS;

  const WeightSumsArguments& arguments;
  RowBins<OWN> rows[2];
  float products[ACROSS][4];

  DEVICE explicit TensorWeightSums(const WeightSumsArguments& arguments) : arguments(arguments) {}

  DEVICE void run(uint32_t shared) {
    const int across = arguments.inputs / PARAMETER_ROW;
    const int output = static_cast<int>(blockIdx.x) / across * WEIGHT_LINES, part = static_cast<int>(blockIdx.x) % across;
    const TensorTile left{shared, false}, right{shared + TENSOR_ROWS * WEIGHT_LINES * 2, false};
    begin(output, across, part);
    for (int start = 0; start < arguments.tokens; start += arguments.block) {
      const int stop = min(start + arguments.block, arguments.tokens);
      UNROLL
      for (int i = 0; i < 4 * ACROSS; ++i) products[i / 4][i % 4] = 0.0f;
      for (int token = start; token < stop; token += TENSOR_DEPTH) {
        const int count = min(TENSOR_DEPTH, stop - token);
        fill(left, right, token, count, output, part * PARAMETER_ROW);
        __syncthreads();
        multiply_fragments<T>(products, left, right, warp_index() * 16, 0, ceiling_divide(count, 16) * 16);
        __syncthreads();
      }
      fold();
    }
    store(output, across, part);
  }

  DEVICE void fill(TensorTile left, TensorTile right, int token, int count, int output, int input) const {
    const T* dy = static_cast<const T*>(arguments.dy) + token * arguments.dy_step + output;
    const T* x = static_cast<const T*>(arguments.x) + static_cast<int64_t>(token) * arguments.inputs + input;
    fill_panels<T, WEIGHT_LINES>(left.start, dy, arguments.dy_step, count, arguments.outputs - output);
    fill_panels<T, PARAMETER_ROW>(right.start, x, arguments.inputs, count, PARAMETER_ROW);
  }

  // Cuts what a block came to; the four threads of a row know its largest number.
  DEVICE void fold() {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      float numbers[OWN];
      uint32_t most = 0;
      UNROLL
      for (int i = 0; i < OWN; ++i) {
        numbers[i] = products[i / 2][2 * half + i % 2];
        most = max(most, magnitude_bits(numbers[i]));
      }
      most = max(most, shuffle_xor(most, 1));
      rows[half].add(numbers, max(most, shuffle_xor(most, 2)), 0);
    }
  }

  // The thread's row in the table; null: there is none.
  DEVICE uint32_t* row_of(int output, int across, int part, int half) const {
    const int64_t row = output + warp_index() * 16 + tensor_row(half);
    return row < arguments.outputs ? arguments.sums + (row * across + part) * sums_length(PARAMETER_ROW) : nullptr;
  }

  static DEVICE int place_of(int index) {
    return index / OWN * PARAMETER_ROW + index % OWN / 2 * 8 + tensor_column() + index % 2;
  }

  DEVICE void begin(int output, int across, int part) {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      rows[half].clear();
      const uint32_t* row = row_of(output, across, part, half);
      if (row == nullptr) continue;
      UNROLL
      for (int i = 0; i < BINS * OWN; ++i) rows[half].bins[i / OWN][i % OWN] = load(row + place_of(i));
      rows[half].top = load(row + BINS * PARAMETER_ROW);
    }
    // All have read which bin is highest before one writes it.
    __syncthreads();
  }

  DEVICE void store(int output, int across, int part) const {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t* row = row_of(output, across, part, half);
      if (row == nullptr) continue;
      UNROLL
      for (int i = 0; i < BINS * OWN; ++i) store_global(row + place_of(i), rows[half].bins[i / OWN][i % OWN]);
      if (lane_index() % 4 == 0) store_global(row + BINS * PARAMETER_ROW, rows[half].top);
    }
  }
};

// Rows of weights that are no whole rows of the table are made by ordinary multiply-adds.
template <typename T> DEVICE void weight_sums_16(const WeightSumsArguments& arguments) {
  SHARED_MEMORY(shared);
  if (arguments.inputs % WEIGHT_TILE == 0) {
    TensorWeightSums<T>(arguments).run(shared_address(shared));
  } else {
    WeightSums<T>(arguments).run_any();
  }
}

// A side of a product in memory: of lines, and places along the depth, one of whose steps is 1.
template <typename T> struct TensorSide {
  const T* start;
  int64_t line, along;   // steps
  int lines, depth;

  DEVICE bool by_line() const { return along == 1; }

  // Copies 64 lines by 64 places.
  DEVICE void fill(TensorTile tile, int first, int place) const {
    const T* from = start + first * line + place * along;
    if (tile.by_line) {
      fill_panels<T, TENSOR_DEPTH>(tile.start, from, line, lines - first, depth - place);
    } else {
      fill_panels<T, TENSOR_DEPTH>(tile.start, from, along, depth - place, lines - first);
    }
  }
};

// See `ProductArguments`: 64 x 64 to a block, 16 rows by 32 columns to a warp; an element is the sum, in order, of sums over 64
// places. Shared memory: 16 KiB.
template <typename T, typename C> DEVICE void product_16(const ProductArguments& arguments) {
  SHARED_MEMORY(shared);
  constexpr int Across = 4;
  const int across = ceiling_divide(arguments.columns, WEIGHT_TILE);
  const int row = static_cast<int>(blockIdx.x) / across * WEIGHT_TILE, column = static_cast<int>(blockIdx.x) % across * WEIGHT_TILE;
  const TensorSide<T> a{static_cast<const T*>(arguments.a), arguments.a_row, arguments.a_depth, arguments.rows, arguments.depth};
  const TensorSide<T> b{static_cast<const T*>(arguments.b), arguments.b_column, arguments.b_depth, arguments.columns, arguments.depth};
  const TensorTile left{shared_address(shared), a.by_line()};
  const TensorTile right{left.start + TENSOR_ROWS * TENSOR_DEPTH * 2, b.by_line()};
  const int a_line = warp_index() % 4 * 16, b_line = warp_index() / 4 * 8 * Across;
  float sums[Across][4] = {};
  for (int place = 0; place < arguments.depth; place += TENSOR_DEPTH) {
    a.fill(left, row, place);
    b.fill(right, column, place);
    __syncthreads();
    float pieces[Across][4] = {};
    multiply_fragments<T>(pieces, left, right, a_line, b_line, TENSOR_DEPTH);
    __syncthreads();
    UNROLL
    for (int i = 0; i < 4 * Across; ++i) sums[i / 4][i % 4] += pieces[i / 4][i % 4];
  }
  UNROLL
  for (int i = 0; i < 4 * Across; ++i) {
    const int own_row = row + a_line + tensor_row(i % 4 / 2), own_column = column + b_line + i / 4 * 8 + tensor_column() + i % 2;
    if (own_row >= arguments.rows || own_column >= arguments.columns) continue;
    C* to = static_cast<C*>(arguments.c) + own_row * arguments.c_row + own_column;
    const float sum = sums[i / 4][i % 4];
    store_global(to, from_float<C>(arguments.onto != 0 ? to_float(load(to)) + sum : sum));
  }
}
