// Copies that TMA makes beside the threads (sm_90): plain bytes, and boxes of tensors with zeros outside and
// the 128-byte swizzle. They land one by one, in any order, some time before the barrier that counts their bytes lets go.
#pragma once
#include "barriers.h"

struct TensorMap;

namespace emulator {

// What `emulator_tensor_map` writes into a TensorMap's 128 bytes, as the driver would its own form.
struct TensorLayout {
  uint64_t mark;
  const unsigned char* base;
  int64_t strides[4];    // bytes; of dimensions 1 to 4
  uint32_t sizes[5];
  uint32_t box[5];
  uint32_t element_bytes;
};
constexpr uint64_t TENSOR_MARK = 0x70616d726f736e65ull;
static_assert(sizeof(TensorLayout) <= 128, "a tensor map has 128 bytes");

struct Position {
  int at[4];   // column, row, head, batch
};

struct BulkCopy {
  uint32_t to, bytes;
  uint32_t barrier;                      // which one of the block
  uint32_t tick;
  const unsigned char* from = nullptr;   // plain bytes; or else:
  TensorLayout tensor{};
  Position start{};
};

// PTX ISA, "Swizzling modes", 128 bytes: address bits 4-6 are XORed with bits 7-9.
constexpr uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

class BulkCopies : public Engine {
 public:
  void begin(Block& block) {
    block_ = &block;
    pending_.clear();
    fenced_.clear();
    eagerness_ = 1u << block.random.below(6);
  }

  bool step() override {
    if (pending_.empty()) return false;
    const size_t which = block_->random.below(static_cast<uint32_t>(pending_.size()));
    const BulkCopy copy = pending_[which];
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(which));
    land(copy);
    return true;
  }

  void explain(char* text, size_t bytes) const override {
    size_t used = 0;
    for (uint32_t i = 0; i < block_->barriers->count && used + 120 < bytes; ++i) {
      const Barrier& barrier = block_->barriers->barrier[i];
      used += static_cast<size_t>(std::snprintf(text + used, bytes - used,
          "; barrier at %u: phase %u lacks %u arrivals and %lld bytes", barrier.address, barrier.phase, barrier.pending,
          static_cast<long long>(barrier.bytes)));
    }
  }

  // All threads have returned: some of them has to know of every copy.
  void end() const {
    if (!pending_.empty()) block_->fail("the block ended with copies under way");
    const Barriers& barriers = *block_->barriers;
    for (uint32_t i = 0; i < barriers.count; ++i) {
      const Barrier& barrier = barriers.barrier[i];
      bool known = barrier.tick == barriers.first_tick;
      for (uint32_t w = 0; w < block_->warp_count; ++w) {
        known = known || block_->warps[w].knows.all.tick[barriers.actor(barrier)] >= barrier.tick;
      }
      if (!known) block_->fail("nobody waited for the last copies that count at the barrier at %u", barrier.address);
    }
  }

  void start(const BulkCopy& copy, const char* what) {
    const Knowledge& known = block_->knowledge();
    Barriers& barriers = *block_->barriers;
    const uint32_t author = deed(barriers.actor(barriers.barrier[copy.barrier]), copy.tick);
    block_->shared->note_write(Shared::word_of(copy.to), copy.bytes / 4, author, known.proxied, known.all, what);
    std::memset(block_->shared->at(copy.to, copy.bytes, 16, what), 0xff, copy.bytes);
    pending_.push_back(copy);
    if (block_->random.below(eagerness_) == 0) step();
  }

  void fence(const TensorMap* map) {
    // What it does to other memory than the device's is not said (PTX ISA, fence.proxy.tensormap).
    if (in_arguments(map)) block_->fail("tensor_map_fence: a map of the arguments, which are no device memory");
    fenced_.push_back(map);
  }

  bool may_use(const TensorMap* map) const {
    return in_arguments(map) || std::find(fenced_.begin(), fenced_.end(), map) != fenced_.end();
  }

  bool in_arguments(const TensorMap* map) const {
    const auto* at = reinterpret_cast<const unsigned char*>(map);
    return at >= arguments && at + 128 <= arguments + argument_bytes;
  }

  const unsigned char* arguments = nullptr;   // of the kernel
  uint64_t argument_bytes = 0;

 private:
  void land(const BulkCopy& copy) {
    unsigned char* memory = block_->shared->memory;
    if (copy.from != nullptr) {
      std::memcpy(memory + (copy.to - SHARED_START), copy.from, copy.bytes);
    } else {
      land_box(copy, memory);
    }
    Barrier& barrier = block_->barriers->barrier[copy.barrier];
    const uint32_t actor = block_->barriers->actor(barrier);
    for (Clock* clock : {&barrier.arriving.all, &barrier.arriving.proxied}) {
      clock->tick[actor] = std::max(clock->tick[actor], copy.tick);
    }
    barrier.bytes -= copy.bytes;
    settle(barrier);
  }

