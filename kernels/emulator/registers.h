// Registers that warps hand back and ask for (PTX ISA, setmaxnreg): a claim waits until enough are free, on the GPU for ever if
// they never are.
//
// A block starts with what its launch bounds leave each thread: the multiprocessor's 65536 over all threads of its blocks, by 8.
#pragma once
#include "warp.h"

namespace emulator {

struct Registers {
  uint32_t free = 0;
  uint32_t of_warp[MOST_WARPS] = {};   // of each of its threads
  uint32_t waiting = 0;                // warps

  void begin(uint32_t threads, uint32_t blocks) {
    const uint32_t each = std::min(65536 / (threads * std::max(blocks, 1u)) / 8 * 8, 255u);
    free = waiting = 0;
    for (uint32_t& own : of_warp) own = each;
  }
};

inline void release_registers(uint32_t count) {
  static const char operation[] = "registers_release";
  int nothing = 0;
  together(operation, nothing, [count](int**) {
    Block& block = *running;
    Registers& registers = *block.registers;
    uint32_t& own = registers.of_warp[block.current->warp];
    if (count > own) block.fail("registers_release down to %u: a thread has %u", count, own);
    registers.free += (own - count) * LANES;
    own = count;
    for (uint32_t w = 0; w < block.warp_count; ++w) {
      if (registers.waiting >> w & 1) block.make_ready(w, ALL_LANES);
    }
    registers.waiting = 0;
  });
}

inline void claim_registers(uint32_t count) {
  static const char operation[] = "registers_claim";
  Block& block = *running;
  int nothing = 0;
  together(operation, nothing, [](int**) {});
  Registers& registers = *block.registers;
  const uint32_t warp = block.current->warp;
  while (registers.of_warp[warp] < count) {   // the first of its lanes that finds enough takes them for all
    const uint32_t wanted = (count - registers.of_warp[warp]) * LANES;
    if (wanted <= registers.free) {
      registers.free -= wanted;
      registers.of_warp[warp] = count;
    } else {
      registers.waiting |= 1u << warp;
      block.wait_for("registers; wanted of each thread:", count);
    }
  }
}

}  // namespace emulator
