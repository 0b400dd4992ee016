// How operators go over memory: groups of up to 16 bytes where addresses allow, else element by element; f32 in registers.
#pragma once
#include "../vocabulary/reductions.h"

// Threads of a block, and how many elements of flat memory it works on: the grid is `ceiling_divide(count, FLAT_ELEMENTS)`.
constexpr int OPERATOR_THREADS = 256;
constexpr int FLAT_ELEMENTS = 8192;

// How many elements are moved at once: those that fill 16 bytes in the widest of the types.
template <typename... T> constexpr int GROUP = (... || (sizeof(T) == 4)) ? 4 : 8;

// Whether all addresses are multiples of 16; a null pointer is one.
template <typename... T> DEVICE bool aligned(const T*... pointers) {
  return ((reinterpret_cast<uint64_t>(pointers) | ...) & 15) == 0;
}

// Memory that the kernel may also write, at a multiple of the type's size.
template <typename T> DEVICE T load(const T* pointer) {
#if !ON_GPU
  emulator::check_global(pointer, sizeof(T));
#endif
  return *pointer;
}

// N neighbours as f32. N is 1, 4, or 8 of 16 bits; groups lie at multiples of their size.
template <typename T, int N> DEVICE void read(const T* from, float (&values)[N]) {
  if constexpr (N == 1) {
    values[0] = to_float(load(from));
  } else if constexpr (sizeof(T) == 4) {
    const Float4 group = load(reinterpret_cast<const Float4*>(from));
    values[0] = group.x, values[1] = group.y, values[2] = group.z, values[3] = group.w;
  } else {
    const auto words = load(reinterpret_cast<const Words<N / 2>*>(from));
    UNROLL
    for (int i = 0; i < N / 2; i++) {
      const Float2 pair = unpack<T>(words.word[i]);
      values[2 * i] = pair.x, values[2 * i + 1] = pair.y;
    }
  }
}

// The same back, rounded to the type.
template <typename T, int N> DEVICE void write(T* to, const float (&values)[N]) {
  if constexpr (N == 1) {
    store_global(to, from_float<T>(values[0]));
  } else if constexpr (sizeof(T) == 4) {
    store_global(reinterpret_cast<Float4*>(to), Float4{values[0], values[1], values[2], values[3]});
  } else {
    Words<N / 2> words;
    UNROLL
    for (int i = 0; i < N / 2; i++) words.word[i] = pack<T>(values[2 * i], values[2 * i + 1]);
    store_global(reinterpret_cast<Words<N / 2>*>(to), words);
  }
}

// What a number becomes in memory.
template <typename T> DEVICE float rounded(float value) { return to_float(from_float<T>(value)); }

// N as a type, for generic lambdas: `constexpr int N = decltype(lanes)::COUNT`.
template <int N> struct Lanes {
  static constexpr int COUNT = N;
};

// Calls `work(at, lanes)` for elements `first .. end`, split over the block's threads: N at once where `grouped`, which `first` is
// a multiple of, and the rest one by one.
template <int N, typename Work> DEVICE void for_range(int64_t first, int64_t end, bool grouped, Work work) {
  const int64_t border = grouped ? first + (end - first) / N * N : first;
  const int64_t thread = threadIdx.x, threads = blockDim.x;
  for (int64_t at = first + thread * N; at < border; at += threads * N) work(at, Lanes<N>{});
  for (int64_t at = border + thread; at < end; at += threads) work(at, Lanes<1>{});
}

// The same for the block's part of `count` elements of flat memory.
template <int N, typename Work> DEVICE void for_flat(int64_t count, bool grouped, Work work) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * FLAT_ELEMENTS;
  for_range<N>(first, first + FLAT_ELEMENTS < count ? first + FLAT_ELEMENTS : count, grouped, work);
}

// Calls `work(column)` for every Nth column of a row, whose width is a multiple of N: split over `threads` threads, of which this
// is `thread`.
template <int N, typename Work> DEVICE void for_columns(int width, int thread, int threads, Work work) {
  for (int column = thread * N; column < width; column += threads * N) work(column);
}
