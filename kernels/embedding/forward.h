// Rows of a table by token.
#pragma once
#include "../operators/groups.h"

// y = weight[tokens]. Grid: `ceiling_divide(count, 8)`: a warp per token. A token that is not below `rows` reads nothing and
// gets zeros: whoever makes tokens checks them.
struct EmbeddingForwardArguments {
  const uint32_t* tokens;   // [count]
  const void* weight;       // [rows, width]
  void* y;                  // [count, width]
  int64_t count;
  int64_t rows;
  int width;
};

template <typename T, int N> DEVICE void embedding_row(const EmbeddingForwardArguments& arguments, int64_t at) {
  const int64_t token = load_global(arguments.tokens + at);
  const T* from = static_cast<const T*>(arguments.weight) + token * arguments.width;
  T* to = static_cast<T*>(arguments.y) + at * arguments.width;
  for_columns<N>(arguments.width, lane_index(), 32, [&](int column) {
    float values[N] = {};
    if (token < arguments.rows) read(from + column, values);
    write(to + column, values);
  });
}

template <typename T> DEVICE void embedding_forward(const EmbeddingForwardArguments& arguments) {
  constexpr int N = GROUP<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (OPERATOR_THREADS / 32) + warp_index();
  if (at >= arguments.count) return;
  if (arguments.width % N == 0 && aligned(arguments.weight, arguments.y)) {
    embedding_row<T, N>(arguments, at);
  } else {
    embedding_row<T, 1>(arguments, at);
  }
}
