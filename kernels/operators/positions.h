// Where a shard's tokens lie in the whole text: runs.
#pragma once
#include "../vocabulary/gpu.h"

// Blocks of `width` neighbours whose starts are `step` apart, `len` of them.
template <typename Number> struct RunOf {
  Number start;
  Number step;
  Number len;
  Number width;
};
using Run = RunOf<int64_t>;
// Of positions below 2^32.
using ShortRun = RunOf<uint32_t>;

// The position of the shard's token `row`. A shard has one run or two, seldom more: they are walked.
template <typename Number, typename Row> DEVICE Number position_of(const RunOf<Number>* runs, Row row) {
  Number index = static_cast<Number>(row);
  while (index >= runs->len * runs->width) {
    index -= runs->len * runs->width;
    runs++;
  }
  return runs->start + runs->step * (index / runs->width) + index % runs->width;
}
