// The gradient of a weight: `dyT x` of every block of tokens, each cut into bins while it is in registers. 256 threads stand
// 16 x 16 and have 64 rows of the table, of 64 sums each: four neighbouring ones of four neighbouring rows to a thread.
#pragma once
#include "parameters.h"

// dy [tokens, outputs], its rows dy_step elements apart, and x [tokens, inputs] without gaps, to a weight [outputs, inputs]:
// [ceiling_divide(outputs * inputs, 64), 193]. Tokens are whole blocks. Grid: `ceiling_divide(outputs, 64) * (inputs / 64)` where
// inputs are a multiple of 64 (of 16-bit numbers see `tensor.h`), else `ceiling_divide(rows of the table, 64)`. Shared memory: 8 KiB.
struct WeightSumsArguments {
  const void* dy;
  const void* x;
  uint32_t* sums;
  int64_t dy_step;
  int tokens;
  int block;      // tokens of a block
  int outputs;
  int inputs;
};

constexpr int WEIGHT_SIDE = 16, WEIGHT_TILE = 64, WEIGHT_OWN = WEIGHT_TILE / WEIGHT_SIDE, WEIGHT_DEPTH = 16;

DEVICE int weight_row() { return static_cast<int>(threadIdx.x) / WEIGHT_SIDE; }
DEVICE int weight_column() { return static_cast<int>(threadIdx.x) % WEIGHT_SIDE; }

// Four neighbours of a row from `column` on as f32, zeros from `end` on.
template <typename T> DEVICE Float4 four_of(const T* row, int column, int end, bool grouped) {
  float values[4] = {};
  if (grouped && column + 4 <= end) {
    read<T, 4>(row + column, values);
  } else {
    UNROLL
    for (int i = 0; i < 4; ++i) {
      if (column + i < end) values[i] = to_float(load(row + column + i));
    }
  }
  return {values[0], values[1], values[2], values[3]};
}

DEVICE float of_four(const Float4& four, int index) {
  return index == 0 ? four.x : index == 1 ? four.y : index == 2 ? four.z : four.w;
}

// products += the thread's part of 16 places of 64 lines by 64, both as [place][line].
DEVICE void multiply_tiles(float (&products)[WEIGHT_OWN][WEIGHT_OWN], uint32_t left, uint32_t right) {
  for (int place = 0; place < WEIGHT_DEPTH; ++place) {
    const uint32_t row = 4u * static_cast<uint32_t>(place * WEIGHT_TILE);
    const Float4 a = load_shared<Float4>(left + row + 16u * static_cast<uint32_t>(weight_row()));
    const Float4 b = load_shared<Float4>(right + row + 16u * static_cast<uint32_t>(weight_column()));
    UNROLL
    for (int i = 0; i < WEIGHT_OWN * WEIGHT_OWN; ++i) {
      float& sum = products[i / WEIGHT_OWN][i % WEIGHT_OWN];
      sum = multiply_add(of_four(a, i / WEIGHT_OWN), of_four(b, i % WEIGHT_OWN), sum);
    }
  }
}

