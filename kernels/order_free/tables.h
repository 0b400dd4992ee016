// Tables of order-free sums: added to each other, and read. One warp to a row.
#pragma once
#include "bins.h"

// to += from, both [rows, 3 width + 1]. Grid: `ceiling_divide(rows, 8)`.
struct AddSumsArguments {
  const uint32_t* from;
  uint32_t* to;
  int64_t rows;
  int width;
};

// values [rows, width] = the sums [rows, 3 width + 1], each rounded once; NaN of a row that is spoilt. Grid: as above.
struct ReadSumsArguments {
  const uint32_t* sums;
  float* values;
  int64_t rows;
  int width;
};

// Which row this warp is at.
DEVICE int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * (OPERATOR_THREADS / 32) + warp_index();
}

DEVICE void add_sums(const AddSumsArguments& arguments) {
  const int64_t row = row_of_warp();
  if (row >= arguments.rows) return;
  const int width = arguments.width;
  const uint32_t* from = arguments.from + row * sums_length(width);
  uint32_t* to = arguments.to + row * sums_length(width);
  const uint32_t from_top = load(from + BINS * width), to_top = load(to + BINS * width);
  // All have read which bin is highest before one writes it.
  __syncwarp();
  uint32_t top = to_top;
  for (int column = lane_index(); column < width; column += 32) {
    RowBins<1> own;
    own.top = to_top;
    uint32_t added[BINS][1];
    UNROLL
    for (int bin = 0; bin < BINS; ++bin) {
      own.bins[bin][0] = load(to + bin * width + column);
      added[bin][0] = load(from + bin * width + column);
    }
    own.join(added, from_top);
    top = own.top;
    UNROLL
    for (int bin = 0; bin < BINS; ++bin) store_global(to + bin * width + column, own.bins[bin][0]);
  }
  if (lane_index() == 0) store_global(to + BINS * width, top);
}

DEVICE void read_sums(const ReadSumsArguments& arguments) {
  const int64_t row = row_of_warp();
  if (row >= arguments.rows) return;
  const int width = arguments.width;
  const uint32_t* sums = arguments.sums + row * sums_length(width);
  const uint32_t top = load_global(sums + BINS * width);
  const double unit = top == SPOILT ? 0.0 : power_of_two(unit_of(top));
  for (int column = lane_index(); column < width; column += 32) {
    const double sum = whole_sum(load_global(sums + column), load_global(sums + width + column),
                                 load_global(sums + 2 * width + column));
    store_global(arguments.values + row * width + column, top == SPOILT ? not_a_number() : static_cast<float>(sum * unit));
  }
}
