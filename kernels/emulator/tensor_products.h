// Products on tensor memory (sm_100): one thread starts them, a unit of the multiprocessor computes them beside the threads, in order,
// some time before the barrier that a commit names lets go.
//
// The unit is an actor of its own, in the place of a warp that no block has: it reads operands in shared memory as the threads that
// started the products knew of them, and until the next commit is done.
#pragma once
#include <deque>

#include "products.h"
#include "tensor_memory.h"

namespace emulator {

// The left operand: in shared memory, or in tensor memory.
struct LeftOperand {
  uint64_t descriptor;
  uint32_t address;
  bool in_tensor_memory;
};

// A product, or a commit.
struct TensorStep {
  bool commits;
  uint32_t barrier;   // of a commit
  uint32_t sums, form;
  LeftOperand left;
  uint64_t right;
  bool adds;
  Clock known;        // of the asynchronous units, when it was started
  TensorTicks seen;
};

// What an instruction descriptor says (tensor_memory.h of the vocabulary); no other bits are known here.
struct TensorForm {
  bool is_bf16, transposed_left, transposed_right;
  uint32_t columns;

  explicit TensorForm(uint32_t bits) {
    is_bf16 = (bits >> 7 & 7) == 1;
    transposed_left = (bits >> 15 & 1) != 0;
    transposed_right = (bits >> 16 & 1) != 0;
    columns = (bits >> 17 & 63) * 8;
    const uint32_t type = is_bf16 ? 1 : 0;
    const uint32_t same = 1u << 4 | type << 7 | type << 10 | (bits & 3u << 15) | columns / 8 << 17 | 8u << 24;
    if (bits != same || columns % 16 != 0 || columns == 0 || columns > MOST_COLUMNS) {
      running->fail("tensor_multiply: the product %#x is none of f32 sums in 128 rows and a multiple of 16 columns", bits);
    }
  }
};

class TensorUnit : public Engine {
 public:
  uint32_t tick = 0;   // of what was done since the last commit, among the deeds of warps too

  void begin(Block& block) {
    block_ = &block;
    queue_.clear();
    starter_ = nullptr;
    eagerness_ = 1u << block.random.below(5);
  }

  bool step() override {
    if (queue_.empty()) return false;
    const TensorStep next = queue_.front();
    queue_.pop_front();
    if (next.commits) arrive(block_->barriers->barrier[next.barrier], next.known);
    else multiply(next);
    return true;
  }

  void explain(char*, size_t) const override {}

  void start(const TensorStep& next) {
    if (starter_ != nullptr && starter_ != block_->current) block_->fail("products of two threads, which have no order");
    starter_ = block_->current;
    queue_.push_back(next);
    while (!queue_.empty() && block_->random.below(eagerness_) == 0) step();
  }

  // All threads have returned, or tensor memory is given back.
  bool is_idle() const { return queue_.empty(); }

 private:
  // What the products read had landed before: whoever waits here knows of it, and of nothing else that the threads did.
  void arrive(Barrier& barrier, const Clock& known) {
    if (barrier.pending == 0) block_->fail("more than %u arrivals in one phase of the barrier at %u", barrier.count, barrier.address);
    for (Clock* clock : {&barrier.arriving.all, &barrier.arriving.proxied}) {
      clock->tick[TENSOR_UNIT] = std::max(clock->tick[TENSOR_UNIT], tick);
      for (uint32_t actor = bytes_of_barrier(0); actor < ACTORS; ++actor) {
        clock->tick[actor] = std::max(clock->tick[actor], known.tick[actor]);
      }
    }
    barrier.arriving.tensor.tick[TENSOR_UNIT] = tick;
    ++tick;
    --barrier.pending;
    settle(barrier);
  }

  void multiply(const TensorStep& one) {
    const TensorForm form(one.form);
    const OperandReader reader{one.known, TENSOR_UNIT, tick, form.is_bf16, false};
    Operands operands;
    read_b(reader, of_wgmma(one.right), form.transposed_right, form.columns, operands.b);
    note_sums(one, form);
    for (uint32_t first = 0; first < TENSOR_LANES; first += 16) {
      if (one.left.in_tensor_memory) read_cells(one, form, first, operands.a);
      else read_a(reader, of_wgmma(one.left.descriptor), form.transposed_left, first, operands.a);
      add_rows(one, form, first, operands);
    }
  }

  // The same fields but for one constant.
  uint64_t of_wgmma(uint64_t descriptor) const {
    constexpr uint64_t constant = uint64_t{1} << 46;
    if ((descriptor & constant) == 0) block_->fail("descriptor %#llx: not of tcgen05", static_cast<unsigned long long>(descriptor));
    return descriptor ^ constant;
  }

