// The tensor cores as every GPU since sm_80 has them: one warp multiplies 16 x 16 by 16 x 8.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"), lane = 4 * group + member:
//   a[0] rows group, a[1] rows group + 8, columns 2 * member + {0, 1}; a[2], a[3] the same, 8 columns further
//   b0 rows 2 * member + {0, 1} of column group; b1 8 rows further
//   c[0], c[1] row group, columns 2 * member + {0, 1}; c[2], c[3] row group + 8
#pragma once
#include "numbers.h"

// Four 8 x 8 matrices of 16-bit numbers: lane 8 * i + r hands the address of row r of matrix i (16 bytes, aligned); r[i] then
// holds of matrix i the pair (row group, columns 2 * member + {0, 1}) (PTX ISA, ldmatrix).
DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address) {
#if ON_GPU
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
#else
  emulator::load_matrices(r, address, false);
#endif
}

// The same of the transposed matrices: the pair (rows 2 * member + {0, 1}, column group).
DEVICE void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
#if ON_GPU
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
#else
  emulator::load_matrices(r, address, true);
#endif
}

// c += a b, products of T, sums of f32.
template <typename T> DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if ON_GPU
  if constexpr (Format<T>::is_bf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  emulator::multiply_add(c, a, b0, b1, Format<T>::is_bf16);
#endif
}
