// The parts of the vocabulary that are plain arithmetic: where panels put their elements, which blocks a reach visits.
#pragma once
#include "../../vocabulary/spans.h"
#include "bench.h"

namespace tests {

// Panels are rows of 128 bytes, swizzled as TMA does it.
inline std::string panels() {
  for (int rows : {16, 64, 128}) {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < 192; ++column) {
        const uint32_t plain = static_cast<uint32_t>(column / 64 * rows * 128 + row * 128 + column % 64 * 2);
        const uint32_t found = panel_address(rows, row, column);
        if (found != emulator::swizzled(plain)) return differs("panel address", plain, found, emulator::swizzled(plain));
      }
    }
  }
  return panel_bytes(64, 80) == 2 * 64 * 128 ? "" : "panel_bytes";
}

// Every block that holds a key of the reach, once and ascending; full only where one interval holds all of it.
inline std::string walks(uint64_t seed) {
  emulator::Random random;
  random.seed(seed, 7);
  for (int round = 0; round < 300; ++round) {
    Reach reach{};
    for (int i = 0; i < 2; ++i) {
      reach.reach_start[i] = static_cast<int>(random.below(200));
      reach.reach_end[i] = static_cast<int>(random.below(250));
      reach.full_start[i] = reach.reach_start[i] + static_cast<int>(random.below(20));
      reach.full_end[i] = reach.reach_end[i] - static_cast<int>(random.below(20));
    }
    const BlockWalk<16> walk(reach);
    int visited = 0;
    for (int block = 0; block < 16; ++block) {
      const Spans all{{reach.reach_start[0], reach.reach_start[1]}, {reach.reach_end[0], reach.reach_end[1]}};
      int touched = 0;
      for (int key = block * 16; key < block * 16 + 16; ++key) touched += sees(all, key) ? 1 : 0;
      const Coverage found = coverage(reach, block * 16, block * 16 + 16);
      const size_t number = static_cast<size_t>(block);
      if ((found == Coverage::Empty) != (touched == 0)) return differs("coverage of block", number, touched, 0);
      if (found == Coverage::Full && touched != 16) return differs("full block", number, touched, 16);
      if (touched == 0) continue;
      const int step = visited < walk.count() ? walk.block(visited) : -1;
      if (step != block) return differs("step", static_cast<size_t>(visited), step, block);
      ++visited;
    }
    if (visited != walk.count()) return differs("steps", static_cast<size_t>(round), walk.count(), visited);
  }
  return "";
}

inline void add_tile_cases(std::vector<Case>& cases, uint64_t seed) {
  if (seed == 0) cases.push_back({"panels", panels});
  cases.push_back({"walks over blocks", [=] { return walks(seed); }});
}

}  // namespace tests