  // What the unit knows of tensor memory: all that it did itself, and what who started the product had seen.
  TensorTicks known(const TensorStep& one) const {
    TensorTicks known = one.seen;
    known.tick[TENSOR_UNIT] = tick;
    return known;
  }

  void note_sums(const TensorStep& one, const TensorForm& form) const {
    TensorMemory& memory = *block_->tensor;
    const TensorPlace place(one.sums);
    memory.check_columns(place, form.columns, "sums of a product");
    if (place.lane != 0) block_->fail("sums of a product from lane %u on: they are in all lanes", place.lane);
    const TensorTicks ticks = known(one);
    for (uint32_t quarter = 0; quarter < QUARTERS; ++quarter) {
      for (uint32_t column = place.column; column < place.column + form.columns; ++column) {
        if (one.adds) memory.check_read(quarter, column, ticks, "sums of a product");
        memory.check_write(quarter, column, ticks, "sums of a product");
        memory.wrote[quarter][column] = deed(TENSOR_UNIT, tick);
      }
    }
  }

  void read_cells(const TensorStep& one, const TensorForm& form, uint32_t first, float (&a)[16][16]) const {
    TensorMemory& memory = *block_->tensor;
    const TensorPlace place(one.left.address);
    memory.check_columns(place, 8, "an operand of a product");
    const TensorTicks ticks = known(one);
    for (uint32_t column = 0; column < 8; ++column) {
      memory.check_read(first / LANES, place.column + column, ticks, "an operand of a product");
      memory.read[TENSOR_UNIT][first / LANES][place.column + column] = tick;
      for (uint32_t row = 0; row < 16; ++row) {
        const uint32_t pair = memory.cell[first + row][place.column + column];
        for (uint32_t half = 0; half < 2; ++half) {
          const auto bits = static_cast<uint16_t>(pair >> 16 * half);
          a[row][2 * column + half] = form.is_bf16 ? float_of_bf16(bits) : float_of_f16(bits);
        }
      }
    }
  }

  void add_rows(const TensorStep& one, const TensorForm& form, uint32_t first, const Operands& operands) const {
    const uint32_t start = TensorPlace(one.sums).column;
    for (uint32_t column = 0; column < form.columns; column += 8) {
      float products[16][8];
      emulator::multiply(operands.a, operands.b[0] + column, MOST_COLUMNS, products);
      for (uint32_t row = 0; row < 16; ++row) {
        uint32_t* cells = &block_->tensor->cell[first + row][start + column];
        for (uint32_t i = 0; i < 8; ++i) {
          const float before = one.adds ? float_of_bits(cells[i]) : 0.0f;
          cells[i] = bits_of_float(before + products[row][i]);
        }
      }
    }
  }

  Block* block_ = nullptr;
  const Thread* starter_ = nullptr;
  std::deque<TensorStep> queue_;
  uint32_t eagerness_ = 1;
};

inline void tensor_multiply(uint32_t sums, const LeftOperand& left, uint64_t right, uint32_t form, bool adds) {
  Block& block = *running;
  block.pass();
  const TensorTicks& seen = tensor_memory().seen[block.current->warp];
  block.multiplies->start({false, 0, sums, form, left, right, adds, block.knowledge().proxied, seen});
}

inline void tensor_commit(uint32_t barrier_address) {
  Block& block = *running;
  block.pass();
  Barrier& barrier = block.barriers->at(barrier_address, Proxy::Asynchronous);
  TensorStep commit{};
  commit.commits = true;
  commit.barrier = static_cast<uint32_t>(&barrier - block.barriers->barrier);
  commit.known = block.knowledge().proxied;
  block.multiplies->start(commit);
}

// Nobody uses it any more, as far as this warp knows.
inline void tensor_give(uint32_t address) {
  static const char operation[] = "tensor_give";
  int nothing = 0;
  together(operation, nothing, [address](int**) {
    Block& block = *running;
    TensorMemory& memory = tensor_memory();
    if (address != 0 || !memory.taken) block.fail("tensor_give of %u: what was taken is wanted", address);
    if (!block.multiplies->is_idle()) block.fail("tensor memory is given back with products under way");
    const uint32_t warp = block.current->warp;
    const TensorTicks known = memory.known_to(warp);
    for (uint32_t quarter = 0; quarter < QUARTERS; ++quarter) {
      for (uint32_t column = 0; column < TENSOR_COLUMNS; ++column) memory.check_write(quarter, column, known, "the return");
    }
    memory.begin();
  });
}

}  // namespace emulator
