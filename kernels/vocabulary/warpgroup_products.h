// Asynchronous products of a warpgroup (wgmma): 64 x 16 by 16 x N, from tiles in shared memory that descriptors name.
//
// Sums (PTX ISA, "wgmma register fragment for D"), lane = 4 * group + member of warp w: c[4 * j + {0, 1}] are row
// 16 * w + group, columns 8 * j + 2 * member + {0, 1}; c[4 * j + {2, 3}] are 8 rows further. A in registers: as for
// m16n8k16 (matrix.h), each warp its 16 rows.
//
// Included by warpgroup.h.
#pragma once
#include "numbers.h"

// An operand in 128-byte swizzled panels (PTX ISA, "Matrix Descriptor Format": bits 0-13 address, 16-29 leading bytes, 32-45
// stride bytes, each / 16; bits 62-63 swizzle mode, 1 for 128 bytes). `address`: of row 0 of a group of 8 panel rows.
//   the sum runs along a panel row (K-major): stride_bytes from 8 rows to the next, 1024; leading_bytes unused; 16 numbers
//     further along the sum are 32 bytes further, so add 32 >> 4 to the descriptor, within a panel
//   the sum runs down the rows (transposed, MN-major): leading_bytes from one panel to the next; stride_bytes from 8 rows of
//     the sum to the next, 1024; 16 further along the sum are 2048 bytes
DEVICE uint64_t descriptor(uint32_t address, int leading_bytes, int stride_bytes) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | uint64_t{1} << 62;
}

#if ON_GPU

#define REGISTERS_OF_TEN(ten)                                                                                       \
  "%" #ten "0, %" #ten "1, %" #ten "2, %" #ten "3, %" #ten "4, %" #ten "5, %" #ten "6, %" #ten "7, %" #ten "8, %" #ten "9, "
#define REGISTERS_30 REGISTERS_OF_TEN() REGISTERS_OF_TEN(1) REGISTERS_OF_TEN(2)
#define REGISTERS_60 REGISTERS_30 REGISTERS_OF_TEN(3) REGISTERS_OF_TEN(4) REGISTERS_OF_TEN(5)
#define REGISTERS_90 REGISTERS_60 REGISTERS_OF_TEN(6) REGISTERS_OF_TEN(7) REGISTERS_OF_TEN(8)
#define REGISTERS_120 REGISTERS_90 REGISTERS_OF_TEN(9) REGISTERS_OF_TEN(10) REGISTERS_OF_TEN(11)
#define SUMS_24 "{" REGISTERS_OF_TEN() REGISTERS_OF_TEN(1) "%20, %21, %22, %23}"
#define SUMS_32 "{" REGISTERS_30 "%30, %31}"
#define SUMS_40 "{" REGISTERS_30 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39}"
#define SUMS_48 "{" REGISTERS_30 REGISTERS_OF_TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47}"
#define SUMS_64 "{" REGISTERS_60 "%60, %61, %62, %63}"
#define SUMS_88 "{" REGISTERS_60 REGISTERS_OF_TEN(6) REGISTERS_OF_TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87}"
#define SUMS_96 "{" REGISTERS_90 "%90, %91, %92, %93, %94, %95}"
#define SUMS_128 "{" REGISTERS_120 "%120, %121, %122, %123, %124, %125, %126, %127}"

#define BOUND_8(i)                                                                                            \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])
#define BOUND_24 BOUND_8(0), BOUND_8(8), BOUND_8(16)
#define BOUND_32 BOUND_24, BOUND_8(24)
#define BOUND_40 BOUND_32, BOUND_8(32)
#define BOUND_48 BOUND_40, BOUND_8(40)
#define BOUND_64 BOUND_48, BOUND_8(48), BOUND_8(56)
#define BOUND_88 BOUND_64, BOUND_8(64), BOUND_8(72), BOUND_8(80)
#define BOUND_96 BOUND_88, BOUND_8(88)
#define BOUND_128 BOUND_96, BOUND_8(96), BOUND_8(104), BOUND_8(112), BOUND_8(120)

// The instruction for sums in `count` registers, n = 2 * count columns; p0 .. p5 are the numbers of the operands after them.
// (PTX ISA, wgmma.mma_async: predicate scale-d, factors imm-scale-a and -b 1, then imm-trans-a and -b.)
#define PRODUCT_SHARED(n, count, type, p0, p1, p2, p3, p4)                                                        \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #p2 ", 0;\n"                                            \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " SUMS_##count ", %" #p0 ", %" #p1 \
               ", adds, 1, 1, %" #p3 ", %" #p4 ";\n}\n"                                                           \
               : BOUND_##count : "l"(a), "l"(b), "r"(adds), "n"(TransposedA), "n"(TransposedB))
#define PRODUCT_REGISTERS(n, count, type, p0, p1, p2, p3, p4, p5, p6)                                             \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #p5 ", 0;\n"                                            \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " SUMS_##count                   \
               ", {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", adds, 1, 1, %" #p6 ";\n}\n"                 \
               : BOUND_##count                                                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(TransposedB))

#define PRODUCTS(n, count, p0, p1, p2, p3, p4, p5, p6)                                                 \
  template <bool IsBf16, int TransposedA, int TransposedB>                                             \
  DEVICE void product_shared(float (&c)[count], uint64_t a, uint64_t b, int adds) {                    \
    if constexpr (IsBf16) {                                                                            \
      PRODUCT_SHARED(n, count, "bf16", p0, p1, p2, p3, p4);                                            \
    } else {                                                                                           \
      PRODUCT_SHARED(n, count, "f16", p0, p1, p2, p3, p4);                                             \
    }                                                                                                  \
  }                                                                                                    \
  template <bool IsBf16, int TransposedB>                                                              \
  DEVICE void product_registers(float (&c)[count], const uint32_t (&a)[4], uint64_t b, int adds) {     \
    if constexpr (IsBf16) {                                                                            \
      PRODUCT_REGISTERS(n, count, "bf16", p0, p1, p2, p3, p4, p5, p6);                                 \
    } else {                                                                                           \
      PRODUCT_REGISTERS(n, count, "f16", p0, p1, p2, p3, p4, p5, p6);                                  \
    }                                                                                                  \
  }
PRODUCTS(48, 24, 24, 25, 26, 27, 28, 29, 30)
PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37, 38)
PRODUCTS(80, 40, 40, 41, 42, 43, 44, 45, 46)
PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53, 54)
PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69, 70)
PRODUCTS(176, 88, 88, 89, 90, 91, 92, 93, 94)
PRODUCTS(192, 96, 96, 97, 98, 99, 100, 101, 102)
PRODUCTS(256, 128, 128, 129, 130, 131, 132, 133, 134)

#endif

// c = (accumulate ? c : 0) + a b, when it has been waited for. Transposed: the sum runs down the operand's rows.
template <typename T, int N, bool TransposedA, bool TransposedB>
DEVICE void multiply_shared(float (&c)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
#if ON_GPU
  product_shared<Format<T>::is_bf16, TransposedA, TransposedB>(c, a, b, accumulate);
#else
  emulator::multiply_shared(c, N, a, b, {Format<T>::is_bf16, TransposedA, TransposedB, accumulate});
#endif
}

// The same with A in registers, which stay untouched until the product has been waited for.
template <typename T, int N, bool TransposedB>
DEVICE void multiply_registers(float (&c)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate = true) {
#if ON_GPU
  product_registers<Format<T>::is_bf16, TransposedB>(c, a, b, accumulate);
#else
  emulator::multiply_registers(c, N, a, b, {Format<T>::is_bf16, false, TransposedB, accumulate});
#endif
}
