// A launch: the list of kernels, and machines that run the blocks of a grid side by side.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "faults.h"
#include "products.h"
#include "registers.h"
#include "tensor_products.h"
#include "turns.h"

namespace emulator {

// One kernel; a list through all of them, made before main.
struct Registration {
  const char* name;
  uint32_t threads;
  uint32_t blocks;   // that a multiprocessor is to hold at once
  uint64_t argument_bytes;
  void (*body)(const void* arguments);
  const Registration* next;

  static inline const Registration* first = nullptr;

  Registration(const char* name, uint32_t threads, uint32_t blocks, uint64_t argument_bytes, void (*body)(const void*))
      : name(name), threads(threads), blocks(blocks), argument_bytes(argument_bytes), body(body), next(first) {
    first = this;
  }
};

struct Launch {
  const Registration* kernel;
  Index3 grid;
  uint32_t shared_bytes;
  const void* arguments;
  uint64_t seed;
  std::atomic<uint64_t> next_block{0};
  std::atomic<bool> failed{false};
  std::mutex lock;
  std::string message;

  void report(const std::string& mistake) {
    const std::lock_guard<std::mutex> guard(lock);
    if (!failed.exchange(true)) message = std::string(kernel->name) + ": " + mistake + " (seed " + std::to_string(seed) + ")";
  }
};

constexpr size_t STACK_BYTES = 512 * 1024;   // of address space; what is not touched takes no memory
constexpr size_t GUARD_BYTES = 64 * 1024;    // at its lower end, where nothing may be
constexpr uint32_t MOST_THREADS = 1024;

// All that works beside the threads of a block; which of them goes on first is drawn.
struct Units : Engine {
  Block& block;
  Engine &copies, &products;

  Units(Block& block, Engine& copies, Engine& products) : block(block), copies(copies), products(products) {}

