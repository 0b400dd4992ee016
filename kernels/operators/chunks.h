// Many tensors in one launch: a block works on a chunk of one of them.
#pragma once
#include "groups.h"

constexpr int64_t CHUNK_ELEMENTS = 65536;

// Elements `index * CHUNK_ELEMENTS ..` of a table's tensor, as many as there are up to CHUNK_ELEMENTS.
struct alignas(8) Chunk {
  int tensor;
  int index;
};

// Calls `work(at, lanes)` for the elements of a chunk of a tensor of `count`, as `for_range` does.
template <int N, typename Work> DEVICE void for_chunk(Chunk chunk, int64_t count, bool grouped, Work work) {
  const int64_t first = chunk.index * CHUNK_ELEMENTS;
  for_range<N>(first, first + CHUNK_ELEMENTS < count ? first + CHUNK_ELEMENTS : count, grouped, work);
}
