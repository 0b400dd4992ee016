// What a warp does together: every lane hands in its operands and waits; the last to come works for all 32.
#pragma once
#include "shared.h"

namespace emulator {

// Waits for the other lanes; true in the last one to come, false in the others, once somebody has made them ready again.
inline bool meet(const char* operation, void* operand) {
  Block& block = *running;
  Warp& warp = block.warp();
  const uint32_t lane = block.current->lane;
  if (warp.arrived != 0 && warp.operation != operation) {
    block.fail("lanes of one warp reached different operations: %s and %s", warp.operation, operation);
  }
  if (warp.finished != 0) block.fail("%s without the lanes that have returned", operation);
  warp.operation = operation;
  warp.operands[lane] = operand;
  warp.arrived |= 1u << lane;
  if (warp.arrived != ALL_LANES) {
    block.park();
    return false;
  }
  warp.arrived = 0;
  return true;
}

// `work(operands)` with the operands of all lanes; every lane goes on after it.
template <typename Operand, typename Work> void together(const char* operation, Operand& operand, Work work) {
  if (!meet(operation, &operand)) return;
  Block& block = *running;
  block.make_ready(block.current->warp, ~(1u << block.current->lane));
  work(reinterpret_cast<Operand**>(block.warp().operands));
  block.pass();
}

inline void synchronize_warp() {
  int nothing = 0;
  static const char operation[] = "__syncwarp";
  together(operation, nothing, [](int**) {});
}

struct Shuffle {
  uint32_t value, result;
  int argument;
};

template <typename Source> uint32_t shuffle(const char* operation, uint32_t value, int argument, Source source) {
  Shuffle mine{value, 0, argument};
  together(operation, mine, [source](Shuffle** lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      const int from = source(lane, lanes[lane]->argument);
      lanes[lane]->result = lanes[from >= 0 && from < 32 ? from : lane]->value;
    }
  });
  return mine.result;
}

inline uint32_t shuffle_xor(uint32_t value, int mask) {
  static const char operation[] = "shuffle_xor";
  return shuffle(operation, value, mask, [](int lane, int argument) { return lane ^ argument; });
}
inline uint32_t shuffle_down(uint32_t value, int delta) {
  static const char operation[] = "shuffle_down";
  return shuffle(operation, value, delta, [](int lane, int argument) { return lane + argument; });
}
// PTX ISA, shfl.idx: the lane is taken modulo 32.
inline uint32_t shuffle_from(uint32_t value, int from) {
  static const char operation[] = "shuffle_from";
  return shuffle(operation, value, from, [](int, int argument) { return argument & 31; });
}

struct Vote {
  bool holds;
  uint32_t result;
};

inline uint32_t ballot(bool holds) {
  static const char operation[] = "ballot";
  Vote mine{holds, 0};
  together(operation, mine, [](Vote** lanes) {
    uint32_t result = 0;
    for (int lane = 0; lane < 32; ++lane) result |= static_cast<uint32_t>(lanes[lane]->holds) << lane;
    for (int lane = 0; lane < 32; ++lane) lanes[lane]->result = result;
  });
  return mine.result;
}

struct MatrixLoad {
  uint32_t* registers;
  uint32_t address;
};

// PTX ISA, ldmatrix: rows of matrix i come from lanes 8 * i .. 8 * i + 7; lane 4 * group + member receives row `group`, columns
// 2 * member and 2 * member + 1; transposed, those two rows of column `group`.
inline void gather_matrices(MatrixLoad** lanes, bool transposed) {
  Block& block = *running;
  const Knowledge& known = block.knowledge();
  const uint32_t warp = block.current->warp;
  uint16_t matrix[4][8][8];
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    const uint32_t address = lanes[lane]->address;
    std::memcpy(matrix[lane / 8][lane % 8], shared().at(address, 16, 16, "ldmatrix"), 16);
    shared().note_read(Shared::word_of(address), 4, warp, known.all.tick[warp], known.all, "ldmatrix");
  }
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    const uint32_t group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = transposed ? matrix[i][pair][group] : matrix[i][group][pair];
      const uint32_t high = transposed ? matrix[i][pair + 1][group] : matrix[i][group][pair + 1];
      lanes[lane]->registers[i] = low | high << 16;
    }
  }
}

