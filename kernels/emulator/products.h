// Asynchronous products (wgmma). What one warp starts is queued and computed at its wait, or at once if a coin says so; until the
// wait its sums are a NaN that nobody else writes, and its registers of A must stay as they were.
//
// Each warp of a warpgroup has its own 16 rows and waits for itself; that all four start the same products is checked.
#pragma once
#include "operands.h"

namespace emulator {

// Sums of one array of registers, while products on it are under way.
struct Sums {
  float* registers[LANES];
  uint32_t columns;
  uint32_t last_group;
  alignas(32) float value[16][MOST_COLUMNS];

  // Row and column of register i of a lane (PTX ISA, "wgmma register fragment for D").
  static uint32_t row(uint32_t lane, uint32_t i) { return lane / 4 + i / 2 % 2 * 8; }
  static uint32_t column(uint32_t lane, uint32_t i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

  void take() {
    for (uint32_t lane = 0; lane < LANES; ++lane) {
      for (uint32_t i = 0; i < columns / 2; ++i) {
        value[row(lane, i)][column(lane, i)] = registers[lane][i];
        registers[lane][i] = float_of_bits(UNDER_WAY);
      }
    }
  }

  void give() const {
    for (uint32_t lane = 0; lane < LANES; ++lane) {
      for (uint32_t i = 0; i < columns / 2; ++i) {
        const bool kept = bits_of_float(registers[lane][i]) == UNDER_WAY;
        if (!kept) running->fail("sums of a product were written before warpgroup_wait (register %u)", i);
        registers[lane][i] = value[row(lane, i)][column(lane, i)];
      }
    }
  }
};

struct AsyncProduct {
  ProductForm form;
  uint64_t a = 0, b = 0;
  Sums* sums = nullptr;
  uint32_t group = 0;
  bool from_registers = false, computed = false;
  const uint32_t* a_registers[LANES];
  uint32_t a_values[LANES][4];
  Clock known;   // of the asynchronous units, when it was started
};

struct WarpProducts {
  std::vector<std::unique_ptr<AsyncProduct>> queue, spare;
  std::vector<std::unique_ptr<Sums>> sums, spare_sums;
  uint32_t commits = 0, started = 0;
  bool fenced = false;
};

// What a warpgroup starts, in order: each of its warps has to start the same.
struct Start {
  uint64_t a, b;
  ProductForm form;
  uint32_t columns;
};

// What a launch that failed left behind; some may have been moved on already.
template <typename T> void recycle(std::vector<std::unique_ptr<T>>& used, std::vector<std::unique_ptr<T>>& spare) {
  for (auto& one : used) {
    if (one != nullptr) spare.push_back(std::move(one));
  }
  used.clear();
}

struct Products {
  WarpProducts warp[MOST_WARPS];
  std::vector<Start> starts[MOST_WARPS / 4];
  bool eager = false;