  bool step() override {
    if (block.random.below(2) == 0) return products.step() || copies.step();
    return copies.step() || products.step();
  }
  void explain(char* text, size_t bytes) const override { copies.explain(text, bytes); }
};

// Runs blocks one after the other on one thread of the process.
class Machine {
 public:
  Machine() {
    const size_t bytes = STACK_BYTES * MOST_THREADS;
    void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stacks_ = stacks == MAP_FAILED ? nullptr : static_cast<char*>(stacks);
    for (uint32_t i = 0; i < MOST_THREADS && stacks_ != nullptr; ++i) mprotect(stacks_ + i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
    block_.threads = std::vector<Thread>(MOST_THREADS);
    block_.shared = &shared_;
    block_.meetings = &meetings_;
    block_.registers = &registers_;
    block_.barriers = &barriers_;
    block_.products = &products_;
    block_.engine = &units_;
    block_.copies = &copies_;
    block_.sums = &sums_;
    block_.tensor = &tensor_;
    block_.multiplies = &multiplies_;
    block_.machine = this;
  }
  ~Machine() { munmap(stacks_, STACK_BYTES * MOST_THREADS); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Takes blocks of the launch until none is left or one has failed.
  void work(Launch& launch) {
    if (stacks_ == nullptr) return launch.report("no memory for stacks");
    const FaultGuard guard;
    running = &block_;
    block_.launch_failed = &launch.failed;
    block_.outside.adopt();
    kernel_ = launch.kernel;
    arguments_ = launch.arguments;
    const uint64_t blocks = launch.grid.count();
    for (uint64_t i; !launch.failed && (i = launch.next_block++) < blocks;) {
      begin(launch, i);
      run();
      block_.current = nullptr;
      if (!block_.mistake.empty()) launch.report(block_.mistake);
    }
    running = nullptr;
  }

 private:
  void begin(const Launch& launch, uint64_t number) {
    block_.random.seed(launch.seed, number);
    block_.index = launch.grid.at(number);
    block_.grid = launch.grid;
    block_.size = {launch.kernel->threads, 1, 1};
    block_.thread_count = block_.unfinished = launch.kernel->threads;
    block_.warp_count = block_.thread_count / LANES;
    block_.mistake.clear();
    block_.turn = nullptr;
    block_.ready_warps = 0;
    block_.switch_interval = 1u << (1 + block_.random.below(10));
    block_.until_switch = block_.switch_interval;
    shared_.begin(launch.shared_bytes);
    meetings_ = Meetings();
    registers_.begin(launch.kernel->threads, launch.kernel->blocks);
    for (uint32_t i = 0; i < barriers_.count; ++i) shared_.forget(barriers_.barrier[i].address, 8);
    barriers_.count = 0;
    copies_.arguments = static_cast<const unsigned char*>(launch.arguments);
    copies_.argument_bytes = launch.kernel->argument_bytes;
    copies_.begin(block_);
    tensor_.begin();
    multiplies_.begin(block_);
    sums_.begin(block_.random);
    products_.begin(block_.random);
    begin_clocks();
    for (uint32_t i = 0; i < block_.thread_count; ++i) begin_thread(i);
  }

  // Everybody knows all that was before this block.
  void begin_clocks() {
    uint32_t now = barriers_.first_tick;
    for (Warp& warp : block_.warps) {
      for (uint32_t tick : warp.knows.all.tick) now = std::max(now, tick);
    }
    for (const Barrier& barrier : barriers_.barrier) now = std::max(now, barrier.tick);
    now = std::max(now, multiplies_.tick);
    for (const Thread& thread : block_.threads) now = std::max(now, block_.warps[thread.warp].copy_base + thread.commits + 1);
    if (now > MOST_TICKS) {
      shared_.forget();
      now = 0;
    }
    barriers_.first_tick = multiplies_.tick = now + 1;
    for (uint32_t w = 0; w < MOST_WARPS; ++w) {
      Warp& warp = block_.warps[w];
      warp = Warp();
      block_.count_meeting(warp);
      warp.copy_base = now;
      std::fill(std::begin(warp.knows.all.tick), std::end(warp.knows.all.tick), now);
      std::fill(std::begin(warp.knows.proxied.tick), std::end(warp.knows.proxied.tick), now);
      warp.knows.all.tick[BARRIER_WORD] = warp.knows.proxied.tick[BARRIER_WORD] = 0;
      warp.knows.all.tick[w] = now + 1;
    }
  }

  void begin_thread(uint32_t number) {
    Thread& thread = block_.threads[number];
    thread.index = {number, 0, 0};
    thread.warp = number / LANES;
    thread.lane = number % LANES;
    thread.copies.clear();
    thread.groups.clear();
    thread.open = 0;
    thread.commits = 0;
    const size_t skipped = number * 832 % 4096;   // an odd number of cache lines: all sets in turn
    thread.fiber.prepare(stacks_ + number * STACK_BYTES + GUARD_BYTES, STACK_BYTES - GUARD_BYTES, skipped, &Machine::enter);
    block_.make_ready(thread.warp, 1u << thread.lane);
  }

  void run() {
    block_.current = &block_.threads[0];
    Thread* first = block_.choose_of(block_.random_warp());
    block_.outside.switch_to(first->fiber);
  }

  static void enter() {
    Fiber::entered();
    Machine& machine = *static_cast<Machine*>(running->machine);
    machine.kernel_->body(machine.arguments_);
    machine.finish();
  }

  [[noreturn]] void finish() {
    Warp& warp = block_.warp();
    const uint32_t lane = block_.current->lane;
    if (warp.arrived != 0) block_.fail("a lane returned while others of its warp wait in %s", warp.operation);
    warp.finished |= 1u << lane;
    --block_.unfinished;
    if (warp.finished == ALL_LANES) {
      if (!own_products().queue.empty()) block_.fail("returned with asynchronous products under way");
      leave_meetings();
    }
    if (block_.unfinished == 0) {
      copies_.end();
      if (tensor_.taken) block_.fail("returned without giving tensor memory back");
      sums_.end();
      block_.leave();
    }
    block_.park();
    __builtin_unreachable();
  }

  Block block_;
  Shared shared_;
  Meetings meetings_;
  Registers registers_;
  Barriers barriers_;
  BulkCopies copies_;
  TensorMemory tensor_;
  TensorUnit multiplies_;
  Units units_{block_, copies_, multiplies_};
  BulkSums sums_;
  Products products_;
  char* stacks_ = nullptr;
  const Registration* kernel_ = nullptr;
  const void* arguments_ = nullptr;
};

// Machines that rest between launches: their memory is large.
class MachinePool {
 public:
  static MachinePool& instance() {
    static MachinePool pool;
    return pool;
  }

  std::unique_ptr<Machine> take() {
    const std::lock_guard<std::mutex> guard(lock_);
    return recycled(idle_);
  }
  void put(std::unique_ptr<Machine> machine) {
    const std::lock_guard<std::mutex> guard(lock_);
    idle_.push_back(std::move(machine));
  }

 private:
  std::mutex lock_;
  std::vector<std::unique_ptr<Machine>> idle_;
};

inline void work_on(Launch& launch) {
  std::unique_ptr<Machine> machine = MachinePool::instance().take();
  machine->work(launch);
  MachinePool::instance().put(std::move(machine));
}

inline void run(Launch& launch, uint32_t workers) {
  std::vector<std::thread> helpers;
  for (uint32_t i = 1; i < workers; ++i) helpers.emplace_back([&launch] { work_on(launch); });
  work_on(launch);
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace emulator
