// Where a shard's tokens lie in the whole text: runs, the same bytes as `annulus_sequence::Run` in Rust.
#pragma once
#include "../vocabulary/gpu.h"

// Blocks of `width` neighbours whose starts are `step` apart, `len` of them.
struct Run {
  int64_t start;
  int64_t step;
  int64_t len;
  int64_t width;
};

// The position of the shard's token `index`. A shard has one run or two, seldom more: they are walked.
DEVICE int64_t position_of(const Run* runs, int64_t index) {
  while (index >= runs->len * runs->width) {
    index -= runs->len * runs->width;
    runs++;
  }
  return runs->start + runs->step * (index / runs->width) + index % runs->width;
}
