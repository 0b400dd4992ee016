// Sums element by element, rounded once. Grid: `ceiling_divide(count, FLAT_ELEMENTS)`. Results may take the place
// of what they are made of.
#pragma once
#include "../operators/groups.h"

// y = x + row for each of the rows of x: a bias. x and y are [count / width, width].
struct AddRowArguments {
  const void* x;
  const void* row;
  void* y;
  int64_t count;
  int64_t width;
};

// to += from.
struct AccumulateArguments {
  const float* from;
  float* to;
  int64_t count;
};

// y = the sum of several, in the order of a binary tree: neighbours first, then neighbours of those, and one that has no neighbour
// waits (`crates/comm/src/collectives.rs` sums by the same tree).
struct AddAllArguments {
  const float* parts[8];
  float* y;
  int64_t count;
  int many;  // parts, 1 to 8
};

template <typename T> DEVICE void add_row(const AddRowArguments& arguments) {
  constexpr int Most = GROUP<T>;
  const T* x = static_cast<const T*>(arguments.x);
  const T* row = static_cast<const T*>(arguments.row);
  T* y = static_cast<T*>(arguments.y);
  const bool grouped = arguments.width % Most == 0 && aligned(x, row, y);
  for_flat<Most>(arguments.count, grouped, [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float sum[N], bias[N];
    read(x + at, sum);
    read(row + at % arguments.width, bias);
    UNROLL
    for (int i = 0; i < N; i++) sum[i] += bias[i];
    write(y + at, sum);
  });
}

DEVICE void accumulate(const AccumulateArguments& arguments) {
  for_flat<GROUP<float>>(arguments.count, aligned(arguments.from, arguments.to), [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float sum[N], more[N];
    read(arguments.to + at, sum);
    read(arguments.from + at, more);
    UNROLL
    for (int i = 0; i < N; i++) sum[i] += more[i];
    write(arguments.to + at, sum);
  });
}

DEVICE void add_all(const AddAllArguments& arguments) {
  constexpr int MOST = 8;
  bool grouped = aligned(arguments.y);
  for (int part = 0; part < arguments.many; part++) grouped = grouped && aligned(arguments.parts[part]);
  for_flat<4>(arguments.count, grouped, [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float sums[MOST][N];
    UNROLL
    for (int part = 0; part < MOST; part++) {
      if (part < arguments.many) read(arguments.parts[part] + at, sums[part]);
    }
    UNROLL
    for (int width = 1; width < MOST; width *= 2) {
      UNROLL
      for (int part = 0; part + width < MOST; part += 2 * width) {
        if (part + width >= arguments.many) continue;
        UNROLL
        for (int i = 0; i < N; i++) sums[part][i] += sums[part + width][i];
      }
    }
    write(arguments.y + at, sums[0]);
  });
}
