// What sm_90a adds, against plain computations: products of every form and width, a ring of loaded tiles, turns by numbered
// barriers.
#pragma once
#include "bench.h"

namespace tests {

struct ProductArguments {
  TensorMap a_map, b_map;
  float* c;   // [64, columns]
};

// Loads A and B and tells `barrier`; panels of B follow each other at 8192 bytes.
DEVICE void load_operands(const ProductArguments& arguments, uint32_t a_tile, uint32_t b_tile, uint32_t barrier, int panels,
                          int rows) {
  if (threadIdx.x != 0) return;
  barrier_expect(barrier, 8192 + panels * rows * 128);
  load_tile(a_tile, &arguments.a_map, barrier, 0, 0, 0, 0);
  for (int panel = 0; panel < panels; ++panel) {
    load_tile(b_tile + static_cast<uint32_t>(panel * 8192), &arguments.b_map, barrier, panel * 64, 0, 0, 0);
  }
}

// One warpgroup: c = a b over a depth of 64, from tiles as they lie: A [64 rows, 64 deep] or transposed, B [columns, 64 deep] or
// [64 deep, columns].
template <typename T, int N, bool TransposedA, bool TransposedB, bool Registers>
DEVICE void product_body(const ProductArguments& arguments) {
  SHARED_MEMORY(memory);
  constexpr int PANELS = TransposedB ? (N + 63) / 64 : 1, ROWS = TransposedB ? 64 : N;
  const uint32_t a_tile = shared_address(memory), b_tile = a_tile + 8192, barrier = b_tile + PANELS * ROWS * 128;
  const int lane = lane_index(), warp = warp_index();
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_init_fence();
  }
  __syncthreads();
  load_operands(arguments, a_tile, b_tile, barrier, PANELS, ROWS);
  barrier_wait(barrier, 0);
  float c[N / 2];
  uint32_t a[4][4];
  for (int k = 0; k < 4; ++k) load_matrices(a[k], a_tile + panel_address(64, warp * 16 + lane % 16, k * 16 + lane / 16 * 8));
  const uint64_t a_start = descriptor(a_tile, 8192, 1024), b_start = descriptor(b_tile, 8192, 1024);
  if (Registers) {
    for (int i = 0; i < N / 2; ++i) c[i] = 0.0f;
  }
  warpgroup_fence();
  for (int k = 0; k < 4; ++k) {
    const uint64_t a_at = a_start + static_cast<uint64_t>(k * (TransposedA ? 2048 : 32) >> 4);
    const uint64_t b_at = b_start + static_cast<uint64_t>(k * (TransposedB ? 2048 : 32) >> 4);
    if constexpr (Registers) {
      multiply_registers<T, N, TransposedB>(c, a[k], b_at);
    } else {
      multiply_shared<T, N, TransposedA, TransposedB>(c, a_at, b_at, k > 0);
    }
  }
  warpgroup_commit();
  warpgroup_wait<0>();
  for (int i = 0; i < N / 2; ++i) {
    arguments.c[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = c[i];
  }
}

template <typename T> int map_of(TensorMap* map, const std::vector<T>& values, int64_t rows, int64_t columns, int32_t box_rows) {
  const int64_t sizes[5] = {columns, rows, 1, 1, 1}, strides[4] = {columns * 2, columns * rows * 2, columns * rows * 2, 0};
  const int32_t box[5] = {64, box_rows, 1, 1, 1};
  return emulator_tensor_map(map, values.data(), 2, sizes, strides, box);
}

template <typename T, int N, bool TransposedA, bool TransposedB> std::string products(const char* kernel, uint64_t seed) {
  const auto a = samples<T>(64 * 64, 3), b = samples<T>(64 * N, 11);
  std::vector<float> c(64 * N, -1);
  ProductArguments arguments{};
  if (map_of(&arguments.a_map, a, 64, 64, 64) != 0) return "no map of A";
  if (map_of(&arguments.b_map, b, TransposedB ? 64 : N, TransposedB ? N : 64, TransposedB ? 64 : N) != 0) return "no map of B";
  arguments.c = c.data();
  const std::string wrong = launch(kernel, arguments, 8192 + 4 * 8192 + 1024, seed);
  if (!wrong.empty()) return wrong;
  const auto left = [&](size_t m, size_t k) { return to_float(TransposedA ? a[k * 64 + m] : a[m * 64 + k]); };
  const auto right = [&](size_t k, size_t n) { return to_float(TransposedB ? b[k * N + n] : b[n * 64 + k]); };
  return compare("element", c, product(64, N, 64, left, right));
}

#define PRODUCT_CASES(CASE)                                                                                        \
  CASE(product_64, Bf16, 64, false, false, false)                                                                  \
  CASE(product_64_both, F16, 64, true, true, false)                                                                \
  CASE(product_80, Bf16, 80, false, true, false)                                                                   \
  CASE(product_96_registers, F16, 96, false, true, true)                                                           \
  CASE(product_96_a, Bf16, 96, true, false, false)                                                                 \
  CASE(product_128, F16, 128, false, false, false)                                                                 \
  CASE(product_128_registers, Bf16, 128, false, true, true)                                                        \
  CASE(product_192, Bf16, 192, true, true, false)                                                                  \
  CASE(product_256, Bf16, 256, false, false, false)                                                                \
  CASE(product_256_registers, F16, 256, false, false, true)
#define PRODUCT_ENTRY(name, T, N, a, b, registers) ENTRY_90(name, 128, 1, ProductArguments, product_body<T, N, a, b, registers>)
PRODUCT_CASES(PRODUCT_ENTRY)

struct RingArguments {
  TensorMap map;         // [rows, 80] of which boxes of 64 rows
  const float* scales;   // [tiles * 64]
  float* sums;           // [tiles, 2, 80]: per consumer
  int tiles;
};

// A ring of two slots: where they are.
struct Ring {
  uint32_t tiles, scales, full, empty;

