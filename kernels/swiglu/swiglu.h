// `silu(gate) * up` (Shazeer, arXiv 2002.05202) and its gradients. Grid: `ceiling_divide(count, FLAT_ELEMENTS)`.
#pragma once
#include "../operators/groups.h"

// y = g s(g) u, with s the logistic function; all of one type, without gaps.
struct SwigluForwardArguments {
  const void* gate;
  const void* up;
  void* y;
  int64_t count;
};

// dgate = dy u s (1 + g (1 - s)) and dup = dy g s; and y = g s u once more, so that it need not be kept. Results may take the
// place of what they are made of.
struct SwigluBackwardArguments {
  const void* gate;
  const void* up;
  const void* dy;
  void* dgate;
  void* dup;
  void* y;
  int64_t count;
};

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_exact(-x)); }

template <typename T> DEVICE void swiglu_forward(const SwigluForwardArguments& arguments) {
  const T* gate = static_cast<const T*>(arguments.gate);
  const T* up = static_cast<const T*>(arguments.up);
  T* y = static_cast<T*>(arguments.y);
  for_flat<GROUP<T>>(arguments.count, aligned(gate, up, y), [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float g[N], u[N];
    read(gate + at, g);
    read(up + at, u);
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
  const bool grouped = aligned(gate, up, dy, dgate, dup, y);
  for_flat<GROUP<T>>(arguments.count, grouped, [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float g[N], u[N], d[N];
    read(gate + at, g);
    read(up + at, u);
    read(dy + at, d);
    UNROLL
    for (int i = 0; i < N; i++) {
      const float s = sigmoid(g[i]), silu = g[i] * s, upstream = d[i];
      d[i] = upstream * silu;
      g[i] = upstream * u[i] * s * multiply_add(g[i], 1.0f - s, 1.0f);
      u[i] *= silu;
    }
    write(dgate + at, g);
    write(dup + at, d);
    write(y + at, u);
  });
}
