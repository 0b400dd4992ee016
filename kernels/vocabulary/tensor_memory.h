// What sm_100 adds: memory of the tensor cores, 128 lanes x 512 columns of 32 bits in every multiprocessor, and products that one
// thread starts and that read and write it (PTX ISA, "TensorCore 5th Generation Family Instructions", tcgen05).
//
// Addresses: lane in the upper half, column in the lower. Warp w of a block reaches lanes 32 * (w % 4) .. + 32 alone, a lane of the
// warp one of them. Products are from lanes 0 to 127: row i of the sums and of a left operand is lane i; a sum takes a column, two
// neighbours along a row of 16 bits share one.
//
// Loads, stores and products are asynchronous. Who touched tensor memory fences before it tells another thread, who then fences
// before it touches it too; a commit is such a fence. Products run in the order in which one thread starts them: PTX says so of
// the same sums and shape, of others NVIDIA's own libraries rely on it, as kernels here do.
#pragma once
#include "warpgroup.h"

constexpr int TENSOR_LANES = 128, TENSOR_COLUMNS = 512;

// By one whole warp: takes all of it, waiting until another block has given it back; its address is left at `shared`, which others
// see after a barrier.
DEVICE void tensor_take(uint32_t shared) {
#if ON_GPU
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;\n"
               "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::"r"(shared) : "memory");
#else
  emulator::tensor_take(shared);
#endif
}

// By the same warp, once nobody uses it any more; a block that ends without has kept it from all that follow.
DEVICE void tensor_give(uint32_t address) {
#if ON_GPU
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" ::"r"(address) : "memory");
#else
  emulator::tensor_give(address);
#endif
}

// Orders what this thread did in tensor memory before a barrier that it arrives at next.
DEVICE void tensor_fence_before() {
#if ON_GPU
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
#else
  emulator::tensor_fence_before();
#endif
}

// Orders what this thread does next behind what it knows by barriers that it has waited for.
DEVICE void tensor_fence_after() {
#if ON_GPU
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#else
  emulator::tensor_fence_after();
#endif
}

#if ON_GPU

#define TENSOR_REGISTERS(first, r)                                                                                             \
  first(r[0]), first(r[1]), first(r[2]), first(r[3]), first(r[4]), first(r[5]), first(r[6]), first(r[7]), first(r[8]),         \
      first(r[9]), first(r[10]), first(r[11]), first(r[12]), first(r[13]), first(r[14]), first(r[15])

#endif

// Starts to load 16 columns from `address` on into registers, which hold them once `tensor_wait_loads` says so. By whole warps.
DEVICE void tensor_load(float* registers, uint32_t address) {
#if ON_GPU
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
               : TENSOR_REGISTERS("=f", registers) : "r"(address) : "memory");
#else
  emulator::tensor_load(registers, address);
#endif
}

// Waits for this warp's loads, into all registers of these.
template <int Count> DEVICE void tensor_wait_loads(float (&registers)[Count]) {
#if ON_GPU
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  warpgroup_hold(registers);
#else
  static_cast<void>(registers);
  emulator::tensor_wait(false);
#endif
}

// Starts to store 16 registers into columns from `address` on. By whole warps.
template <typename Word> DEVICE void tensor_store(uint32_t address, const Word* registers) {
  static_assert(sizeof(Word) == 4, "32 bits to a column");
#if ON_GPU
  const uint32_t words[16] = {
      bits_as<uint32_t>(registers[0]),  bits_as<uint32_t>(registers[1]),  bits_as<uint32_t>(registers[2]),
      bits_as<uint32_t>(registers[3]),  bits_as<uint32_t>(registers[4]),  bits_as<uint32_t>(registers[5]),
      bits_as<uint32_t>(registers[6]),  bits_as<uint32_t>(registers[7]),  bits_as<uint32_t>(registers[8]),
      bits_as<uint32_t>(registers[9]),  bits_as<uint32_t>(registers[10]), bits_as<uint32_t>(registers[11]),
      bits_as<uint32_t>(registers[12]), bits_as<uint32_t>(registers[13]), bits_as<uint32_t>(registers[14]),
      bits_as<uint32_t>(registers[15])};
  asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15};"
               ::TENSOR_REGISTERS("r", words), "r"(address) : "memory");
#else
  emulator::tensor_store(address, registers);
#endif
}

// Waits for this warp's stores.
DEVICE void tensor_wait_stores() {
#if ON_GPU
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
#else
  emulator::tensor_wait(true);
#endif
}

// An operand in shared memory, in 128-byte swizzled panels: as `descriptor` of warpgroup_products.h, whose fields these are but for
// two constants (PTX ISA, tcgen05, "Shared Memory Descriptor": bits 46-48 are 1; bits 61-63, 2 for the 128-byte swizzle, are the same).
DEVICE uint64_t tensor_descriptor(uint32_t address, int leading_bytes, int stride_bytes) {
  return descriptor(address, leading_bytes, stride_bytes) | uint64_t{1} << 46;
}

// What a product is: 128 rows, `Columns` (a multiple of 16, at most 256) of f32 sums, operands of T; of these the sum runs along the
// rows in shared memory, or, transposed, down them (PTX ISA, tcgen05, "Instruction Descriptor": bits 4-5 the sums' type, 7-9 and 10-12
// the operands', 15 and 16 whether they are transposed, 17-22 columns / 8, 24-28 rows / 16).
template <typename T, int Columns, bool TransposedLeft, bool TransposedRight> DEVICE constexpr uint32_t tensor_product() {
  static_assert(Columns % 16 == 0 && Columns >= 16 && Columns <= 256, "columns of a product of 128 rows");
  constexpr uint32_t type = Format<T>::is_bf16 ? 1 : 0;
  return 1u << 4 | type << 7 | type << 10 | (TransposedLeft ? 1u : 0u) << 15 | (TransposedRight ? 1u : 0u) << 16 |
         static_cast<uint32_t>(Columns / 8) << 17 | static_cast<uint32_t>(TENSOR_LANES / 16) << 24;
}

// Starts sums = (adds ? sums : 0) + left right over 16 of the sum, both in shared memory. By one thread.
DEVICE void tensor_multiply(uint32_t sums, uint64_t left, uint64_t right, uint32_t product, bool adds) {
#if ON_GPU
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %4, 0;\n"
               "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, adds;\n}\n"
               ::"r"(sums), "l"(left), "l"(right), "r"(product), "r"(static_cast<int>(adds)) : "memory");
#else
  emulator::tensor_multiply(sums, {left, 0, false}, right, product, adds);
#endif
}

// The same with the left operand in 8 columns of tensor memory.
DEVICE void tensor_multiply(uint32_t sums, uint32_t left, uint64_t right, uint32_t product, bool adds) {
#if ON_GPU
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %4, 0;\n"
               "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, adds;\n}\n"
               ::"r"(sums), "r"(left), "l"(right), "r"(product), "r"(static_cast<int>(adds)) : "memory");
#else
  emulator::tensor_multiply(sums, {0, left, true}, right, product, adds);
#endif
}

// An arrival at a barrier once all products that this thread has started are complete: their operands may be written again, their
// sums touched by who waited there and fenced.
DEVICE void tensor_commit(uint32_t barrier) {
#if ON_GPU
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
#else
  emulator::tensor_commit(barrier);
#endif
}
