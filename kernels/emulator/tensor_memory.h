// Tensor memory (sm_100): 128 lanes x 512 columns, what warps load from it and store to it, and who may.
//
// Races: every column of a quarter of the lanes, which one warp of four reaches, remembers who wrote it when, and when each warp last
// loaded it. Loads and stores happen some time between their start and their wait; what others did is fine if the warp knows of it
// by a barrier and a fence behind it, and they fenced before they arrived there. A block begins with nothing written.
#pragma once
#include "warp.h"

namespace emulator {

constexpr uint32_t TENSOR_LANES = 128, TENSOR_COLUMNS = 512, TENSOR_WORDS = 16;   // words of a lane's load or store
constexpr uint32_t QUARTERS = TENSOR_LANES / LANES;

// Which lanes and columns an address names.
struct TensorPlace {
  uint32_t lane, column;
  explicit TensorPlace(uint32_t address) : lane(address >> 16), column(address & 0xffff) {}
};

// A load or a store of a warp that it has not waited for.
struct TensorAccess {
  uint32_t first_lane, column;
  bool stores, done;
  float* registers[LANES];
  uint32_t values[LANES][TENSOR_WORDS];
};

struct TensorMemory {
  uint32_t cell[TENSOR_LANES][TENSOR_COLUMNS];
  uint32_t wrote[QUARTERS][TENSOR_COLUMNS] = {};              // deeds: of a warp's stores, of the unit's products; 0: nobody yet
  uint32_t read[MOST_WARPS][QUARTERS][TENSOR_COLUMNS] = {};   // ticks: of a warp's loads, of the unit's products
  TensorTicks waited;                                         // of each warp, its accesses that are complete
  TensorTicks seen[MOST_WARPS];                               // what each warp knows since its last fence
  std::vector<TensorAccess> pending[MOST_WARPS];
  bool taken = false;

  void begin() {
    if (!taken) return;   // nothing was touched since the last time
    taken = false;
    std::memset(wrote, 0, sizeof wrote);
    std::memset(read, 0, sizeof read);
    waited = TensorTicks();
    for (TensorTicks& one : seen) one = TensorTicks();
    for (auto& accesses : pending) accesses.clear();
  }

  void check_columns(const TensorPlace& place, uint32_t columns, const char* what) const {
    if (!taken) running->fail("%s: tensor memory was not taken", what);
    if (place.column + columns > TENSOR_COLUMNS) {
      running->fail("%s of %u columns from %u on: tensor memory has %u", what, columns, place.column, TENSOR_COLUMNS);
    }
  }

  // Whoever knows `known` reads a column of a quarter.
  void check_read(uint32_t quarter, uint32_t column, const TensorTicks& known, const char* what) const {
    const uint32_t deed = wrote[quarter][column];
    if (deed == 0) running->fail("%s of column %u of tensor memory, which nobody wrote", what, column);
    if (tick_of(deed) > known.tick[actor_of(deed)]) unseen("written", actor_of(deed), tick_of(deed), column, what);
  }

  // Or writes it.
  void check_write(uint32_t quarter, uint32_t column, const TensorTicks& known, const char* what) const {
    const uint32_t deed = wrote[quarter][column];
    if (deed != 0 && tick_of(deed) > known.tick[actor_of(deed)]) unseen("written", actor_of(deed), tick_of(deed), column, what);
    for (uint32_t warp = 0; warp < MOST_WARPS; ++warp) {
      const uint32_t reader = warp == TENSOR_UNIT ? warp : loads_of(warp);
      const uint32_t tick = read[warp][quarter][column];
      if (tick > known.tick[reader]) unseen("read", reader, tick, column, what);
    }
  }

  [[noreturn]] __attribute__((cold)) void unseen(const char* did, uint32_t actor, uint32_t tick, uint32_t column, const char* what) const {
    if (actor == TENSOR_UNIT) {
      running->fail("race: %s of column %u of tensor memory, %s by products, without a commit, a wait and a fence since", what, column, did);
    }
    const char* why = tick > waited.tick[actor] ? "without a wait since" : "without a fence, a barrier and a fence since";
    running->fail("race: %s of column %u of tensor memory, %s by warp %u, %s", what, column, did, actor % MOST_WARPS, why);
  }

  // What a warp knows at an access: what it saw at its last fence, and its own that it has waited for.
  TensorTicks known_to(uint32_t warp) const {
    TensorTicks known = seen[warp];
    known.tick[warp] = waited.tick[warp];
    known.tick[loads_of(warp)] = waited.tick[loads_of(warp)];
    return known;
  }

