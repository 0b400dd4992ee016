// A block of threads, run by one thread of the machine: whose turn it is, who waits for what, and how a mistake ends it.
#pragma once
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "clocks.h"
#include "fiber.h"
#include "numbers.h"

namespace emulator {

constexpr uint32_t LANES = 32;
constexpr uint32_t ALL_LANES = ~0u;

struct Index3 {
  uint32_t x, y, z;
  uint64_t count() const { return uint64_t{x} * y * z; }
  Index3 at(uint64_t i) const {
    return {static_cast<uint32_t>(i % x), static_cast<uint32_t>(i / x % y), static_cast<uint32_t>(i / x / y)};
  }
};

// xorshift64* (Vigna 2016): the order of things, by seed.
struct Random {
  uint64_t state = 1;

  void seed(uint64_t launch, uint64_t block) {
    state = (launch + 1) * 0x9E3779B97F4A7C15ull ^ (block + 1) * 0xD1B54A32D192ED03ull;
    if (state == 0) state = 1;
    for (int i = 0; i < 4; ++i) next();
  }
  uint32_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return static_cast<uint32_t>(state * 0x2545F4914F6CDD1Dull >> 32);
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(uint64_t{next()} * bound >> 32); }
};

struct PendingCopy {
  unsigned char* to;
  const void* from;   // null: zeros
};

struct Thread {
  Fiber fiber;
  Index3 index{};
  uint32_t warp = 0, lane = 0;
  std::vector<PendingCopy> copies;       // in order of issue
  std::vector<size_t> groups;            // how many of `copies` each uncompleted group has
  size_t open = 0;                       // copies since the last commit
  uint32_t commits = 0;
};

struct Warp {
  uint32_t ready = 0;      // lanes that can run
  uint32_t arrived = 0;    // lanes that wait in the warp's operation
  uint32_t finished = 0;
  uint32_t meeting = 0;    // the number of what its lanes did together last, of all warps' and blocks'
  const char* operation = nullptr;
  const char* waits_for = nullptr;   // what its last sleeper waits for: said when nobody can go on
  uint32_t waits_at = 0;             // the address or number that belongs to it
  void* operands[LANES] = {};
  Knowledge knows;
  uint32_t copy_base = 0;  // ticks of the copies before this block
};

// What works beside the threads: can be told to go a step, and says what it lacks when nobody can go on.
struct Engine {
  virtual ~Engine() = default;
  virtual bool step() = 0;
  virtual void explain(char* text, size_t bytes) const = 0;
};

struct Shared;
struct Meetings;
struct Registers;
struct Barriers;
struct Products;
struct BulkSums;
struct TensorMemory;
class BulkCopies;
class TensorUnit;
struct Block;
inline thread_local Block* running __attribute__((tls_model("initial-exec"))) = nullptr;

struct Block {
  Index3 index{}, size{}, grid{};
  uint32_t thread_count = 0, warp_count = 0, unfinished = 0;
  std::vector<Thread> threads;
  Warp warps[MOST_WARPS];
  Thread* current = nullptr;
  uint32_t ready_warps = 0;
  Random random;
  uint32_t switch_interval = 0, until_switch = 0;   // a warp's turn ends after about so many of its operations
  Fiber outside;
  void* machine = nullptr;       // that runs this block
  Engine* engine = nullptr;
  Shared* shared = nullptr;      // the parts of the machine that later files are about
  Meetings* meetings = nullptr;
  Registers* registers = nullptr;
  Barriers* barriers = nullptr;
  Products* products = nullptr;
  BulkSums* sums = nullptr;
  BulkCopies* copies = nullptr;
  TensorMemory* tensor = nullptr;
  TensorUnit* multiplies = nullptr;
  std::string mistake;
  const std::atomic<bool>* launch_failed = nullptr;
  const int* turn = nullptr;     // that one of its threads has awaited and not passed on

  uint32_t meetings_so_far = 0;

  void count_meeting(Warp& warp) { warp.meeting = ++meetings_so_far & (~0u / LANES); }

