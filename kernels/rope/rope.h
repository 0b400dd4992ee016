// Rotary position embedding at the positions of runs (Su et al., arXiv 2104.09864), rotate-half layout; backward is the same by
// the opposite angle.
//
// A thread makes the angles of its pairs of columns once, in f64 from the position, and turns those columns of all heads by
// them: no table exists anywhere, and the angles cost little. What is not turned, values, is moved by the same launch.
#pragma once
#include "../attention/arguments.h"
#include "../operators/groups.h"
#include "../operators/positions.h"
#include "angles.h"

// [batch, heads, rows, dim], the last dimension contiguous; y may be x.
struct RotatedTensor {
  const void* x;
  void* y;
  Strides x_strides;
  Strides y_strides;
  int heads;   // 0: no tensor
};

// Grid: x blocks share the tokens, `ceiling_divide(rows * dim / 2, 4 * OPERATOR_THREADS)` or any other number; y blocks share
// batch * heads, each makes the angles again.
struct RopeArguments {
  RotatedTensor tensors[2];   // queries and keys, in one launch
  RotatedTensor moved;        // values, which stay as they are
  const Run* runs;            // of the shard's `rows` tokens
  const float* frequencies;   // [dim / 2], radians per position
  double factor;              // of cosine and sine: 1 but for YaRN and LongRoPE
  int batch;
  int rows;
  int dim;
  float direction;            // 1, or -1 for the gradient
};

// N pairs of one row: (a, b) becomes (a cos - b sin, b cos + a sin), for the row's two halves a, b.
template <typename T, int N> DEVICE void rotate(const T* x, T* y, int half, const float (&cosine)[N], const float (&sine)[N]) {
  float a[N], b[N];
  read(x, a);
  read(x + half, b);
  UNROLL
  for (int i = 0; i < N; i++) {
    const float turned = a[i] * cosine[i] - b[i] * sine[i];
    b[i] = b[i] * cosine[i] + a[i] * sine[i];
    a[i] = turned;
  }
  write(y, a);
  write(y + half, b);
}

// N pairs of one row, as they are.
template <int N, typename T> DEVICE void move(const T* x, T* y, int half) {
  float a[N], b[N];
  read(x, a);
  read(x + half, b);
  write(y, a);
  write(y + half, b);
}

// `take(x, y)` for pairs `pair ..` of one token, in the heads of a tensor that are this block's.
template <typename T, class Take>
DEVICE void for_heads(const RopeArguments& arguments, const RotatedTensor& tensor, int token, int pair, const Take& take) {
  const int all = arguments.batch * tensor.heads;
  for (int index = static_cast<int>(blockIdx.y); index < all; index += static_cast<int>(gridDim.y)) {
    const int64_t row = index / tensor.heads, head = index % tensor.heads;
    const Strides& from = tensor.x_strides;
    const Strides& to = tensor.y_strides;
    const int64_t x_at = row * from.batch + head * from.head + token * from.row + pair;
    const int64_t y_at = row * to.batch + head * to.head + token * to.row + pair;
    take(static_cast<const T*>(tensor.x) + x_at, static_cast<T*>(tensor.y) + y_at);
  }
}

template <typename T, int N> DEVICE void rotate_tokens(const RopeArguments& arguments) {
  const int groups = arguments.dim / 2 / N;
  const int64_t all = static_cast<int64_t>(arguments.rows) * groups, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < all; at += step) {
    const int token = static_cast<int>(at / groups), pair = static_cast<int>(at % groups) * N;
    const double position = static_cast<double>(position_of(arguments.runs, token));
    float cosine[N], sine[N];
    UNROLL
    for (int i = 0; i < N; i++) {
      const SineCosine turn = sine_cosine(position * static_cast<double>(load_global(arguments.frequencies + pair + i)));
      cosine[i] = static_cast<float>(turn.cosine * arguments.factor);
      sine[i] = static_cast<float>(turn.sine * arguments.factor) * arguments.direction;
    }
    const int half = arguments.dim / 2;
    const auto turn = [&](const T* x, T* y) { rotate(x, y, half, cosine, sine); };
    for_heads<T>(arguments, arguments.tensors[0], token, pair, turn);
    for_heads<T>(arguments, arguments.tensors[1], token, pair, turn);
    for_heads<T>(arguments, arguments.moved, token, pair, [&](const T* x, T* y) { move<N>(x, y, half); });
  }
}

// Whether rows of the tensor start, and their halves lie, at multiples of N elements.
template <int N> DEVICE bool in_groups(const RotatedTensor& tensor) {
  const Strides &from = tensor.x_strides, &to = tensor.y_strides;
  const int64_t all = from.batch | from.head | from.row | to.batch | to.head | to.row;
  return aligned(tensor.x, tensor.y) && all % N == 0;
}

template <typename T> DEVICE void rope(const RopeArguments& arguments) {
  constexpr int N = GROUP<T>;
  const bool grouped =
      in_groups<N>(arguments.tensors[0]) && in_groups<N>(arguments.tensors[1]) && in_groups<N>(arguments.moved);
  if (grouped && arguments.dim / 2 % N == 0) {
    rotate_tokens<T, N>(arguments);
  } else {
    rotate_tokens<T, 1>(arguments);
  }
}
