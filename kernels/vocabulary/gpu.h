// The ground that kernels stand on: which machine compiles them, plain types, shared memory, and the list of entry points.
//
// Every file of the vocabulary has one signature and two bodies: `ON_GPU` holds where nvcc or NVRTC compile (inline PTX, no
// header of NVIDIA's), and not where a C++17 compiler does, for the emulator, which runs the same kernels on a CPU.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ON_GPU 1
#else
#define ON_GPU 0
#endif

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#include <string.h>
#endif

// What a copy by TMA has to know of a tensor, as the driver encodes it (sm_90a). In the kernel's arguments,
// or in device memory behind a `tensor_map_fence`.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

#if ON_GPU

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

// The block's dynamic shared memory: the only shared memory there is.
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) unsigned char name[]

// A kernel of `threads` per block whose body takes the arguments by reference to constant memory.
#define ENTRY(name, threads, blocks_per_multiprocessor, Arguments, ...)                                          \
  KERNEL void __launch_bounds__(threads, blocks_per_multiprocessor)                                              \
      name(const __grid_constant__ Arguments arguments) {                                                        \
    __VA_ARGS__(arguments);                                                                                      \
  }

#define ENTRY_OF_NOTHING(name, threads, blocks_per_multiprocessor, Arguments)                                    \
  KERNEL void __launch_bounds__(threads, blocks_per_multiprocessor) name(const __grid_constant__ Arguments) {}

// The same for a body made of sm_90a's instructions: nothing where these do not exist.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ENTRY_90(name, threads, blocks_per_multiprocessor, Arguments, ...)                                       \
  ENTRY(name, threads, blocks_per_multiprocessor, Arguments, __VA_ARGS__)
#else
#define ENTRY_90(name, threads, blocks_per_multiprocessor, Arguments, ...)                                       \
  ENTRY_OF_NOTHING(name, threads, blocks_per_multiprocessor, Arguments)
#endif

// And of those of the family of sm_100.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM100_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ == 1000)
#define ENTRY_100(name, threads, blocks_per_multiprocessor, Arguments, ...)                                      \
  ENTRY(name, threads, blocks_per_multiprocessor, Arguments, __VA_ARGS__)
#else
#define ENTRY_100(name, threads, blocks_per_multiprocessor, Arguments, ...)                                      \
  ENTRY_OF_NOTHING(name, threads, blocks_per_multiprocessor, Arguments)
#endif

#else

#include "../emulator/emulator.h"

#define DEVICE inline
#define UNROLL
#define NO_UNROLL

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_size())
#define gridDim (emulator::grid_size())

#define SHARED_MEMORY(name) unsigned char* name = emulator::shared_memory()

#define ENTRY(name, threads, blocks_per_multiprocessor, Arguments, ...)                                          \
  static const emulator::Registration registration_##name{                                                       \
      #name, threads, blocks_per_multiprocessor, sizeof(Arguments),                                              \
      [](const void* arguments) { __VA_ARGS__(*static_cast<const Arguments*>(arguments)); }};
#define ENTRY_90(name, threads, blocks_per_multiprocessor, Arguments, ...)                                       \
  ENTRY(name, threads, blocks_per_multiprocessor, Arguments, __VA_ARGS__)
#define ENTRY_100(name, threads, blocks_per_multiprocessor, Arguments, ...)                                      \
  ENTRY(name, threads, blocks_per_multiprocessor, Arguments, __VA_ARGS__)

// Waits for all threads of the block.
DEVICE void __syncthreads() { emulator::synchronize_block(); }

// Waits for all lanes of the warp.
DEVICE void __syncwarp() { emulator::synchronize_warp(); }

// As on the GPU: of a number and a NaN, the number.
DEVICE float min(float a, float b) { return a < b || b != b ? a : b; }
DEVICE float max(float a, float b) { return a > b || b != b ? a : b; }
DEVICE constexpr int min(int a, int b) { return a < b ? a : b; }
DEVICE constexpr int max(int a, int b) { return a > b ? a : b; }
DEVICE constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
DEVICE constexpr int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
DEVICE constexpr uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
DEVICE constexpr uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

#endif

// The same bits as another type of that size.
template <typename To, typename From> DEVICE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

DEVICE float infinity() { return bits_as<float>(0x7f800000u); }

// Where a byte of shared memory lies, as the instructions below address it.
DEVICE uint32_t shared_address(const void* pointer) {
#if ON_GPU
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
#else
  return emulator::shared_address(pointer);
#endif
}

// Which of the warp's 32 threads this is.
DEVICE int lane_index() { return static_cast<int>(threadIdx.x) & 31; }

// Which of the block's warps this thread is of.
DEVICE int warp_index() { return static_cast<int>(threadIdx.x) >> 5; }

// The same number, for the compiler a new one: what is computed from it is computed where it is used, in every round, and
// not kept in registers from before.
DEVICE int afresh(int value) {
#if ON_GPU
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// The same on sm_100 and later, where the compiler has other registers to spare.
DEVICE int afresh_from_100(int value) {
#if ON_GPU && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return afresh(value);
#else
  return value;
#endif
}

// How many pieces of `size` cover `count`.
template <typename T> DEVICE constexpr T ceiling_divide(T count, T size) { return (count + size - 1) / size; }