  DEVICE explicit Ring(uint32_t start)
      : tiles(start), scales(start + 2 * 16384), full(start + 2 * 16384 + 512), empty(start + 2 * 16384 + 528) {}
};

DEVICE void fill_ring(const RingArguments& arguments, const Ring& ring) {
  for (int i = 0; i < arguments.tiles; ++i) {
    const uint32_t slot = static_cast<uint32_t>(i) % 2, parity = static_cast<uint32_t>(i) / 2 % 2;
    const uint32_t full = ring.full + 8 * slot, tile = ring.tiles + 16384 * slot;
    barrier_wait(ring.empty + 8 * slot, parity ^ 1);
    barrier_expect(full, 16384 + 256);
    load_bytes(ring.scales + 256 * slot, arguments.scales + i * 64, 256, full);
    load_tile(tile, &arguments.map, full, 0, i * 64, 0, 0);
    load_tile(tile + 8192, &arguments.map, full, 64, i * 64, 0, 0);
  }
}

// Each thread its column, of every tile.
DEVICE void sum_ring(const RingArguments& arguments, const Ring& ring, int consumer) {
  const int column = static_cast<int>(threadIdx.x) % 128;
  for (int i = 0; i < arguments.tiles; ++i) {
    const uint32_t slot = static_cast<uint32_t>(i) % 2, parity = static_cast<uint32_t>(i) / 2 % 2;
    barrier_wait(ring.full + 8 * slot, parity);
    float sum = 0.0f;
    for (int row = 0; row < 64; ++row) {
      const uint32_t at = ring.tiles + 16384 * slot + panel_address(64, row, column);
      const Float2 values = unpack<Bf16>(load_shared<uint32_t>(at & ~3u));
      const float scale = load_shared<float>(ring.scales + 256 * slot + 4 * static_cast<uint32_t>(row));
      sum += scale * (column % 2 != 0 ? values.y : values.x);
    }
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(ring.empty + 8 * slot);
    if (column < 80) arguments.sums[(i * 2 + consumer) * 80 + column] = sum;
  }
}

// A producer loads tiles into a ring of two; two consumers, of which one lets the other begin, sum the columns of every tile.
DEVICE void ring_body(const RingArguments& arguments) {
  SHARED_MEMORY(memory);
  const Ring ring(shared_address(memory));
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  if (thread == 0) {
    for (uint32_t i = 0; i < 2; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (group == 0) {
    registers_release<24>();
    if (thread == 0) fill_ring(arguments, ring);
    return;
  }
  registers_claim<240>();
  if (group == 1) {
    named_sync(1, 256);
  } else {
    named_arrive(1, 256);
  }
  sum_ring(arguments, ring, group - 1);
  named_sync(2, 256);
}
ENTRY_90(ring, 384, 1, RingArguments, ring_body)

// The last box hangs over the end of the tensor: zeros, on both sides.
inline std::string rings(uint64_t seed) {
  constexpr int tiles = 5;
  constexpr size_t rows = tiles * 64 - 23;
  const auto values = samples<Bf16>(rows * 80, 2);
  std::vector<float> scales(tiles * 64), sums(tiles * 2 * 80, -1), wanted;
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = sample(i + 9);
  RingArguments arguments{{}, scales.data(), sums.data(), tiles};
  if (map_of(&arguments.map, values, int64_t{rows}, 80, 64) != 0) return "no map";
  const std::string wrong = launch("ring", arguments, 2 * 16384 + 1024, seed);
  if (!wrong.empty()) return wrong;
  for (int tile = 0; tile < tiles; ++tile) {
    const auto scale = [&](size_t, size_t k) { return scales[static_cast<size_t>(tile) * 64 + k]; };
    const auto value = [&](size_t k, size_t n) {
      const size_t row = static_cast<size_t>(tile) * 64 + k;
      return row < rows ? to_float(values[row * 80 + n]) : 0.0f;
    };
    const auto one = product(1, 80, 64, scale, value);
    for (int consumer = 0; consumer < 2; ++consumer) wanted.insert(wanted.end(), one.begin(), one.end());
  }
  return compare("sum", sums, wanted);
}

inline void add_warpgroup_cases(std::vector<Case>& cases, uint64_t seed) {
#define PRODUCT_CASE(name, T, N, a, b, registers) \
  cases.push_back({"asynchronous " #name, [=] { return products<T, N, a, b>(#name, seed); }});
  PRODUCT_CASES(PRODUCT_CASE)
  cases.push_back({"a ring of tiles", [=] { return rings(seed); }});
}

}  // namespace tests
