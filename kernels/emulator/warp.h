// What a warp does together: every lane hands in its operands and waits; the last to come works for all 32.
#pragma once
#include "arithmetic.h"
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
  block.count_meeting(warp);
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

struct Product {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

// Fragments as matrix.h says. Of each eight along the sum the even ones come first, then the odd ones, in A as in B: so a
// register's two halves go their own ways by vectors. Words of A by rows (quarters of it), words of B by columns for each pair.
inline void multiply_fragments(Product** lanes, bool is_bf16) {
  alignas(16) uint32_t a_words[4][8][4], b_words[2][4][8];
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    const Product& mine = *lanes[lane];
    const uint32_t group = lane / 4, member = lane % 4;
    for (uint32_t i = 0; i < 4; ++i) a_words[i][group][member] = mine.a[i];
    for (uint32_t i = 0; i < 2; ++i) b_words[i][member][group] = mine.b[i];
  }
  alignas(16) float a[16][16], b[16][8], sums[16][8];
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t group = 0; group < 8; ++group) {
      float* row = &a[group + i % 2 * 8][i / 2 * 8];
      widen_pairs(a_words[i][group], is_bf16, row, row + 4);
    }
  }
  for (uint32_t i = 0; i < 2; ++i) {
    for (uint32_t member = 0; member < 4; ++member) {
      float (*rows)[8] = b + i * 8 + member;
      widen_pairs(b_words[i][member], is_bf16, rows[0], rows[4]);
      widen_pairs(b_words[i][member] + 4, is_bf16, rows[0] + 4, rows[4] + 4);
    }
  }
  multiply(a, b[0], 8, sums);
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    float* c = lanes[lane]->c;
    const float* above = &sums[lane / 4][lane % 4 * 2];
    const float* below = &sums[lane / 4 + 8][lane % 4 * 2];
    c[0] += above[0];
    c[1] += above[1];
    c[2] += below[0];
    c[3] += below[1];
  }
}

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool is_bf16) {
  static const char operation[] = "mma";
  Product mine{c, a, {b0, b1}};
  together(operation, mine, [is_bf16](Product** lanes) { multiply_fragments(lanes, is_bf16); });
}

}  // namespace emulator
