// The block's shared memory: NaN until written; every access is checked for bounds, alignment and races.
//
// Races: each 4-byte word remembers who wrote it when (one deed), and when each warp last read it. A read is fine if the reader
// knows of the write; a write is fine if the writer knows of the last write and of everybody's reads. Threads of one warp are
// taken as one there; what one of its lanes stores, another may touch once the warp has done something together.
#pragma once
#include <cstdlib>

#include "block.h"

namespace emulator {

constexpr uint32_t SHARED_START = 1024;       // as on sm_90, where the first kilobyte is the system's; 0 is nobody's address
constexpr uint32_t MOST_SHARED = 227 * 1024;  // CUDA programming guide, "Technical Specifications": compute capability 9.0
constexpr uint32_t WORDS = MOST_SHARED / 4;

// How an access sees memory: threads themselves, or the asynchronous units.
enum class Proxy { Generic, Asynchronous };

struct Shared {
  alignas(1024) unsigned char memory[MOST_SHARED];
  uint32_t wrote[WORDS] = {};
  uint32_t read[MOST_WARPS][WORDS] = {};
  uint32_t stored[WORDS] = {};   // by which lane since which of its warp's meetings: 32 * Warp::meeting + lane
  uint32_t bytes = 0;

  void begin(uint32_t size) {
    bytes = size;
    std::memset(memory, 0xff, bytes);
  }

  // Forgets who wrote there.
  void forget(uint32_t address, uint32_t size) { std::memset(&wrote[word_of(address)], 0, size); }

  // Forgets all deeds: ticks start anew.
  void forget() {
    std::memset(wrote, 0, sizeof wrote);
    std::memset(read, 0, sizeof read);
  }

  uint32_t address_of(const void* pointer) const {
    const auto* at = static_cast<const unsigned char*>(pointer);
    if (at < memory || at > memory + bytes) running->fail("a pointer that is not to shared memory has no shared address");
    return SHARED_START + static_cast<uint32_t>(at - memory);
  }

  unsigned char* at(uint32_t address, uint32_t size, uint32_t alignment, const char* what) {
    if (address % alignment != 0) running->fail("%s of %u bytes at %u: not a multiple of %u", what, size, address, alignment);
    if (address < SHARED_START || address - SHARED_START + uint64_t{size} > bytes) {
      running->fail("%s of %u bytes at %u: the block has %u bytes from %u on", what, size, address, bytes, SHARED_START);
    }
    return memory + (address - SHARED_START);
  }

  static uint32_t word_of(uint32_t address) { return (address - SHARED_START) / 4; }

  // Warp `reader` reads these words now, knowing so much.
  void note_read(uint32_t first, uint32_t count, uint32_t reader, uint32_t tick, const Clock& known, const char* what) {
    uint32_t fine = 0;   // a deed that is known: neighbours were mostly written together
    for (uint32_t word = first; word < first + count; ++word) {
      const uint32_t deed = wrote[word];
      if (deed != fine && tick_of(deed) > known.tick[actor_of(deed)]) unseen(word, what);
      fine = deed;
      read[reader][word] = tick;
    }
  }

  // Somebody writes them as `author`.
  void note_write(uint32_t first, uint32_t count, uint32_t author, const Clock& known, const Clock& readers, const char* what) {
    for (uint32_t word = first; word < first + count; ++word) {
      const uint32_t deed = wrote[word];
      if (tick_of(deed) > known.tick[actor_of(deed)]) unseen(word, what);
      wrote[word] = author;
    }
    const uint32_t self = running->current->warp;
    for (uint32_t warp = 0; warp < MOST_WARPS; ++warp) {
      if (warp == self || (warp >= running->warp_count && warp != TENSOR_UNIT)) continue;
      const uint32_t* ticks = read[warp] + first;
      uint32_t latest = 0;
      for (uint32_t i = 0; i < count; ++i) latest = std::max(latest, ticks[i]);
      if (latest > readers.tick[warp]) {
        running->fail("race: %s at shared address %u, which warp %u may still be reading", what, SHARED_START + 4 * first, warp);
      }
    }
  }