  Warp& warp() { return warps[current->warp]; }
  Knowledge& knowledge() { return warp().knows; }

  void make_ready(uint32_t warp, uint32_t lanes) {
    warps[warp].ready |= lanes;
    if (lanes != 0) ready_warps |= 1u << warp;
  }

  // Leaves the current thread, which is ready only if somebody made it so.
  void park() {
    Thread* self = current;
    Thread* next = choose();
    if (next != self) self->fiber.switch_to(next->fiber);
  }

  void wait_for(const char* what, uint32_t where) {
    warp().waits_for = what;
    warp().waits_at = where;
    park();
  }

  // A point where another thread may run instead.
  void pass() {
    if (until_switch-- == 0) give_way();
  }

  void give_way() {
    until_switch = random.below(2 * switch_interval) + 1;
    if (ready_warps == 0) return;
    make_ready(current->warp, 1u << current->lane);
    if (random.below(4) == 0) engine->step();
    Thread* self = current;
    Thread* next = choose_of(random_warp());
    if (next != self) self->fiber.switch_to(next->fiber);
  }

  Thread* choose() {
    while (ready_warps == 0) {
      if (!engine->step()) stuck();
    }
    const uint32_t warp = current->warp;
    return choose_of(warps[warp].ready != 0 ? warp : random_warp());
  }

  uint32_t random_warp() {
    const uint32_t turn = random.below(warp_count);
    const uint32_t later = ready_warps >> turn;
    return later != 0 ? turn + static_cast<uint32_t>(__builtin_ctz(later)) : static_cast<uint32_t>(__builtin_ctz(ready_warps));
  }

  // Takes the next ready lane after the current one, round about; the first of another warp is random.
  Thread* choose_of(uint32_t number) {
    Warp& warp = warps[number];
    const uint32_t start = number == current->warp ? current->lane + 1 : random.below(LANES);
    const uint32_t later = start < LANES ? warp.ready >> start : 0;
    const uint32_t lane = later != 0 ? start + static_cast<uint32_t>(__builtin_ctz(later))
                                     : static_cast<uint32_t>(__builtin_ctz(warp.ready));
    warp.ready &= ~(1u << lane);
    if (warp.ready == 0) ready_warps &= ~(1u << number);
    return current = &threads[number * LANES + lane];
  }

  // Ends the launch: says what is wrong and never comes back to this thread.
  [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...) {
    char text[900];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    char place[160];
    std::snprintf(place, sizeof place, "block (%u, %u, %u), thread %u: ", index.x, index.y, index.z,
                  current->warp * LANES + current->lane);
    mistake = std::string(place) + text;
    leave();
  }

  // Goes back to whoever runs the block, for good.
  [[noreturn]] void leave() {
    Fiber dropped;
    dropped.switch_to(outside);
    __builtin_unreachable();
  }

  // Nobody can go on: says where each warp waits, equal neighbours together.
  [[noreturn]] void stuck() {
    char where[400] = "";
    for (uint32_t w = 0; w < warp_count; ++w) {
      const size_t used = std::strlen(where);
      char text[120];
      if (used + sizeof text >= sizeof where || !describe(w, text, sizeof text)) continue;
      std::snprintf(where + used, sizeof where - used, "%s warp %u %s", used != 0 ? ";" : "", w, text);
    }
    char lacks[400] = "";
    engine->explain(lacks, sizeof lacks);
    fail("deadlock:%s%s", where, lacks);
  }

  bool describe(uint32_t w, char* text, size_t bytes) const {
    const Warp& one = warps[w];
    if (one.finished == ALL_LANES) return false;
    if (one.arrived != 0) {
      std::snprintf(text, bytes, "waits with %d lanes in %s", __builtin_popcount(one.arrived), one.operation);
    } else {
      std::snprintf(text, bytes, "waits for %s %u", one.waits_for, one.waits_at);
    }
    return true;
  }
};

inline Index3 thread_index() { return running->current->index; }
inline Index3 block_index() { return running->index; }
inline Index3 block_size() { return running->size; }
inline Index3 grid_size() { return running->grid; }

}  // namespace emulator
