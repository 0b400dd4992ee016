// Numbers in global memory by which blocks of threads wait for each other, in the order in which they began.
#pragma once
#include <chrono>
#include <thread>

#include "bulk_sums.h"

namespace emulator {

constexpr std::chrono::seconds MOST_PATIENCE{20};   // with a number that stays as it is

inline void wait_for_turn(const int* turn, int own) {
  Block& block = *running;
  check_global(turn, sizeof(int));
  int last = own;
  auto since = std::chrono::steady_clock::now();
  for (int found; (found = __atomic_load_n(turn, __ATOMIC_ACQUIRE)) != own;) {
    if (block.launch_failed->load()) block.fail("another block failed");
    const auto now = std::chrono::steady_clock::now();
    if (found != last) since = now;
    last = found;
    if (now - since > MOST_PATIENCE) block.fail("wait_for_turn: turn %d does not come, it is still that of %d", own, found);
    block.engine->step();
    block.give_way();
    std::this_thread::yield();
  }
  block.turn = turn;
}

// Whose turn it is, once what it started to add is added.
inline void pass_turn(int* turn, int next) {
  Block& block = *running;
  check_global(turn, sizeof(int));
  if (block.turn != turn) block.fail("pass_turn without wait_for_turn");
  block.turn = nullptr;
  for (const BulkSum& sum : block.sums->pending) {
    if (sum.owner == block.current) block.fail("pass_turn without wait_until_added");
  }
  __atomic_store_n(turn, next, __ATOMIC_RELEASE);
}

}  // namespace emulator
