// Who sees whom, in the kernel: one row's two intervals, and the blocks that a block of rows has to visit.
#pragma once
#include "../attention/arguments.h"

DEVICE bool sees(const Spans& spans, int key) {
  return (key >= spans.start[0] && key < spans.end[0]) || (key >= spans.start[1] && key < spans.end[1]);
}

// A row that sees nothing: what rows past the end of a tile are given.
DEVICE Spans sees_nothing() { return {{0, 0}, {0, 0}}; }

// The blocks of `Block` keys that any row of a block of queries sees, each once, ascending: block(0) .. block(count() - 1).
// (The same with keys and queries exchanged.)
template <int Block> struct BlockWalk {
  int first[2];
  int last[2];

  BlockWalk() = default;
  DEVICE explicit BlockWalk(const Reach& reach) {
    const bool swapped = !empty(reach, 1) && (empty(reach, 0) || reach.reach_start[1] < reach.reach_start[0]);
    const int early = swapped ? 1 : 0, late = 1 - early;
    first[0] = reach.reach_start[early] / Block;
    last[0] = empty(reach, early) ? first[0] : (reach.reach_end[early] + Block - 1) / Block;
    first[1] = max(reach.reach_start[late] / Block, last[0]);
    last[1] = empty(reach, late) ? first[1] : max((reach.reach_end[late] + Block - 1) / Block, first[1]);
  }

  static DEVICE bool empty(const Reach& reach, int which) { return reach.reach_start[which] >= reach.reach_end[which]; }

  DEVICE int count() const { return last[0] - first[0] + last[1] - first[1]; }

  DEVICE int block(int index) const {
    const int early = last[0] - first[0];
    return index < early ? first[0] + index : first[1] + index - early;
  }
};

// Whether every pair of a block and the rows that `reach` is of sees each other: no mask is needed then.
DEVICE bool is_full(const Reach& reach, int start, int end) {
  return (start >= reach.full_start[0] && end <= reach.full_end[0]) ||
         (start >= reach.full_start[1] && end <= reach.full_end[1]);
}

// How much of the pairs of a block `start .. end` and the rows that `reach` is of see each other.
enum class Coverage { Empty, Partial, Full };

DEVICE Coverage coverage(const Reach& reach, int start, int end) {
  if (is_full(reach, start, end)) return Coverage::Full;
  const bool touched = max(start, reach.reach_start[0]) < min(end, reach.reach_end[0]) ||
                       max(start, reach.reach_start[1]) < min(end, reach.reach_end[1]);
  return touched ? Coverage::Partial : Coverage::Empty;
}
