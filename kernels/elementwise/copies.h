// Copies that change the type or the order in memory.
#pragma once
#include "../operators/groups.h"

// `count` elements to another type, rounded to nearest even. Grid: `ceiling_divide(count, FLAT_ELEMENTS)`.
struct CastArguments {
  const void* from;
  void* to;
  int64_t count;
};

// A view of up to five dimensions, strides in elements, made row-major without gaps. Missing dimensions come first, as 1; none
// is empty. Grid: `ceiling_divide(product of sizes, FLAT_ELEMENTS)`, or less.
struct GatherArguments {
  const void* from;
  void* to;
  int64_t sizes[5];
  int64_t strides[5];
};

template <typename From, typename To> DEVICE void cast(const CastArguments& arguments) {
  const From* from = static_cast<const From*>(arguments.from);
  To* to = static_cast<To*>(arguments.to);
  for_flat<GROUP<From, To>>(arguments.count, aligned(from, to), [&](int64_t at, auto lanes) {
    float values[decltype(lanes)::COUNT];
    read(from + at, values);
    write(to + at, values);
  });
}

// Where element `index` of a view lies. Index: an unsigned integer that holds all indices; the shorter, the faster its divisions.
template <typename Index> DEVICE int64_t offset_of(Index index, const int64_t (&sizes)[5], const int64_t (&strides)[5]) {
  int64_t offset = 0;
  UNROLL
  for (int dim = 4; dim > 0; dim--) {
    const Index size = static_cast<Index>(sizes[dim]);
    if (size == 1) continue;
    offset += static_cast<int64_t>(index % size) * strides[dim];
    index /= size;
  }
  return offset + static_cast<int64_t>(index) * strides[0];
}

// Elements that are whole units of memory.
template <typename Unit>
DEVICE void gather_units(const GatherArguments& arguments, const int64_t (&sizes)[5], const int64_t (&strides)[5]) {
  const Unit* from = static_cast<const Unit*>(arguments.from);
  Unit* to = static_cast<Unit*>(arguments.to);
  int64_t count = 1;
  for (int dim = 0; dim < 5; dim++) count *= sizes[dim];
  const bool is_short = count <= 0xffffffffll;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += step) {
    const int64_t offset = is_short ? offset_of(static_cast<uint32_t>(at), sizes, strides)
                                    : offset_of(static_cast<uint64_t>(at), sizes, strides);
    store_global(to + at, load(from + offset));
  }
}

// T: an integer of the elements' size. Rows of whole groups of 16 bytes are a view of such groups.
template <typename T> DEVICE void gather(const GatherArguments& arguments) {
  constexpr int N = 16 / sizeof(T);
  int64_t sizes[5], strides[5];
  bool whole = arguments.strides[4] == 1 && aligned(arguments.from, arguments.to) && arguments.sizes[4] % N == 0;
  UNROLL
  for (int dim = 0; dim < 4; dim++) {
    sizes[dim] = arguments.sizes[dim];
    strides[dim] = arguments.strides[dim] / N;
    whole = whole && arguments.strides[dim] % N == 0;
  }
  sizes[4] = arguments.sizes[4] / N;
  strides[4] = 1;
  if (whole) {
    gather_units<Int4>(arguments, sizes, strides);
  } else {
    gather_units<T>(arguments, arguments.sizes, arguments.strides);
  }
}