template <typename T> struct WeightSums {
  const WeightSumsArguments& arguments;
  RowBins<WEIGHT_OWN> rows[WEIGHT_OWN];
  float products[WEIGHT_OWN][WEIGHT_OWN];

  DEVICE explicit WeightSums(const WeightSumsArguments& arguments) : arguments(arguments) {}

  // Of the thread's row `i`: where it is in the table, whose rows from `first` on are `step` apart; null: there is none.
  DEVICE uint32_t* row_of(int64_t first, int64_t step, int64_t end, int i) const {
    const int64_t row = first + (weight_row() * WEIGHT_OWN + i) * step;
    return row < end ? arguments.sums + row * sums_length(PARAMETER_ROW) : nullptr;
  }

  DEVICE void begin(int64_t first, int64_t step, int64_t end) {
    UNROLL
    for (int i = 0; i < WEIGHT_OWN; ++i) {
      rows[i].clear();
      const uint32_t* row = row_of(first, step, end, i);
      if (row == nullptr) continue;
      UNROLL
      for (int j = 0; j < BINS * WEIGHT_OWN; ++j) {
        rows[i].bins[j / WEIGHT_OWN][j % WEIGHT_OWN] =
            load(row + j / WEIGHT_OWN * PARAMETER_ROW + weight_column() * WEIGHT_OWN + j % WEIGHT_OWN);
      }
      rows[i].top = load(row + BINS * PARAMETER_ROW);
    }
    // All have read which bin is highest before one writes it.
    __syncthreads();
  }

  DEVICE void store(int64_t first, int64_t step, int64_t end) const {
    UNROLL
    for (int i = 0; i < WEIGHT_OWN; ++i) {
      uint32_t* row = row_of(first, step, end, i);
      if (row == nullptr) continue;
      UNROLL
      for (int j = 0; j < BINS * WEIGHT_OWN; ++j) {
        store_global(row + j / WEIGHT_OWN * PARAMETER_ROW + weight_column() * WEIGHT_OWN + j % WEIGHT_OWN,
                     rows[i].bins[j / WEIGHT_OWN][j % WEIGHT_OWN]);
      }
      if (weight_column() == 0) store_global(row + BINS * PARAMETER_ROW, rows[i].top);
    }
  }

  DEVICE void clear_products() {
    UNROLL
    for (int i = 0; i < WEIGHT_OWN * WEIGHT_OWN; ++i) products[i / WEIGHT_OWN][i % WEIGHT_OWN] = 0.0f;
  }

  // Cuts what a block came to; the 16 threads of a row know its largest number.
  DEVICE void fold() {
    UNROLL
    for (int i = 0; i < WEIGHT_OWN; ++i) {
      uint32_t most = 0;
      UNROLL
      for (int j = 0; j < WEIGHT_OWN; ++j) most = max(most, magnitude_bits(products[i][j]));
      UNROLL
      for (int mask = WEIGHT_SIDE / 2; mask > 0; mask /= 2) most = max(most, shuffle_xor(most, mask));
      rows[i].add(products[i], most, 0);
    }
  }

  // Copies `WEIGHT_DEPTH` tokens of 64 columns each of dy and of x.
  DEVICE void fill(uint32_t left, uint32_t right, int token, int end, int output, int input) const {
    const int of_tile = static_cast<int>(threadIdx.x) / WEIGHT_SIDE, column = weight_column() * 4;
    const uint32_t at = 4u * static_cast<uint32_t>(of_tile * WEIGHT_TILE + column);
    const bool exists = token + of_tile < end;
    const int64_t row = exists ? token + of_tile : token;
    const T* dy = static_cast<const T*>(arguments.dy) + row * arguments.dy_step;
    const T* x = static_cast<const T*>(arguments.x) + row * arguments.inputs;
    const bool grouped = aligned(arguments.dy) && arguments.dy_step % 4 == 0;
    store_shared(left + at, four_of(dy, output + column, exists ? arguments.outputs : 0, grouped));
    store_shared(right + at, four_of(x, input + column, exists ? arguments.inputs : 0, aligned(arguments.x)));
  }

  // Rows of the table are parts of rows of the weight: 64 outputs by 64 inputs, through shared memory.
  DEVICE void run_whole(uint32_t shared) {
    const int across = arguments.inputs / WEIGHT_TILE;
    const int output = static_cast<int>(blockIdx.x) / across * WEIGHT_TILE;
    const int part = static_cast<int>(blockIdx.x) % across;
    const int64_t first = static_cast<int64_t>(output) * across + part, end = static_cast<int64_t>(arguments.outputs) * across;
    const uint32_t left = shared, right = shared + 4 * WEIGHT_DEPTH * WEIGHT_TILE;
    begin(first, across, end);
    for (int start = 0; start < arguments.tokens; start += arguments.block) {
      const int stop = min(start + arguments.block, arguments.tokens);
      clear_products();
      for (int token = start; token < stop; token += WEIGHT_DEPTH) {
        fill(left, right, token, stop, output, part * WEIGHT_TILE);
        __syncthreads();
        multiply_tiles(products, left, right);
        __syncthreads();
      }
      fold();
    }
    store(first, across, end);
  }

  // Rows of the table go over the ends of rows of the weight: each thread reads what its elements are made of.
  DEVICE void run_any() {
    const int64_t elements = static_cast<int64_t>(arguments.outputs) * arguments.inputs;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * WEIGHT_TILE, end = ceiling_divide(elements, static_cast<int64_t>(PARAMETER_ROW));
    begin(first, 1, end);
    for (int start = 0; start < arguments.tokens; start += arguments.block) {
      clear_products();
      UNROLL
      for (int i = 0; i < WEIGHT_OWN * WEIGHT_OWN; ++i) {
        const int64_t row = first + weight_row() * WEIGHT_OWN + i / WEIGHT_OWN;
        const int64_t element = row * PARAMETER_ROW + weight_column() * WEIGHT_OWN + i % WEIGHT_OWN;
        if (element < elements) products[i / WEIGHT_OWN][i % WEIGHT_OWN] = product(element, start);
      }
      fold();
    }
    store(first, 1, end);
  }

  // Of one element, over the block of tokens from `start` on.
  DEVICE float product(int64_t element, int start) const {
    const T* dy = static_cast<const T*>(arguments.dy) + element / arguments.inputs;
    const T* x = static_cast<const T*>(arguments.x) + element % arguments.inputs;
    float sum = 0.0f;
    for (int64_t token = start; token < min(start + arguments.block, arguments.tokens); ++token) {
      sum = multiply_add(to_float(load(dy + token * arguments.dy_step)), to_float(load(x + token * arguments.inputs)), sum);
    }
    return sum;
  }
};

template <typename T> DEVICE void weight_sums(const WeightSumsArguments& arguments) {
  SHARED_MEMORY(shared);
  if (arguments.inputs % WEIGHT_TILE == 0) {
    WeightSums<T>(arguments).run_whole(shared_address(shared));
  } else {
    WeightSums<T>(arguments).run_any();
  }
}