  void begin(Random& random) {
    eager = random.below(2) == 0;
    for (auto& starts_of_group : starts) starts_of_group.clear();
    for (WarpProducts& one : warp) {
      recycle(one.queue, one.spare);
      recycle(one.sums, one.spare_sums);
      one.commits = one.started = 0;
      one.fenced = false;
    }
  }
};

template <typename T> std::unique_ptr<T> recycled(std::vector<std::unique_ptr<T>>& spare) {
  if (spare.empty()) return std::make_unique<T>();
  std::unique_ptr<T> one = std::move(spare.back());
  spare.pop_back();
  return one;
}

// The warp's rows: c = (accumulate ? c : 0) + a b.
inline void accumulate_rows(Sums& sums, const float (&a)[16][16], const float (&b)[16][MOST_COLUMNS], bool accumulate) {
  for (uint32_t column = 0; column < sums.columns; column += 8) {
    float products[16][8];
    multiply(a, b[0] + column, MOST_COLUMNS, products);
    for (uint32_t row = 0; row < 16; ++row) {
      float* value = sums.value[row] + column;
      for (uint32_t i = 0; i < 8; ++i) value[i] = accumulate ? value[i] + products[row][i] : products[row][i];
    }
  }
}

// A in registers: the fragment of m16n8k16 (matrix.h).
inline void unpack_a(const AsyncProduct& product, float (&a)[16][16]) {
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    for (uint32_t i = 0; i < 8; ++i) {
      const uint16_t bits = static_cast<uint16_t>(product.a_values[lane][i / 2] >> i % 2 * 16);
      const uint32_t row = lane / 4 + i / 2 % 2 * 8, k = lane % 4 * 2 + i / 4 * 8 + i % 2;
      a[row][k] = product.form.is_bf16 ? float_of_bf16(bits) : float_of_f16(bits);
    }
  }
}

// Its registers of A were not touched meanwhile.
inline void check_a(const AsyncProduct& product) {
  for (uint32_t lane = 0; lane < LANES && product.from_registers; ++lane) {
    if (std::memcmp(product.a_registers[lane], product.a_values[lane], sizeof product.a_values[lane]) != 0) {
      running->fail("registers of A were written before warpgroup_wait (lane %u)", lane);
    }
  }
}

struct Operands {
  alignas(32) float a[16][16];
  alignas(32) float b[16][MOST_COLUMNS];
};

// Reads them as of now, or only notes that they are still read; that is where a race shows.
inline void read_operands(const AsyncProduct& product, Operands& operands, bool only_notes) {
  Block& block = *running;
  const uint32_t warp = block.current->warp;
  const OperandReader reader{product.known, warp, block.knowledge().all.tick[warp], product.form.is_bf16, only_notes};
  if (product.from_registers) {
    unpack_a(product, operands.a);
  } else {
    read_a(reader, product.a, product.form.transposed_a, warp % 4 * 16, operands.a);
  }
  read_b(reader, product.b, product.form.transposed_b, product.sums->columns, operands.b);
}

inline void compute(AsyncProduct& product) {
  Operands operands;
  read_operands(product, operands, false);
  accumulate_rows(*product.sums, operands.a, operands.b, product.form.accumulate);
  product.computed = true;
}

// Completes a product. One that was computed at its start may have been reading until now: its operands have to be there still.
inline void complete(AsyncProduct& product) {
  check_a(product);
  if (!product.computed) return compute(product);
  Operands unused;
  read_operands(product, unused, true);
}

// What a lane hands in.
struct ProductOperand {
  float* c;
  const uint32_t* a_registers;
  uint64_t a, b;
  uint32_t columns;
  ProductForm form;
};

// The sums of these registers, taken from their owners if no product is under way on them yet.
inline Sums* sums_of(WarpProducts& own, ProductOperand** lanes) {
  for (auto& sums : own.sums) {
    if (sums->registers[0] != lanes[0]->c) continue;
    const uint32_t before = sums->columns, now = lanes[0]->columns;
    if (before != now) running->fail("products of %u and %u columns on the same registers", before, now);
    return sums.get();
  }
  std::unique_ptr<Sums> sums = recycled(own.spare_sums);
  sums->columns = lanes[0]->columns;
  for (uint32_t lane = 0; lane < LANES; ++lane) sums->registers[lane] = lanes[lane]->c;
  sums->take();
  own.sums.push_back(std::move(sums));
  return own.sums.back().get();
}

// That the lanes agree, and the warp with the others of its warpgroup.
inline void check_start(WarpProducts& own, ProductOperand** lanes) {
  Block& block = *running;
  const ProductOperand& first = *lanes[0];
  for (uint32_t lane = 1; lane < LANES; ++lane) {
    const ProductOperand& other = *lanes[lane];
    const bool same = other.a == first.a && other.b == first.b && other.form == first.form;
    if (!same) block.fail("lanes of one warp start different products");
  }
  if (!own.fenced) block.fail("a product without warpgroup_fence since the kernel's start or the last warpgroup_wait");
  std::vector<Start>& starts = block.products->starts[block.current->warp / 4];
  const uint32_t number = own.started++;
  if (number == starts.size()) starts.push_back({first.a, first.b, first.form, first.columns});
  const Start& same = starts[number];
  if (same.a != first.a || same.b != first.b || !(same.form == first.form) || same.columns != first.columns) {
    block.fail("warps of one warpgroup start different products");
  }
}

inline void start_product(ProductOperand** lanes) {
  Block& block = *running;
  WarpProducts& own = block.products->warp[block.current->warp];
  check_start(own, lanes);
  std::unique_ptr<AsyncProduct> product = recycled(own.spare);
  const ProductOperand& first = *lanes[0];
  product->form = first.form;
  product->a = first.a;
  product->b = first.b;
  product->group = own.commits;
  product->computed = false;
  product->from_registers = first.a_registers != nullptr;
  for (uint32_t lane = 0; lane < LANES && product->from_registers; ++lane) {
    product->a_registers[lane] = lanes[lane]->a_registers;
    std::memcpy(product->a_values[lane], lanes[lane]->a_registers, sizeof product->a_values[lane]);
  }
  product->known = block.knowledge().proxied;
  product->sums = sums_of(own, lanes);
  product->sums->last_group = own.commits;
  own.queue.push_back(std::move(product));
  if (block.products->eager) compute(*own.queue.back());
}

// Completes the groups before `end`; sums that later groups do not touch go back to their owners.
inline void complete_products(WarpProducts& own, uint32_t end) {
  size_t done = 0;
  for (; done < own.queue.size() && own.queue[done]->group < end; ++done) {
    complete(*own.queue[done]);
    own.spare.push_back(std::move(own.queue[done]));
  }
  own.queue.erase(own.queue.begin(), own.queue.begin() + static_cast<ptrdiff_t>(done));
  for (size_t i = 0; i < own.sums.size();) {
    if (own.sums[i]->last_group >= end) {
      ++i;
      continue;
    }
    own.sums[i]->give();
    own.spare_sums.push_back(std::move(own.sums[i]));
    own.sums.erase(own.sums.begin() + static_cast<ptrdiff_t>(i));
  }
}

inline WarpProducts& own_products() { return running->products->warp[running->current->warp]; }

inline void warpgroup_fence() {
  static const char operation[] = "warpgroup_fence";
  int nothing = 0;
  together(operation, nothing, [](int**) { own_products().fenced = true; });
}

inline void warpgroup_commit() {
  static const char operation[] = "warpgroup_commit";
  int nothing = 0;
  together(operation, nothing, [](int**) { ++own_products().commits; });
}

inline void warpgroup_wait(int pending) {
  static const char operation[] = "warpgroup_wait";
  int nothing = 0;
  together(operation, nothing, [pending](int**) {
    WarpProducts& own = own_products();
    own.fenced = false;
    if (own.commits > static_cast<uint32_t>(pending)) complete_products(own, own.commits - static_cast<uint32_t>(pending));
  });
}

inline void multiply_shared(float* c, int columns, uint64_t a, uint64_t b, ProductForm form) {
  static const char operation[] = "multiply_shared";
  ProductOperand mine{c, nullptr, a, b, static_cast<uint32_t>(columns), form};
  together(operation, mine, start_product);
}

inline void multiply_registers(float* c, int columns, const uint32_t* a, uint64_t b, ProductForm form) {
  static const char operation[] = "multiply_registers";
  ProductOperand mine{c, a, 0, b, static_cast<uint32_t>(columns), form};
  together(operation, mine, start_product);
}

}  // namespace emulator