inline void load_matrices(uint32_t (&registers)[4], uint32_t address, bool transposed) {
  static const char plain[] = "ldmatrix", turned[] = "ldmatrix.trans";
  MatrixLoad mine{registers, address};
  together(transposed ? turned : plain, mine, [transposed](MatrixLoad** lanes) { gather_matrices(lanes, transposed); });
}

// Eight f32 at once, whatever the processor makes of it.
typedef float Float8 __attribute__((vector_size(32)));
typedef uint32_t Word8 __attribute__((vector_size(32)));

// `float_of_f16` of eight numbers in the lower halves.
inline void widen_f16(const Word8& half, Float8& wide) {
  const Word8 magnitude = (half & 0x7fffu) << 13;
  const Float8 scaled = reinterpret_cast<Float8>(magnitude) * float_of_bits((127 + 112) << 23);
  const Word8 special = reinterpret_cast<Word8>(magnitude >= 0x0f800000u) & 0x7f800000u;
  wide = reinterpret_cast<Float8>(reinterpret_cast<Word8>(scaled) | special | (half & 0x8000u) << 16);
}

// Pairs of 16-bit numbers, as floats: `low` from the lower halves.
inline void widen(const Word8& pairs, bool is_bf16, Float8& low, Float8& high) {
  if (is_bf16) {
    low = reinterpret_cast<Float8>(pairs << 16);
    high = reinterpret_cast<Float8>(pairs & 0xffff0000u);
  } else {
    widen_f16(pairs & 0xffffu, low);
    widen_f16(pairs >> 16, high);
  }
}

struct Product {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

// Fragments as matrix.h says. A: by rows; B: by rows of the sum, so that a row is eight columns at once.
inline void multiply_fragments(Product** lanes, bool is_bf16) {
  alignas(32) uint32_t words[24][8];   // per register of A and B (0-3, 4-5) four vectors of eight lanes
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    const Product& mine = *lanes[lane];
    for (uint32_t i = 0; i < 4; ++i) words[4 * i + lane / 8][lane % 8] = mine.a[i];
    for (uint32_t i = 0; i < 2; ++i) words[16 + 4 * i + lane / 8][lane % 8] = mine.b[i];
  }
  alignas(32) float a[16][16], b[16][8];
  for (uint32_t vector = 0; vector < 24; ++vector) {
    Word8 pairs;
    std::memcpy(&pairs, words[vector], sizeof pairs);
    Float8 low, high;
    widen(pairs, is_bf16, low, high);
    const uint32_t i = vector / 4 % 4, first = vector % 4 * 8;
    for (uint32_t k = 0; k < 8; ++k) {
      const uint32_t group = (first + k) / 4, pair = (first + k) % 4 * 2;
      if (vector < 16) {
        a[group + i % 2 * 8][pair + i / 2 * 8] = low[k];
        a[group + i % 2 * 8][pair + i / 2 * 8 + 1] = high[k];
      } else {
        b[pair + i * 8][group] = low[k];
        b[pair + i * 8 + 1][group] = high[k];
      }
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    Float8 sums = {};
    for (uint32_t k = 0; k < 16; ++k) sums += a[row][k] * *reinterpret_cast<const Float8*>(b[k]);
    for (uint32_t column = 0; column < 8; ++column) {
      lanes[row % 8 * 4 + column / 2]->c[row / 8 * 2 + column % 2] += sums[column];
    }
  }
}

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool is_bf16) {
  static const char operation[] = "mma";
  Product mine{c, a, {b0, b1}};
  together(operation, mine, [is_bf16](Product** lanes) { multiply_fragments(lanes, is_bf16); });
}

}  // namespace emulator
