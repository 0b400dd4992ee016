// Who knows of whose deeds: vector clocks (Mattern 1989), one for each warp, for each warp's asynchronous copies, and for the
// bytes that arrive at each barrier in shared memory. A barrier joins the clocks of those who arrive and hands the result to
// those who leave. Two deeds that no chain of barriers orders are a race, in whatever order they happened to run.
#pragma once
#include <algorithm>
#include <cstdint>

namespace emulator {

constexpr uint32_t MOST_WARPS = 32;
constexpr uint32_t MOST_BARRIERS = 63;
constexpr uint32_t ACTORS = 128;

// Actors: what can write to shared memory.
constexpr uint32_t copies_of_warp(uint32_t warp) { return MOST_WARPS + warp; }
constexpr uint32_t bytes_of_barrier(uint32_t slot) { return 2 * MOST_WARPS + slot; }
constexpr uint32_t BARRIER_WORD = ACTORS - 1;

struct Clock {
  uint32_t tick[ACTORS] = {};

  void join(const Clock& other) {
    for (uint32_t i = 0; i < ACTORS; ++i) tick[i] = std::max(tick[i], other.tick[i]);
  }
};

// In tensor memory (sm_100) a warp's stores and loads are deeds of two actors, which take effect by waits and fences; products are
// those of a unit, in the place of the last warp.
constexpr uint32_t TENSOR_UNIT = MOST_WARPS - 1;
constexpr uint32_t loads_of(uint32_t warp) { return MOST_WARPS + warp; }
struct TensorTicks {
  uint32_t tick[2 * MOST_WARPS] = {};

  void join(const TensorTicks& other) {
    for (uint32_t i = 0; i < 2 * MOST_WARPS; ++i) tick[i] = std::max(tick[i], other.tick[i]);
  }
};

// What an actor knows: all deeds, and those that the asynchronous units see too (the "async proxy" of the PTX ISA): deeds of
// threads get there by a proxy fence somewhere on their way.
struct Knowledge {
  Clock all;
  Clock proxied;
  TensorTicks tensor;

  void join(const Knowledge& other) {
    all.join(other.all);
    proxied.join(other.proxied);
    tensor.join(other.tensor);
  }
};

// One deed: actor in the upper 7 bits, its tick in the lower 25.
constexpr uint32_t TICK_BITS = 25;
constexpr uint32_t MOST_TICKS = 1u << 24;
constexpr uint32_t deed(uint32_t actor, uint32_t tick) { return actor << TICK_BITS | tick; }
constexpr uint32_t actor_of(uint32_t deed) { return deed >> TICK_BITS; }
constexpr uint32_t tick_of(uint32_t deed) { return deed & ((1u << TICK_BITS) - 1); }

}  // namespace emulator
