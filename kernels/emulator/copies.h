// Copies that a thread starts and later waits for (cp.async). Until the wait the destination may hold the new data, or not yet:
// a coin decides, and what is not there yet is NaN.
#pragma once
#include "warp.h"

namespace emulator {

constexpr uint32_t COPY_BYTES = 16;

inline void finish(const PendingCopy& copy) {
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, COPY_BYTES);
  } else {
    std::memcpy(copy.to, copy.from, COPY_BYTES);
  }
}

inline void copy_async(uint32_t address, const void* global, bool valid) {
  Block& block = *running;
  block.pass();
  if (valid) check_global(global, COPY_BYTES);
  Thread& thread = *block.current;
  const Clock& known = block.knowledge().all;
  const PendingCopy copy{shared().at(address, COPY_BYTES, COPY_BYTES, "cp.async"), valid ? global : nullptr};
  const uint32_t author = deed(copies_of_warp(thread.warp), block.warp().copy_base + thread.commits + 1);
  shared().note_write(Shared::word_of(address), COPY_BYTES / 4, author, known, known, "cp.async");
  if (block.random.next() & 1) {
    finish(copy);
  } else {
    std::memset(copy.to, 0xff, COPY_BYTES);
  }
  thread.copies.push_back(copy);
  ++thread.open;
}

inline void copy_commit() {
  Thread& thread = *running->current;
  thread.groups.push_back(thread.open);
  thread.open = 0;
  ++thread.commits;
}

inline void copy_wait(int pending) {
  Block& block = *running;
  Thread& thread = *block.current;
  if (thread.groups.size() <= static_cast<size_t>(pending)) return;
  const size_t groups = thread.groups.size() - static_cast<size_t>(pending);
  size_t copies = 0;
  for (size_t group = 0; group < groups; ++group) copies += thread.groups[group];
  for (size_t copy = 0; copy < copies; ++copy) finish(thread.copies[copy]);
  thread.groups.erase(thread.groups.begin(), thread.groups.begin() + static_cast<ptrdiff_t>(groups));
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<ptrdiff_t>(copies));
  uint32_t& seen = block.knowledge().all.tick[copies_of_warp(thread.warp)];
  seen = std::max(seen, block.warp().copy_base + thread.commits - static_cast<uint32_t>(pending));
  block.pass();
}

}  // namespace emulator
