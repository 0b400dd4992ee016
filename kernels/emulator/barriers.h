// Where threads wait for each other: the block's 16 numbered barriers, and those that live in shared memory and count bytes too.
#pragma once
#include "warp.h"

namespace emulator {

// A barrier that whole warps meet at.
struct Meeting {
  uint32_t arrived = 0;    // warps
  uint32_t expected = 0;   // 0: nobody is here
  uint32_t waiting = 0;    // which warps
  Knowledge knows;
};

struct Meetings {
  Meeting meeting[16];
};

// Lets what a warp knows flow into a barrier; deeds after this are later than what the barrier hands on.
inline void publish(Knowledge& into) {
  Block& block = *running;
  Knowledge& own = block.knowledge();
  into.join(own);
  ++own.all.tick[block.current->warp];
}

inline void complete(Meeting& meeting) {
  Block& block = *running;
  for (uint32_t w = 0; w < block.warp_count; ++w) {
    if ((meeting.waiting >> w & 1) == 0) continue;
    block.warps[w].knows.join(meeting.knows);
    block.make_ready(w, ALL_LANES);
  }
  meeting = Meeting();
}

// One warp arrives, as `expected` warps will; the last one wakes the others. True where this warp has to wait.
inline bool arrive(uint32_t id, uint32_t expected, bool waits) {
  Block& block = *running;
  Meeting& meeting = block.meetings->meeting[id];
  if (meeting.expected != 0 && meeting.expected != expected) {
    block.fail("barrier %u: %u threads expected here, %u elsewhere", id, expected * LANES, meeting.expected * LANES);
  }
  meeting.expected = expected;
  publish(meeting.knows);
  ++meeting.arrived;
  if (meeting.arrived == expected) {
    if (waits) block.knowledge().join(meeting.knows);
    complete(meeting);
    return false;
  }
  if (waits) meeting.waiting |= 1u << block.current->warp;
  return waits;
}

// The last lane of a warp settles the warp's arrival; the others sleep on or are woken.
inline void arrive_by_warps(const char* operation, uint32_t id, uint32_t expected, bool waits) {
  if (!meet(operation, nullptr)) return;
  Block& block = *running;
  if (arrive(id, expected, waits)) return block.wait_for("numbered barrier", id);
  block.make_ready(block.current->warp, ~(1u << block.current->lane));
  block.give_way();
}

inline void synchronize_block() {
  static const char operation[] = "__syncthreads";
  Block& block = *running;
  uint32_t left = 0;
  for (uint32_t w = 0; w < block.warp_count; ++w) left += block.warps[w].finished != ALL_LANES;
  arrive_by_warps(operation, 0, left, true);
}

// A warp has returned from the kernel: `__syncthreads` does not wait for it any more.
inline void leave_meetings() {
  Meeting& meeting = running->meetings->meeting[0];
  if (meeting.expected != 0 && --meeting.expected == meeting.arrived) complete(meeting);
}

inline void named_barrier(int id, int threads, bool waits) {
  static const char sync[] = "named_sync", arrival[] = "named_arrive";
  Block& block = *running;
  if (id < 0 || id > 15) block.fail("barrier %d: there are 16", id);
  if (threads <= 0 || threads % 32 != 0) block.fail("barrier %d of %d threads: a multiple of 32 is wanted", id, threads);
  arrive_by_warps(waits ? sync : arrival, static_cast<uint32_t>(id), static_cast<uint32_t>(threads) / LANES, waits);
}

// A barrier in shared memory (PTX ISA, "mbarrier"): a phase completes when nobody is awaited any more, neither threads nor bytes.
struct Barrier {
  uint32_t address = 0, count = 0, pending = 0, phase = 0;
  int64_t bytes = 0;                 // announced and not arrived; negative while some have arrived before they were announced
  uint32_t made = 0;                 // who initialised it when
  uint32_t tick = 0;                 // of the copies that land here
  uint32_t waiting[MOST_WARPS] = {};
  uint32_t joined[MOST_WARPS] = {};  // 1 + the phase that a warp has last learned of
  Knowledge arriving, complete;
};

struct Barriers {
  uint32_t count = 0;
  uint32_t first_tick = 0;
  Barrier barrier[MOST_BARRIERS];

