// Sums that TMA adds to global memory beside the threads (sm_90). What a thread starts is read and added at once
// if a coin says so, else when the thread waits for it; until that wait shared memory has to stay as it was.
#pragma once
#include "shared.h"

namespace emulator {

struct BulkSum {
  float* to;
  uint32_t from, bytes;
  const Thread* owner;
  Clock known;                 // of the asynchronous units, when it was started
  std::vector<float> values;   // once it was read
  bool was_read = false, awaited = false, added = false;
};

struct BulkSums {
  std::vector<BulkSum> pending;
  bool eager = false;

  void begin(Random& random) {
    eager = random.below(2) == 0;
    pending.clear();
  }

  // All threads have returned.
  void end() const {
    if (!pending.empty()) running->fail("the block ended with sums under way");
  }

  // Notes who reads where, which is where a race shows; and reads, if that was not done.
  static void read(BulkSum& sum) {
    Block& block = *running;
    const uint32_t warp = block.current->warp, word = Shared::word_of(sum.from);
    block.shared->note_read(word, sum.bytes / 4, warp, block.knowledge().all.tick[warp], sum.known, "start_adding");
    if (sum.was_read) return;
    sum.was_read = true;
    sum.values.resize(sum.bytes / 4);
    std::memcpy(sum.values.data(), block.shared->at(sum.from, sum.bytes, 16, "start_adding"), sum.bytes);
  }

  static void add(BulkSum& sum) {
    if (sum.added) return;
    sum.added = true;
    for (size_t i = 0; i < sum.values.size(); ++i) add_global(sum.to + i, sum.values[i]);
  }
};

inline void start_adding(float* to, uint32_t from, int bytes) {
  Block& block = *running;
  block.pass();
  if (bytes <= 0 || bytes % 16 != 0) block.fail("start_adding: %d bytes: a multiple of 16 is wanted", bytes);
  check_global(to, 16);
  BulkSums& sums = *block.sums;
  sums.pending.push_back({to, from, static_cast<uint32_t>(bytes), block.current, block.knowledge().proxied, {}});
  if (!sums.eager) return;
  BulkSums::read(sums.pending.back());
  if (block.random.below(2) == 0) BulkSums::add(sums.pending.back());
}

// Until all but the newest `unread` of this thread's are read.
inline void wait_until_read(int unread) {
  Block& block = *running;
  block.pass();
  std::vector<BulkSum>& pending = block.sums->pending;
  const auto own = [&](const BulkSum& sum) { return sum.owner == block.current; };
  auto left = std::count_if(pending.begin(), pending.end(), own) - unread;
  for (BulkSum& sum : pending) {
    if (!own(sum) || left-- <= 0) continue;
    if (!sum.awaited) BulkSums::read(sum);
    sum.awaited = true;
  }
}

// Until all of them are added.
inline void wait_until_added() {
  wait_until_read(0);
  Block& block = *running;
  std::vector<BulkSum>& pending = block.sums->pending;
  const auto own = [&](const BulkSum& sum) { return sum.owner == block.current; };
  for (BulkSum& sum : pending) {
    if (own(sum)) BulkSums::add(sum);
  }
  pending.erase(std::remove_if(pending.begin(), pending.end(), own), pending.end());
}

}  // namespace emulator
