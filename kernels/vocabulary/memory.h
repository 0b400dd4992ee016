// Memory: loads and stores that say which memory they mean, sums into global memory, and copies that run beside the threads.
#pragma once
#include "numbers.h"

// As many registers as a value of 4, 8 or 16 bytes takes.
template <int Count> struct alignas(4 * Count) Words {
  uint32_t word[Count];
};

// Shared memory, 4, 8 or 16 bytes at a multiple of their size.
template <typename T> DEVICE T load_shared(uint32_t address) {
  constexpr int Count = sizeof(T) / 4;
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "shared memory is read by 4, 8 or 16 bytes");
  Words<Count> words;
#if ON_GPU
  uint32_t* w = words.word;
  if constexpr (Count == 1) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(address) : "memory");
  } else if constexpr (Count == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(address) : "memory");
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
  }
#else
  emulator::read_shared(words.word, address, sizeof(T));
#endif
  return bits_as<T>(words);
}

template <typename T> DEVICE void store_shared(uint32_t address, T value) {
  constexpr int Count = sizeof(T) / 4;
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "shared memory is written by 4, 8 or 16 bytes");
  const Words<Count> words = bits_as<Words<Count>>(value);
#if ON_GPU
  const uint32_t* w = words.word;
  if constexpr (Count == 1) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(w[0]) : "memory");
  } else if constexpr (Count == 2) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
  }
#else
  emulator::write_shared(address, words.word, sizeof(T));
#endif
}

// Global memory that nobody writes while the kernel runs: 2, 4, 8 or 16 bytes at a multiple of their size.
template <typename T> DEVICE T load_global(const T* pointer) {
  [[maybe_unused]] constexpr int Count = sizeof(T) / 4;
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "2, 4, 8 or 16 bytes");
#if ON_GPU
  if constexpr (Count == 0) {
    uint16_t half;
    asm("ld.global.nc.b16 %0, [%1];" : "=h"(half) : "l"(pointer));
    return bits_as<T>(half);
  } else {
    Words<Count> words;
    uint32_t* w = words.word;
    if constexpr (Count == 1) {
      asm("ld.global.nc.b32 %0, [%1];" : "=r"(w[0]) : "l"(pointer));
    } else if constexpr (Count == 2) {
      asm("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(pointer));
    } else {
      asm("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(pointer));
    }
    return bits_as<T>(words);
  }
#else
  T value;
  emulator::read_global(&value, pointer, sizeof(T));
  return value;
#endif
}

// The same, 16 bytes, read where this stands, so that what is waited for next hides how long it takes: a plain load both compilers
// move behind waits, a relaxed one (PTX ISA, ld.relaxed) they leave.
template <typename T> DEVICE T load_global_early(const T* pointer) {
  static_assert(sizeof(T) == 16, "16 bytes");
#if ON_GPU
  Words<4> words;
  uint32_t* w = words.word;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(pointer) : "memory");
  return bits_as<T>(words);
#else
  return load_global(pointer);
#endif
}

template <typename T> DEVICE void store_global(T* pointer, T value) {
#if ON_GPU
  *pointer = value;
#else
  emulator::write_global(pointer, &value, sizeof(T));
#endif
}

// The number that a counter in global memory stands at, which goes on by one: no two threads of the GPU get the same.
DEVICE int take_number(int* counter) {
#if ON_GPU
  int number;
  asm volatile("atom.global.add.s32 %0, [%1], 1;" : "=r"(number) : "l"(counter) : "memory");
  return number;
#else
  return emulator::take_number(counter);
#endif
}

// Adds to global memory that others add to as well; the order of the sums is not fixed.
DEVICE void add_global(float* pointer, float value) {
#if ON_GPU
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(pointer), "f"(value) : "memory");
#else
  emulator::add_global(pointer, value);
#endif
}

// The same of integers, whose sums have no order.
DEVICE void add_global(int64_t* pointer, int64_t value) {
#if ON_GPU
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(pointer), "l"(value) : "memory");
#else
  emulator::add_global(pointer, value);
#endif
}

// Two or four neighbours at once, at a multiple of 8 or 16 bytes; one instruction from sm_90 on.
DEVICE void add_global(float* pointer, Float2 value) {
#if ON_GPU && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(pointer), "f"(value.x), "f"(value.y) : "memory");
#else
#if !ON_GPU
  emulator::check_global(pointer, sizeof(Float2));
#endif
  add_global(pointer, value.x);
  add_global(pointer + 1, value.y);
#endif
}
DEVICE void add_global(float* pointer, Float4 value) {
#if ON_GPU && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"l"(pointer), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
#else
#if !ON_GPU
  emulator::check_global(pointer, sizeof(Float4));
#endif
  add_global(pointer, value.x);
  add_global(pointer + 1, value.y);
  add_global(pointer + 2, value.z);
  add_global(pointer + 3, value.w);
#endif
}

// Starts a copy of 16 bytes from global to shared memory; zeros, without reading, when not `valid`
// (PTX ISA, cp.async: bytes past the source size are written as zeros).
DEVICE void copy_async(uint32_t shared, const void* global, bool valid) {
#if ON_GPU
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
#else
  emulator::copy_async(shared, global, valid);
#endif
}

// Makes one group of this thread's copies since the last commit, of none too.
DEVICE void copy_commit() {
#if ON_GPU
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::copy_commit();
#endif
}

// Waits until at most the newest `Pending` of this thread's groups are under way. Others see the data after a barrier.
template <int Pending> DEVICE void copy_wait() {
#if ON_GPU
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#else
  emulator::copy_wait(Pending);
#endif
}