  // Lane `lane` touches these words by itself.
  void note_lane(uint32_t first, uint32_t count, bool stores, const char* what) {
    const uint32_t mine = running->warp().meeting * LANES + running->current->lane;
    for (uint32_t word = first; word < first + count; ++word) {
      if (stored[word] / LANES == mine / LANES && stored[word] != mine) {
        running->fail("race: %s at shared address %u, stored by lane %u of the same warp, without __syncwarp since", what,
                      SHARED_START + 4 * word, stored[word] % LANES);
      }
      if (stores) stored[word] = mine;
    }
  }

  [[noreturn]] __attribute__((cold)) void unseen(uint32_t word, const char* what) {
    const uint32_t actor = actor_of(wrote[word]);
    const uint32_t address = SHARED_START + 4 * word;
    const Knowledge& known = running->knowledge();
    if (actor == BARRIER_WORD) running->fail("%s at shared address %u: a barrier lives there", what, address);
    const bool fence = tick_of(wrote[word]) <= known.all.tick[actor];
    const char* why = fence ? "without a proxy fence since" : "without a barrier or a wait since";
    if (actor < MOST_WARPS) running->fail("race: %s at shared address %u, written by warp %u, %s", what, address, actor, why);
    if (actor < 2 * MOST_WARPS) {
      running->fail("race: %s at shared address %u, copied to by warp %u, %s", what, address, actor - MOST_WARPS, why);
    }
    running->fail("race: %s at shared address %u, where an asynchronous copy lands, %s", what, address, why);
  }
};

inline Shared& shared() { return *running->shared; }

inline uint32_t shared_address(const void* pointer) { return shared().address_of(pointer); }
inline unsigned char* shared_memory() { return shared().memory; }

inline void read_shared(void* to, uint32_t address, uint32_t size) {
  Block& block = *running;
  block.pass();
  const unsigned char* from = shared().at(address, size, size, "read");
  const Knowledge& known = block.knowledge();
  const uint32_t warp = block.current->warp;
  shared().note_read(Shared::word_of(address), size / 4, warp, known.all.tick[warp], known.all, "read");
  shared().note_lane(Shared::word_of(address), size / 4, false, "read");
  std::memcpy(to, from, size);
}

inline void write_shared(uint32_t address, const void* from, uint32_t size) {
  Block& block = *running;
  block.pass();
  unsigned char* to = shared().at(address, size, size, "write");
  const Knowledge& known = block.knowledge();
  const uint32_t warp = block.current->warp;
  shared().note_write(Shared::word_of(address), size / 4, deed(warp, known.all.tick[warp]), known.all, known.all, "write");
  shared().note_lane(Shared::word_of(address), size / 4, true, "write");
  std::memcpy(to, from, size);
}

// Global memory: null and unaligned pointers are found; the rest is the address sanitizer's.
inline void check_global(const void* pointer, uint32_t size) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address < 65536) running->fail("access of %u bytes through a null pointer (%#zx)", size, static_cast<size_t>(address));
  if (address % size != 0) running->fail("access of %u bytes at %p: not a multiple of %u", size, pointer, size);
}
inline void read_global(void* to, const void* from, uint32_t size) {
  check_global(from, size);
  std::memcpy(to, from, size);
}
inline void write_global(void* to, const void* from, uint32_t size) {
  check_global(to, size);
  std::memcpy(to, from, size);
}

// Other blocks do at the same time.
inline int take_number(int* counter) {
  check_global(counter, sizeof(int));
  return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}
inline void add_global(int64_t* pointer, int64_t value) {
  check_global(pointer, sizeof(int64_t));
  __atomic_fetch_add(pointer, value, __ATOMIC_RELAXED);
}
inline void add_global(float* pointer, float value) {
  check_global(pointer, sizeof(float));
  auto* word = reinterpret_cast<uint32_t*>(pointer);
  uint32_t old = __atomic_load_n(word, __ATOMIC_RELAXED), sum;
  do {
    sum = bits_of_float(float_of_bits(old) + value);
  } while (!__atomic_compare_exchange_n(word, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

}  // namespace emulator
