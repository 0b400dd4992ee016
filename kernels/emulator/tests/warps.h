// Primitives that every GPU since sm_80 has, each against a plain computation.
#pragma once
#include "bench.h"

namespace tests {

struct MatrixArguments {
  const void* a;   // [16, 64]
  const void* b;   // [8, 64], or [64, 8] of which rows of 64 are read: [64, 64]
  float* c;        // [16, 8]
  int transposed;
};

// Copies rows of 64 numbers into a panel.
DEVICE void copy_rows(uint32_t to, const void* from, int rows, int valid) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * 8; i += static_cast<int>(blockDim.x)) {
    copy_async(to + panel_address(rows, i / 8, i % 8 * 8), static_cast<const uint16_t*>(from) + i * 8, i / 8 < valid);
  }
}

template <typename T> DEVICE void matrix_body(const MatrixArguments& arguments) {
  SHARED_MEMORY(memory);
  const uint32_t a_tile = shared_address(memory), b_tile = a_tile + panel_bytes(16, 64);
  const int lane = lane_index();
  copy_rows(a_tile, arguments.a, 16, 15);
  copy_commit();
  copy_rows(b_tile, arguments.b, 64, arguments.transposed ? 64 : 8);
  copy_commit();
  copy_wait<1>();
  copy_wait<0>();
  __syncthreads();
  float c[4] = {};
  for (int k = 0; k < 64; k += 16) {
    uint32_t a[4], b[4];
    load_matrices(a, a_tile + panel_address(16, lane % 16, k + lane / 16 * 8));
    if (arguments.transposed) {
      load_matrices_transposed(b, b_tile + panel_address(64, k + lane % 16, 0));
    } else {
      load_matrices(b, b_tile + panel_address(64, lane % 8, k + lane / 8 % 2 * 8));
    }
    multiply_add<T>(c, a, b[0], b[1]);
  }
  for (int i = 0; i < 4; ++i) arguments.c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}
ENTRY(matrix_bf16, 32, 1, MatrixArguments, matrix_body<Bf16>)
ENTRY(matrix_f16, 32, 1, MatrixArguments, matrix_body<F16>)

template <typename T> std::string matrices(const char* kernel, int transposed, uint64_t seed) {
  const auto a = samples<T>(16 * 64, 1), b = samples<T>(64 * 64, 5);
  std::vector<float> c(16 * 8, -1);
  const std::string wrong = launch(kernel, MatrixArguments{a.data(), b.data(), c.data(), transposed}, 16384, seed);
  if (!wrong.empty()) return wrong;
  const auto left = [&](size_t m, size_t k) { return m < 15 ? to_float(a[m * 64 + k]) : 0.0f; };   // the last row is not copied
  const auto right = [&](size_t k, size_t n) { return to_float(transposed ? b[k * 64 + n] : b[n * 64 + k]); };
  return compare("element", c, product(16, 8, 64, left, right));
}

struct SumArguments {
  const float* values;
  float* total;       // added to by all blocks
  float* results;     // [block, 8]
};

DEVICE void sum_body(const SumArguments& arguments) {
  SHARED_MEMORY(memory);
  const uint32_t scratch = shared_address(memory);
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const float value = load_global(arguments.values + block * 96 + thread);
  const float sum = block_sum(value, scratch), most = block_max(value, scratch);
  float* results = arguments.results + block * 8;
  const float next = shuffle_down(value, 1), third = shuffle_from(value, 3);
  const float quad = quad_sum(value), quad_most = quad_max(value);
  const bool any = warp_any(thread == 33), all = warp_all(thread >= 32);
  if (thread == 0) add_global(arguments.total, sum);
  if (thread == 1) add_global(arguments.total + 4, Float4{sum, most, 1.0f, 0.0f});
  if (thread == 36) {
    const float values[8] = {sum, most, next, third, quad, quad_most, any ? 1.0f : 0.0f, all ? 1.0f : 0.0f};
    for (int i = 0; i < 8; ++i) store_global(results + i, values[i]);
  }
}
ENTRY(sums, 96, 1, SumArguments, sum_body)

inline std::string sums_of_blocks(uint64_t seed, uint32_t workers) {
  constexpr uint32_t blocks = 40;
  std::vector<float> values(blocks * 96), results(blocks * 8), wanted;
  alignas(16) float total[8] = {};
  float all = 0;
  for (size_t i = 0; i < values.size(); ++i) values[i] = sample(i);
  const std::string wrong = launch("sums", SumArguments{values.data(), total, results.data()}, 1024, seed, blocks, workers);
  if (!wrong.empty()) return wrong;
  for (uint32_t block = 0; block < blocks; ++block) {
    const float* own = values.data() + block * 96;
    float sum = 0, most = own[0], quad_most = own[36];
    for (int i = 0; i < 96; ++i) sum += own[i], most = max(most, own[i]);
    for (int i = 36; i < 40; ++i) quad_most = max(quad_most, own[i]);
    const float expected[8] = {sum, most, own[37], own[35], own[36] + own[37] + own[38] + own[39], quad_most, 1, 1};
    wanted.insert(wanted.end(), expected, expected + 8);
    all += sum;
  }
  if (total[0] != all || total[4] != all || total[6] != blocks) return differs("total", 0, total[0], all);
  return compare("result", results, wanted);
}

// Every f16 there and back, halfway cases, and what cvt.rn does at the ends.
inline std::string conversions() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = emulator::float_of_f16(half), wide = emulator::float_of_bf16(half);
    if (value == value && emulator::f16_of_float(value) != half) return differs("f16", bits, emulator::f16_of_float(value), bits);
    if (wide == wide && emulator::bf16_of_float(wide) != half) return differs("bf16", bits, emulator::bf16_of_float(wide), bits);
    const uint16_t eight[8] = {half, half, half, half, half, half, half, half};
    float values[8];
    emulator::widen(eight, false, values);
    if (value == value && values[5] != value) return differs("f16 by vectors", bits, values[5], value);
  }
  const auto round = [](float value) { return to_float(from_float<F16>(value)); };
  if (round(1.0f + 0x1p-11f) != 1.0f || round(1.0f + 3 * 0x1p-11f) != 1.0f + 0x1p-9f) return "f16: ties go to even";
  if (round(65519.0f) != 65504.0f || round(65520.0f) != infinity()) return "f16: the largest";
  const auto round_bf16 = [](float value) { return to_float(from_float<Bf16>(value)); };
  if (round_bf16(1.0f + 0x1p-8f) != 1.0f || round_bf16(3.4e38f) != infinity()) return "bf16: ties, the largest";
  return exp2_fast(-infinity()) == 0.0f && exp2_fast(-127.0f) == 0.0f && exp2_fast(3.0f) == 8.0f ? "" : "exp2_fast";
}

inline void add_warp_cases(std::vector<Case>& cases, uint64_t seed) {
  cases.push_back({"matrices of bf16", [=] { return matrices<Bf16>("matrix_bf16", 0, seed); }});
  cases.push_back({"matrices of f16", [=] { return matrices<F16>("matrix_f16", 0, seed); }});
  cases.push_back({"transposed matrices of bf16", [=] { return matrices<Bf16>("matrix_bf16", 1, seed); }});
  cases.push_back({"transposed matrices of f16", [=] { return matrices<F16>("matrix_f16", 1, seed); }});
  cases.push_back({"sums over warps, blocks and a grid", [=] { return sums_of_blocks(seed, 1); }});
  cases.push_back({"the same by three workers", [=] { return sums_of_blocks(seed, 3); }});
  if (seed == 0) cases.push_back({"conversions", conversions});
}

}  // namespace tests
