// Blocks of keys add to dQ in turn (sm_90a), so that its bits are the same every time: of those that visit a block of queries the
// last block of keys first. It waits for none, and all others for blocks of threads that began before them; and where each sees what
// is before it, each comes to a block of queries just when the one before it has left.
#pragma once
#include "sm90_keys.h"
#include "sm90_pipeline.h"

namespace sm90 {

// How many blocks of keys add to dQ of a block of queries before this one; and the number that its turn is passed on with, 0 behind
// the last.
struct Place {
  int before = 0;
  int next = 0;

  Place() = default;
  // `visitors`: two intervals of numbers of blocks of keys.
  DEVICE Place(const Spans& visitors, int block) {
    int all = 0;
    before = 0;
    UNROLL
    for (int i = 0; i < 2; ++i) {
      before += max(0, visitors.end[i] - max(visitors.start[i], block + 1));
      all += visitors.end[i] - visitors.start[i];
    }
    next = before + 1 == all ? 0 : before + 1;
  }
};

// The number of the block of keys that a block of threads takes: by when it began.
template <class Kernel, class Memory> DEVICE int block_number(const BackwardArguments& arguments, const Memory& memory) {
  if constexpr (!Kernel::in_turn) return static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    const int number = take_number(arguments.order.taken);
    if (number + 1 == static_cast<int>(gridDim.x)) store_global(arguments.order.taken, 0);
    store_shared(memory.number(), number);
  }
  __syncthreads();
  return load_shared<int>(memory.number());
}

// What is kept of the block of keys for its turns.
struct alignas(16) KeptTurns {
  const Spans* visitors;   // of the blocks of queries
  int block;               // of keys
  int head;                // the first one of queries, counted on over batch rows
};

// The blocks of queries that a block of keys visits, one after the other, of each of the heads that share it.
template <class Kernel, class Memory> struct Visited {
  const BackwardArguments& arguments;
  Memory memory;

  DEVICE BlockWalk<Kernel::queries> walk() const { return load_shared<BlockWalk<Kernel::queries>>(memory.kept_walk()); }
  DEVICE KeptTurns kept() const { return load_shared<KeptTurns>(memory.kept_turns()); }

  // Among those that visit the block of queries at `index` of the walk: of all heads the same.
  DEVICE Place place_at(int index) const { return Place(load_global_early(kept().visitors + walk().block(index)), kept().block); }

  // The block of queries among all.
  DEVICE int number_at(int head, int index) const {
    return (kept().head + head) * (arguments.padded / Kernel::queries) + walk().block(index);
  }
};

// A warp of a consumer: its part of a block's dQ is in shared memory.
template <class Memory> DEVICE void hand_over(const Memory& memory) {
  proxy_fence();
  __syncwarp();
  if (lane_index() == 0) barrier_arrive(memory.sums_full());
}

// One thread: brings dQ of one block of queries after the other from shared to global memory. It has as few registers as the producer.
template <class Kernel, class Memory> struct TurnWriter : Visited<Kernel, Memory> {
  using Visited<Kernel, Memory>::arguments;
  using Visited<Kernel, Memory>::memory;

  // The turn is awaited, and the next place looked up, while others multiply and add.
  DEVICE void run() {
    uint32_t parity = 0;
    Place place = this->place_at(0);
    NO_UNROLL
    for (int head = 0; head < arguments.group; ++head) {
      NO_UNROLL
      for (int index = 0; index < this->walk().count(); ++index, parity ^= 1) {
        const int number = this->number_at(head, index);
        wait_for_turn(arguments.turns + number, place.before);
        barrier_wait(memory.sums_full(), parity);
        start_adding(arguments.dq + static_cast<int64_t>(number) * (Kernel::queries * Kernel::dim), memory.sums(), Kernel::sum_bytes);
        const int next = place.next;
        place = this->place_at(index + 1 < this->walk().count() ? index + 1 : 0);
        wait_until_read();
        barrier_arrive(memory.sums_empty());
        wait_until_added();
        pass_turn(arguments.turns + number, next);
      }
    }
  }
};

}  // namespace sm90
