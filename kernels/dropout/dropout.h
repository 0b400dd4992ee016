// Dropout (Srivastava et al., JMLR 15, 2014) whose mask is a pure function of the seed and of where an element is in the whole
// text: the same on any number of ranks and in any layout, nothing to keep. Backward is the same on the gradient.
#pragma once
#include "../operators/groups.h"
#include "../operators/positions.h"
#include "philox.h"

// y = x * scale where the element's bits are `threshold` or more, else 0. The bits of sequence s, position p, column c are word
// c % 4 of Philox at (c / 4, p, s, stream) under the seed. x and y: [sequences, rows, width], y may be x.
// Grid: `ceiling_divide(sequences * rows, 8)`: a warp per row.
struct DropoutArguments {
  const void* x;
  void* y;
  const Run* runs;          // of the shard's `rows` tokens; positions below 2^32
  uint64_t seed;
  int64_t rows;
  int width;
  int sequences;
  uint32_t first_sequence;  // the first sequence's number among all
  uint32_t stream;          // tells the places of the model apart
  uint32_t threshold;       // probability of 0 * 2^32
  float scale;              // 1 / (1 - probability)
};

// Columns `column ..` of a row, whose counter is that of column 0.
template <typename T, int N> DEVICE void drop(const DropoutArguments& arguments, int64_t start, int column, Counter counter) {
  float x[N];
  read(static_cast<const T*>(arguments.x) + start + column, x);
  Counter bits;
  UNROLL
  for (int i = 0; i < N; i++) {
    if (i % 4 == 0) {
      counter.word[0] = static_cast<uint32_t>(column + i) / 4;
      bits = philox(counter, arguments.seed);
    }
    const uint32_t word = N == 1 ? bits.word[column % 4] : bits.word[i % 4];
    x[i] = word >= arguments.threshold ? x[i] * arguments.scale : 0.0f;
  }
  write(static_cast<T*>(arguments.y) + start + column, x);
}

template <typename T> DEVICE void dropout(const DropoutArguments& arguments) {
  constexpr int N = GROUP<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (OPERATOR_THREADS / 32) + warp_index();
  if (row >= arguments.sequences * arguments.rows) return;
  const uint32_t position = static_cast<uint32_t>(position_of(arguments.runs, row % arguments.rows));
  const uint32_t sequence = arguments.first_sequence + static_cast<uint32_t>(row / arguments.rows);
  const Counter counter{{0, position, sequence, arguments.stream}};
  const int64_t start = row * arguments.width;
  if (arguments.width % N == 0 && aligned(arguments.x, arguments.y)) {
    for_columns<N>(arguments.width, lane_index(), 32, [&](int column) { drop<T, N>(arguments, start, column, counter); });
  } else {
    for_columns<1>(arguments.width, lane_index(), 32, [&](int column) { drop<T, 1>(arguments, start, column, counter); });
  }
}
