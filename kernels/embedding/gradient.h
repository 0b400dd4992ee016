// The gradient of the embedding's table: each row is the sum, in f64, over the places where its token occurs.
//
// Tokens come in order (`order.h`), so a token's places are a run of neighbours. The block in whose part of the order a run
// starts adds all of it: a warp runs of up to 32 places, the whole block longer ones, its warps by turns.
#pragma once
#include "../operators/groups.h"
#include "order.h"

// dweight[token] += sum of dy over the token's places; rows without a token are not touched.
// Grid: x `ceiling_divide(count, EMBEDDING_PART)`; y blocks share the columns, `ceiling_divide(width, 256)` or any other number.
// Shared memory: 16 KiB.
struct EmbeddingGradientArguments {
  const uint32_t* tokens;   // [count], in order; those that are not of the table last, in any
  const uint32_t* places;   // [count]: where each of them is in dy
  const void* dy;           // [count, width]
  float* dweight;           // [rows, width]
  int64_t rows;             // tokens not below it are left out
  int count;
  int width;
};

constexpr int EMBEDDING_PART = 64;
constexpr int EMBEDDING_WARPS = OPERATOR_THREADS / 32;

// Sums of N columns over the places `at, at + step, ..` below `end`.
template <typename T, int N>
DEVICE void sum_places(const EmbeddingGradientArguments& arguments, int at, int end, int step, int column, double (&sums)[N]) {
  const T* dy = static_cast<const T*>(arguments.dy) + column;
  for (; at < end; at += step) {
    float values[N];
    read(dy + static_cast<int64_t>(load_global(arguments.places + at)) * arguments.width, values);
    UNROLL
    for (int i = 0; i < N; i++) sums[i] += static_cast<double>(values[i]);
  }
}

// Whether a run of a token of the table starts at `at`.
DEVICE bool run_starts(const EmbeddingGradientArguments& arguments, int at) {
  const uint32_t token = load_global(arguments.tokens + at);
  return token < arguments.rows && (at == 0 || load_global(arguments.tokens + at - 1) != token);
}

// Whether the run that starts at `at` has more than 32 places.
DEVICE bool run_is_long(const EmbeddingGradientArguments& arguments, int at) {
  return at + 32 < arguments.count && load_global(arguments.tokens + at + 32) == load_global(arguments.tokens + at);
}

// The end of a long run.
DEVICE int run_end(const EmbeddingGradientArguments& arguments, int at) {
  const uint32_t token = load_global(arguments.tokens + at);
  int inside = at + 32, outside = arguments.count;
  while (outside - inside > 1) {
    const int middle = inside + (outside - inside) / 2;
    (load_global(arguments.tokens + middle) == token ? inside : outside) = middle;
  }
  return outside;
}

// A warp adds a run of up to 32 places.
template <typename T, int N>
DEVICE void add_short_run(const EmbeddingGradientArguments& arguments, int at, int column) {
  const uint32_t token = load_global(arguments.tokens + at);
  const int mine = min(at + lane_index(), arguments.count - 1);
  // A one for each place of the run, and then zeros; past the end of all there is the last place again.
  const uint32_t same = warp_ballot(load_global(arguments.tokens + mine) == token);
  int end = at;
  while (end < min(at + 32, arguments.count) && same >> (end - at) & 1) end++;
  if (column >= arguments.width) return;
  double sums[N] = {};
  sum_places<T, N>(arguments, at, end, 1, column, sums);
  float* to = arguments.dweight + token * static_cast<int64_t>(arguments.width) + column;
  UNROLL
  for (int i = 0; i < N; i++) store_global(to + i, static_cast<float>(static_cast<double>(load(to + i)) + sums[i]));
}

// The block adds a long run; `shared` holds its warps' sums of columns `first ..`.
template <typename T, int N>
DEVICE void add_long_run(const EmbeddingGradientArguments& arguments, int at, int first, uint32_t shared) {
  constexpr int Columns = 32 * N;
  const int mine = static_cast<int>(threadIdx.x), column = first + lane_index() * N;
  double sums[N] = {};
  if (column < arguments.width) {
    sum_places<T, N>(arguments, at + warp_index(), run_end(arguments, at), EMBEDDING_WARPS, column, sums);
  }
  UNROLL
  for (int i = 0; i < N; i++) store_shared(shared + 8u * static_cast<uint32_t>(mine * N + i), sums[i]);
  __syncthreads();
  if (mine < Columns && first + mine < arguments.width) {
    const int64_t token = load_global(arguments.tokens + at);
    float* to = arguments.dweight + token * arguments.width + first + mine;
    double sum = static_cast<double>(load(to));
    for (int warp = 0; warp < EMBEDDING_WARPS; warp++) {
      sum += load_shared<double>(shared + 8u * static_cast<uint32_t>(warp * Columns + mine));
    }
    store_global(to, static_cast<float>(sum));
  }
  __syncthreads();
}

template <typename T, int N> DEVICE void embedding_gradient_of(const EmbeddingGradientArguments& arguments) {
  SHARED_MEMORY(shared);
  const int part = static_cast<int>(blockIdx.x) * EMBEDDING_PART, end = min(arguments.count, part + EMBEDDING_PART);
  const int step = static_cast<int>(gridDim.y) * 32 * N;
  for (int first = static_cast<int>(blockIdx.y) * 32 * N; first < arguments.width; first += step) {
    for (int at = part + warp_index(); at < end; at += EMBEDDING_WARPS) {
      if (!run_starts(arguments, at) || run_is_long(arguments, at)) continue;
      add_short_run<T, N>(arguments, at, first + lane_index() * N);
    }
    for (int at = part; at < end; at++) {
      if (!run_starts(arguments, at) || !run_is_long(arguments, at)) continue;
      add_long_run<T, N>(arguments, at, first, shared_address(shared));
    }
  }
}

template <typename T> DEVICE void embedding_gradient(const EmbeddingGradientArguments& arguments) {
  constexpr int N = GROUP<T>;
  if (arguments.width % N == 0 && aligned(arguments.dy)) {
    embedding_gradient_of<T, N>(arguments);
  } else {
    embedding_gradient_of<T, 1>(arguments);
  }
}