  Barrier* find(uint32_t address) {
    for (uint32_t i = 0; i < count; ++i) {
      if (barrier[i].address == address) return &barrier[i];
    }
    return nullptr;
  }

  // The barrier at an address, for the current thread; it must know of its initialisation.
  Barrier& at(uint32_t address, Proxy proxy) {
    Block& block = *running;
    Barrier* found = find(address);
    if (found == nullptr) block.fail("no barrier was initialised at shared address %u", address);
    const Knowledge& known = block.knowledge();
    const Clock& clock = proxy == Proxy::Generic ? known.all : known.proxied;
    if (tick_of(found->made) > clock.tick[actor_of(found->made)]) {
      block.fail("the barrier at shared address %u is used without %s since its initialisation", address,
                 tick_of(found->made) > known.all.tick[actor_of(found->made)] ? "__syncthreads" : "barrier_init_fence");
    }
    return *found;
  }

  uint32_t actor(const Barrier& one) const { return bytes_of_barrier(static_cast<uint32_t>(&one - barrier)); }
};

inline void barrier_init(uint32_t address, int count) {
  Block& block = *running;
  Barriers& barriers = *block.barriers;
  shared().at(address, 8, 8, "barrier_init");
  if (count <= 0 || count > 1024) block.fail("barrier_init: a count of %d", count);
  Barrier* barrier = barriers.find(address);
  if (barrier == nullptr) {
    if (barriers.count == MOST_BARRIERS) block.fail("more than %u barriers in shared memory", MOST_BARRIERS);
    barrier = &barriers.barrier[barriers.count++];
    *barrier = Barrier();
    barrier->tick = barriers.first_tick;
  }
  const uint32_t warp = block.current->warp;
  const Clock& known = block.knowledge().all;
  if (barrier->address != address) {
    shared().note_write(Shared::word_of(address), 2, deed(BARRIER_WORD, 1), known, known, "barrier_init");
  }
  const uint32_t tick = barrier->tick;
  *barrier = Barrier();
  barrier->address = address;
  barrier->count = barrier->pending = static_cast<uint32_t>(count);
  barrier->made = deed(warp, known.tick[warp]);
  barrier->tick = tick;
}

// Whatever was awaited has come, perhaps all of it.
inline void settle(Barrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  Block& block = *running;
  ++barrier.phase;
  barrier.pending = barrier.count;
  barrier.complete = barrier.arriving;
  barrier.arriving = Knowledge();
  for (uint32_t w = 0; w < block.warp_count; ++w) {
    block.count_meeting(block.warps[w]);   // its lanes may have met here
    block.make_ready(w, barrier.waiting[w]);
    barrier.waiting[w] = 0;
  }
}

inline void barrier_arrive(uint32_t address, int bytes) {
  Block& block = *running;
  block.pass();
  Barrier& barrier = block.barriers->at(address, Proxy::Generic);
  if (barrier.pending == 0) block.fail("more than %u arrivals in one phase of the barrier at %u", barrier.count, address);
  if (bytes < 0 || bytes >= 1 << 20) block.fail("barrier_expect of %d bytes: below 2^20 is wanted", bytes);
  --barrier.pending;
  barrier.bytes += bytes;
  publish(barrier.arriving);
  settle(barrier);
  if (block.random.next() & 1) block.give_way();
}

inline void barrier_wait(uint32_t address, uint32_t parity) {
  Block& block = *running;
  block.pass();
  Barrier& barrier = block.barriers->at(address, Proxy::Generic);
  if (parity > 1) block.fail("barrier_wait for parity %u at shared address %u", parity, address);
  const uint32_t warp = block.current->warp;
  while ((barrier.phase & 1) == parity) {
    barrier.waiting[warp] |= 1u << block.current->lane;
    block.wait_for("the barrier at shared address", address);
  }
  if (barrier.joined[warp] == barrier.phase + 1) return;
  barrier.joined[warp] = barrier.phase + 1;
  block.knowledge().join(barrier.complete);
}

inline void proxy_fence() {
  Block& block = *running;
  Knowledge& own = block.knowledge();
  own.proxied.join(own.all);
  ++own.all.tick[block.current->warp];
}

}  // namespace emulator
