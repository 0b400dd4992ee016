// Rows of the tensors that kernels read, and what a row sees: of 32 neighbouring keys as bits, the mask of a block that is
// neither empty nor full.
#pragma once
#include "../vocabulary/memory.h"
#include "../vocabulary/spans.h"

// Where row `row` of a head begins.
template <typename T> DEVICE const T* row_start(const void* tensor, const Strides& strides, int batch, int head, int row) {
  return static_cast<const T*>(tensor) + (batch * strides.batch + head * strides.head + row * strides.row);
}

// The lowest `count` bits; none below 0, all from 32 on.
DEVICE uint32_t lowest_bits(int count) { return count >= 32 ? ~0u : (1u << max(count, 0)) - 1u; }

// Bit i: whether key first + i is seen.
DEVICE uint32_t seen_bits(const Spans& spans, int first) {
  return (lowest_bits(spans.end[0] - first) & ~lowest_bits(spans.start[0] - first)) |
         (lowest_bits(spans.end[1] - first) & ~lowest_bits(spans.start[1] - first));
}

// Of batch row `batch`, where all may share one: row `row` of a list of `rows` each, or nothing past them.
DEVICE Spans spans_of(const Spans* list, int visibilities, int rows, int batch, int row) {
  if (row >= rows) return sees_nothing();
  return load_global(list + static_cast<int64_t>(visibilities == 1 ? 0 : batch) * rows + row);
}

// The same of blocks of `Block` rows.
template <int Block> DEVICE const Reach& reach_of(const Reach* list, int visibilities, int rows, int batch, int block) {
  return list[static_cast<int64_t>(visibilities == 1 ? 0 : batch) * ceiling_divide(rows, Block) + block];
}