  // Rows of 128 bytes one after the other, dimension 1 fastest.
  void land_box(const BulkCopy& copy, unsigned char* memory) {
    const TensorLayout& tensor = copy.tensor;
    const uint32_t rows = tensor.box[1] * tensor.box[2] * tensor.box[3];
    for (uint32_t row = 0; row < rows; ++row) {
      const int64_t place[3] = {int64_t{copy.start.at[1]} + row % tensor.box[1],
                                int64_t{copy.start.at[2]} + row / tensor.box[1] % tensor.box[2],
                                int64_t{copy.start.at[3]} + row / tensor.box[1] / tensor.box[2]};
      unsigned char values[128] = {};
      gather_row(tensor, copy.start.at[0], place, values);
      for (uint32_t chunk = 0; chunk < 8; ++chunk) {
        const uint32_t address = swizzled(copy.to + row * 128 + chunk * 16);
        std::memcpy(memory + (address - SHARED_START), values + chunk * 16, 16);
      }
    }
  }

  static void gather_row(const TensorLayout& tensor, int column, const int64_t (&place)[3], unsigned char* values) {
    const unsigned char* from = tensor.base;
    for (int i = 0; i < 3; ++i) {
      if (place[i] < 0 || place[i] >= int64_t{tensor.sizes[i + 1]}) return;
      from += place[i] * tensor.strides[i];
    }
    const int64_t first = std::max<int64_t>(column, 0);
    const int64_t last = std::min<int64_t>(int64_t{column} + tensor.box[0], tensor.sizes[0]);
    if (first >= last) return;
    const int64_t size = tensor.element_bytes;
    std::memcpy(values + (first - column) * size, from + first * size, static_cast<size_t>((last - first) * size));
  }

  Block* block_ = nullptr;
  std::vector<BulkCopy> pending_;
  std::vector<const TensorMap*> fenced_;
  uint32_t eagerness_ = 1;
};

inline BulkCopies& bulk_copies() { return *running->copies; }

inline void tensor_map_fence(const TensorMap* map) { bulk_copies().fence(map); }

// A copy of so many bytes that counts at a barrier.
inline BulkCopy bulk_copy(uint32_t shared_to, uint32_t bytes, uint32_t barrier_address) {
  Barriers& barriers = *running->barriers;
  Barrier& barrier = barriers.at(barrier_address, Proxy::Asynchronous);
  BulkCopy copy{};
  copy.to = shared_to;
  copy.bytes = bytes;
  copy.barrier = static_cast<uint32_t>(&barrier - barriers.barrier);
  copy.tick = ++barrier.tick;
  return copy;
}

// What a map says, if it may be used here.
inline TensorLayout tensor_at(const TensorMap* map) {
  Block& block = *running;
  const void* where = map;
  if (reinterpret_cast<uintptr_t>(where) % 64 != 0) block.fail("load_tile: the map at %p is not at a multiple of 64", where);
  TensorLayout tensor;
  std::memcpy(&tensor, where, sizeof tensor);
  if (tensor.mark != TENSOR_MARK) block.fail("load_tile: there is no tensor map at %p", where);
  if (!bulk_copies().may_use(map)) block.fail("load_tile: a map outside of the arguments without tensor_map_fence in this block");
  const uint32_t row_bytes = tensor.box[0] * tensor.element_bytes;
  if (row_bytes != 128) block.fail("load_tile: a box row of %u bytes: 128 are wanted", row_bytes);
  return tensor;
}

inline void load_tile(uint32_t to, const TensorMap* map, uint32_t barrier, Position start) {
  Block& block = *running;
  block.pass();
  const TensorLayout tensor = tensor_at(map);
  const uint32_t bytes = 128 * tensor.box[1] * tensor.box[2] * tensor.box[3];
  block.shared->at(to, bytes, 1024, "load_tile");
  BulkCopy copy = bulk_copy(to, bytes, barrier);
  copy.tensor = tensor;
  copy.start = start;
  bulk_copies().start(copy, "load_tile");
}

inline void load_bytes(uint32_t to, const void* global, int bytes, uint32_t barrier) {
  Block& block = *running;
  block.pass();
  if (bytes <= 0 || bytes % 16 != 0) block.fail("load_bytes: %d bytes: a multiple of 16 is wanted", bytes);
  check_global(global, 16);
  block.shared->at(to, static_cast<uint32_t>(bytes), 16, "load_bytes");
  BulkCopy copy = bulk_copy(to, static_cast<uint32_t>(bytes), barrier);
  copy.from = static_cast<const unsigned char*>(global);
  bulk_copies().start(copy, "load_bytes");
}

}  // namespace emulator