  void perform(TensorAccess& access) {
    if (access.done) return;
    access.done = true;
    for (uint32_t lane = 0; lane < LANES; ++lane) {
      uint32_t* cells = &cell[access.first_lane + lane][access.column];
      if (access.stores) std::memcpy(cells, access.values[lane], sizeof access.values[lane]);
      else std::memcpy(access.registers[lane], cells, sizeof access.values[lane]);
    }
  }
};

inline TensorMemory& tensor_memory() { return *running->tensor; }

// What a lane hands in.
struct TensorOperand {
  uint32_t address;
  float* loads;
  const void* stores;
};

// All lanes of a warp start the same access, of the lanes that are theirs.
inline void start_access(TensorOperand** lanes) {
  static const char load[] = "tensor_load", store[] = "tensor_store";
  Block& block = *running;
  TensorMemory& memory = tensor_memory();
  const uint32_t warp = block.current->warp, quarter = warp % QUARTERS;
  const bool stores = lanes[0]->stores != nullptr;
  const char* what = stores ? store : load;
  const TensorPlace place(lanes[0]->address);
  memory.check_columns(place, TENSOR_WORDS, what);
  if (place.lane != quarter * LANES) block.fail("%s from lane %u: warp %u reaches those from %u on", what, place.lane, warp, quarter * LANES);
  TensorAccess access{place.lane, place.column, stores, false, {}, {}};
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    if (lanes[lane]->address != lanes[0]->address) block.fail("%s: lanes of one warp name different addresses", what);
    access.registers[lane] = lanes[lane]->loads;
    if (stores) std::memcpy(access.values[lane], lanes[lane]->stores, sizeof access.values[lane]);
    for (uint32_t i = 0; i < TENSOR_WORDS && !stores; ++i) lanes[lane]->loads[i] = float_of_bits(UNDER_WAY);
  }
  const TensorTicks known = memory.known_to(warp);
  for (uint32_t column = place.column; column < place.column + TENSOR_WORDS; ++column) {
    if (stores) {
      memory.check_write(quarter, column, known, what);
      memory.wrote[quarter][column] = deed(warp, memory.waited.tick[warp] + 1);
    } else {
      memory.check_read(quarter, column, known, what);
      memory.read[warp][quarter][column] = memory.waited.tick[loads_of(warp)] + 1;
    }
  }
  memory.pending[warp].push_back(access);
  if (block.random.below(2) == 0) memory.perform(memory.pending[warp].back());
}

inline void tensor_load(float* registers, uint32_t address) {
  static const char operation[] = "tensor_load";
  TensorOperand mine{address, registers, nullptr};
  together(operation, mine, start_access);
}

inline void tensor_store(uint32_t address, const void* registers) {
  static const char operation[] = "tensor_store";
  TensorOperand mine{address, nullptr, registers};
  together(operation, mine, start_access);
}

// The warp's stores, or loads, are complete.
inline void tensor_wait(bool stores) {
  static const char for_loads[] = "tensor_wait_loads", for_stores[] = "tensor_wait_stores";
  int nothing = 0;
  together(stores ? for_stores : for_loads, nothing, [stores](int**) {
    TensorMemory& memory = tensor_memory();
    const uint32_t warp = running->current->warp;
    auto& pending = memory.pending[warp];
    for (TensorAccess& access : pending) {
      if (access.stores == stores) memory.perform(access);
    }
    pending.erase(std::remove_if(pending.begin(), pending.end(), [=](const TensorAccess& one) { return one.stores == stores; }),
                  pending.end());
    ++memory.waited.tick[stores ? warp : loads_of(warp)];
  });
}

// From here on others may know of what this warp has waited for.
inline void tensor_fence_before() {
  Block& block = *running;
  const TensorMemory& memory = tensor_memory();
  const uint32_t warp = block.current->warp;
  for (uint32_t actor : {warp, loads_of(warp)}) block.knowledge().tensor.tick[actor] = memory.waited.tick[actor];
}

// From here on this warp's accesses come behind all that it knows of.
inline void tensor_fence_after() {
  Block& block = *running;
  tensor_memory().seen[block.current->warp].join(block.knowledge().tensor);
}

inline void tensor_take(uint32_t shared_address) {
  static const char operation[] = "tensor_take";
  int nothing = 0;
  together(operation, nothing, [](int**) {
    if (running->warp_count > TENSOR_UNIT) running->fail("tensor_take in a block of %u warps: at most %u here", running->warp_count, TENSOR_UNIT);
    if (tensor_memory().taken) running->fail("tensor_take: this block has it already");
    tensor_memory().begin();
    tensor_memory().taken = true;
  });
  const uint32_t start = 0;
  if (running->current->lane == 0) write_shared(shared_address, &start, sizeof start);
}

}  // namespace emulator
