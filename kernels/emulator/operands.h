// The operands of asynchronous products: 16-bit matrices in swizzled shared memory, found as a descriptor says (PTX ISA, "Matrix
// Descriptor Format" and "Strides" of wgmma).
//
// With the 128-byte swizzle, element (outer, k) of an operand, outer its row or column, lies before the swizzle at
//   sum along the rows (K-major):   start + outer / 8 * stride + outer % 8 * 128 + k * 2
//   transposed (MN-major):          start + outer / 64 * leading + k / 8 * stride + k % 8 * 128 + outer % 64 * 2
#pragma once
#include "bulk_copies.h"

namespace emulator {

struct ProductForm {
  bool is_bf16, transposed_a, transposed_b, accumulate;
  bool operator==(const ProductForm& other) const {
    return is_bf16 == other.is_bf16 && transposed_a == other.transposed_a && transposed_b == other.transposed_b &&
           accumulate == other.accumulate;
  }
};

// Reads chunks of eight numbers as the asynchronous unit of a warp that started to read when it knew `known`; or only notes that
// it still reads them.
struct OperandReader {
  const Clock& known;
  uint32_t warp, tick;
  bool is_bf16, only_notes;

  void chunk(uint32_t address, float* values) const {
    const uint32_t at = swizzled(address);
    Shared& memory = shared();
    const unsigned char* bytes = memory.at(at, 16, 16, "operand of a product");
    memory.note_read(Shared::word_of(at), 4, warp, tick, known, "operand of a product");
    if (only_notes) return;
    uint16_t half[8];
    std::memcpy(half, bytes, sizeof half);
    widen(half, is_bf16, values);
  }
};

struct OperandLayout {
  uint32_t start, leading, stride;

  OperandLayout(uint64_t descriptor, bool transposed) {
    start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
    leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
    stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
    Block& block = *running;
    if (descriptor >> 62 != 1 || (descriptor >> 46 & 0xffff) != 0) {
      block.fail("descriptor %#llx: not of the 128-byte swizzle", static_cast<unsigned long long>(descriptor));
    }
    if ((start >> 7 & 7) != 0) block.fail("descriptor: address %u is not of the first of eight rows (of 1024 bytes)", start);
    if (stride % 1024 != 0 || stride == 0) block.fail("descriptor: %u stride bytes: groups of eight rows lie 1024 apart", stride);
    if (transposed && start % 128 != 0) block.fail("descriptor: a transposed operand starts at a panel's row, not at %u", start);
    if (!transposed && start % 128 > 96) block.fail("descriptor: 16 numbers from %u on leave the panel's row", start);
  }

  // 16 numbers of the sum for `count` rows or columns from `first` on: by rows of the operand.
  void by_outer(const OperandReader& reader, uint32_t first, uint32_t count, float* values) const {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t outer = first + i;
      const uint32_t row = start + outer / 8 * stride + outer % 8 * 128;
      reader.chunk(row, values + i * 16);
      reader.chunk(row + 16, values + i * 16 + 8);
    }
  }

  // The same of a transposed operand: for each of the 16, `count` (a multiple of 8) rows or columns, `pitch` floats apart.
  void by_sum(const OperandReader& reader, uint32_t first, uint32_t count, float* values, uint32_t pitch) const {
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t row = start + k / 8 * stride + k % 8 * 128;
      for (uint32_t i = 0; i < count; i += 8) {
        const uint32_t outer = first + i;
        reader.chunk(row + outer / 64 * leading + outer % 64 * 2, values + k * pitch + i);
      }
    }
  }
};

constexpr uint32_t MOST_COLUMNS = 256;

// A warp's 16 rows of A, by rows.
inline void read_a(const OperandReader& reader, uint64_t descriptor, bool transposed, uint32_t first_row, float (&a)[16][16]) {
  const OperandLayout layout(descriptor, transposed);
  if (!transposed) return layout.by_outer(reader, first_row, 16, a[0]);
  float turned[16][16];
  layout.by_sum(reader, first_row, 16, turned[0], 16);
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 16; ++row) a[row][k] = turned[k][row];
  }
}

// B, by rows of the sum.
inline void read_b(const OperandReader& reader, uint64_t descriptor, bool transposed, uint32_t columns,
                   float (&b)[16][MOST_COLUMNS]) {
  const OperandLayout layout(descriptor, transposed);
  if (transposed) return layout.by_sum(reader, 0, columns, b[0], MOST_COLUMNS);
  float turned[MOST_COLUMNS][16];
  layout.by_outer(reader, 0, columns, turned[0]);
  for (uint32_t column = 0; column < columns; ++column) {
    for (int k = 0; k < 16; ++k) b[k][column] = turned[column][k];
  }
}

}  // namespace emulator
