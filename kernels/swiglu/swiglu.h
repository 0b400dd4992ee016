// `silu(gate) * up` (Shazeer, arXiv 2002.05202) and its gradients. Grid: `ceiling_divide(count, FLAT_ELEMENTS)`.
#pragma once
#include "../operators/groups.h"

// Rows of `width` elements, one or more, with `gap` elements between them: gate and up are columns of one matrix where one product
// made both, and so are their gradients.
struct SwigluRows {
  int64_t width;
  int64_t gap;
};

// y = g s(g) u, with s the logistic function; all of one type, y without gaps.
struct SwigluForwardArguments {
  const void* gate;
  const void* up;
  void* y;
  int64_t count;
  SwigluRows rows;   // of gate and up
};

// dgate = dy u s (1 + g (1 - s)) and dup = dy g s; and y = g s u once more, so that it need not be kept. dy and y have no gaps.
struct SwigluBackwardArguments {
  const void* gate;
  const void* up;
  const void* dy;
  void* dgate;
  void* dup;
  void* y;
  int64_t count;
  SwigluRows rows;        // of gate and up
  SwigluRows gradients;   // of dgate and dup
};

// Where element `index` of some rows lies. A short index is divided several times faster.
DEVICE int64_t place(const SwigluRows& rows, int64_t index) {
  if (rows.gap == 0) return index;
  const bool is_short = (index | rows.width) >> 32 == 0;
  const int64_t row = is_short ? static_cast<uint32_t>(index) / static_cast<uint32_t>(rows.width) : index / rows.width;
  return index + row * rows.gap;
}

// Whether groups of N elements lie in one row each.
template <int N> DEVICE bool in_groups(const SwigluRows& rows) {
  return rows.gap == 0 || (rows.width % N == 0 && rows.gap % N == 0);
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_exact(-x)); }

template <typename T> DEVICE void swiglu_forward(const SwigluForwardArguments& arguments) {
  const T* gate = static_cast<const T*>(arguments.gate);
  const T* up = static_cast<const T*>(arguments.up);
  T* y = static_cast<T*>(arguments.y);
  const bool grouped = aligned(gate, up, y) && in_groups<GROUP<T>>(arguments.rows);
  for_flat<GROUP<T>>(arguments.count, grouped, [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    const int64_t from = place(arguments.rows, at);
    float g[N], u[N];
    read(gate + from, g);
    read(up + from, u);
    UNROLL
    for (int i = 0; i < N; i++) u[i] *= g[i] * sigmoid(g[i]);
    write(y + at, u);
  });
}

template <typename T> DEVICE void swiglu_backward(const SwigluBackwardArguments& arguments) {
  const T* gate = static_cast<const T*>(arguments.gate);
  const T* up = static_cast<const T*>(arguments.up);
  const T* dy = static_cast<const T*>(arguments.dy);
  T* dgate = static_cast<T*>(arguments.dgate);
  T* dup = static_cast<T*>(arguments.dup);
  T* y = static_cast<T*>(arguments.y);
  const bool fit = in_groups<GROUP<T>>(arguments.rows) && in_groups<GROUP<T>>(arguments.gradients);
  const bool grouped = aligned(gate, up, dy, dgate, dup, y) && fit;
  for_flat<GROUP<T>>(arguments.count, grouped, [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    const int64_t from = place(arguments.rows, at), to = place(arguments.gradients, at);
    float g[N], u[N], d[N];
    read(gate + from, g);
    read(up + from, u);
    read(dy + at, d);
    UNROLL
    for (int i = 0; i < N; i++) {
      const float s = sigmoid(g[i]), silu = g[i] * s, upstream = d[i];
      d[i] = upstream * silu;
      g[i] = upstream * u[i] * s * multiply_add(g[i], 1.0f - s, 1.0f);
      u[i] *= silu;
    }
    write(dgate + to, g);
    write(dup + to, d);
    write(y + at, u);
  });
}
