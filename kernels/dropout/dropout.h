// Dropout of a projection's inputs (Srivastava et al., JMLR 15, 2014): whether an element is dropped is a pure function of where its row is
// among all sequences of the step, and of its column, so that nothing is kept for backward. The bits of column c are word c % 4 of Philox
// at (c / 4, position, sequence, module).
#pragma once
#include "../attention/philox.h"
#include "../operators/groups.h"
#include "../operators/positions.h"

// y = x with some elements 0 and the others times `kept`; x and y are [count / width, width]. Row r is token `r / piece * stride + first +
// r % piece` of this rank's [sequences, tokens].
// Grid: `ceiling_divide(count, FLAT_ELEMENTS)`.
struct InputDropoutArguments {
  const void* x;
  void* y;
  const Run* runs;   // of the `tokens` tokens of a sequence that this rank has
  int64_t count;
  int64_t width;
  int64_t tokens;
  int64_t piece;
  int64_t stride;
  int64_t first;
  uint64_t key;
  uint32_t sequence;   // of the rank's first token
  uint32_t module;
  uint32_t column;     // of all of the module's inputs, the first that x has
  uint32_t threshold;  // words below it drop
  float kept;
  uint32_t gap;
};

// The words of columns `column / 4 * 4 ..` of a row.
DEVICE Counter words_of(const InputDropoutArguments& arguments, int64_t row, uint32_t column) {
  const int64_t token = row / arguments.piece * arguments.stride + arguments.first + row % arguments.piece;
  const int64_t position = position_of(arguments.runs, token % arguments.tokens);
  const uint32_t sequence = arguments.sequence + static_cast<uint32_t>(token / arguments.tokens);
  return philox({{column / 4, static_cast<uint32_t>(position), sequence, arguments.module}}, arguments.key);
}

template <typename T> DEVICE void input_dropout(const InputDropoutArguments& arguments) {
  constexpr int Most = GROUP<T>;
  const T* x = static_cast<const T*>(arguments.x);
  T* y = static_cast<T*>(arguments.y);
  const float kept = rounded<T>(arguments.kept);
  const bool grouped = arguments.width % Most == 0 && arguments.column % 4 == 0 && aligned(x, y);
  for_flat<Most>(arguments.count, grouped, [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT, DRAWN = N < 4 ? N : 4;
    const int64_t row = at / arguments.width;
    const uint32_t column = arguments.column + static_cast<uint32_t>(at - row * arguments.width);
    float values[N];
    read(x + at, values);
    UNROLL
    for (int i = 0; i < N; i += DRAWN) {
      const Counter words = words_of(arguments, row, column + i);
      UNROLL
      for (int j = 0; j < DRAWN; j++) {
        const uint32_t word = word_of(words, N == 1 ? column % 4 : j);
        values[i + j] *= word < arguments.threshold ? 0.0f : kept;
      }
    }
    write(y + at, values);
  });
}
