// What sm_100 adds, against plain computations: products of both forms on tensor memory; and mistakes that are found there.
#pragma once
#include "../../vocabulary/tensor_memory.h"
#include "bench.h"
#include "mistakes.h"

namespace tests {

#define MISTAKES_100(MISTAKE)                                                       \
  MISTAKE(none, "")                                                                 \
  MISTAKE(loads_not_awaited, "")                                                    \
  MISTAKE(stores_not_awaited, "race: ")                                             \
  MISTAKE(no_fence_before, "without a fence, a barrier and a fence")                \
  MISTAKE(no_fence_after, "without a fence, a barrier and a fence")                 \
  MISTAKE(products_not_awaited, "")                                                 \
  MISTAKE(stores_not_told, "")                                                      \
  MISTAKE(sums_never_written, "which nobody wrote")                                 \
  MISTAKE(lanes_of_another_warp, "reaches those from")                              \
  MISTAKE(columns_past_the_end, "tensor memory has 512")                            \
  MISTAKE(two_threads_multiply, "products of two threads")                          \
  MISTAKE(descriptor_of_wgmma, "not of tcgen05")                                    \
  MISTAKE(product_of_another_type, "none of f32 sums")                              \
  MISTAKE(given_back_early, "")                                                     \
  MISTAKE(never_given_back, "without giving tensor memory back")

#define TENSOR_MISTAKE_NAME(name, message) name,
enum class TensorMistake : int { MISTAKES_100(TENSOR_MISTAKE_NAME) };

struct TensorArguments {
  TensorMap left_map, middle_map, right_map;   // [128, 64], [128, 64], [128 deep, columns]
  float* c;                                    // [128, columns]
  float scale;
  TensorMistake mistake;
};

// Where they are in shared memory, for a third operand of so many panels.
struct TensorPlaces {
  uint32_t left, middle, right, full, done, stored, address;

  DEVICE TensorPlaces(uint32_t start, uint32_t panels)
      : left(start), middle(start + 16384), right(start + 32768), full(right + 16384 * panels), done(full + 8), stored(full + 16),
        address(full + 24) {}
};

constexpr uint32_t TENSOR_SUMS = 128;   // the column where the last sums begin

DEVICE void load_three(const TensorArguments& arguments, const TensorPlaces& at, uint32_t panels) {
  barrier_expect(at.full, static_cast<int>(16384 * (2 + panels)));
  load_tile(at.left, &arguments.left_map, at.full, 0, 0, 0, 0);
  load_tile(at.middle, &arguments.middle_map, at.full, 0, 0, 0, 0);
  for (uint32_t panel = 0; panel < panels; ++panel) {
    load_tile(at.right + 16384 * panel, &arguments.right_map, at.full, static_cast<int>(panel * 64), 0, 0, 0);
  }
  barrier_wait(at.full, 0);
}

template <typename T> DEVICE void multiply_both(const TensorPlaces& at, uint32_t tensor, TensorMistake made) {
  const uint64_t wrong = made == TensorMistake::descriptor_of_wgmma ? uint64_t{1} << 46 : 0;
  const uint32_t type = made == TensorMistake::product_of_another_type ? 1u << 8 : 0;
  const uint64_t a = tensor_descriptor(at.left, 16, 1024) ^ wrong, b = tensor_descriptor(at.middle, 16, 1024);
  const bool adds = made == TensorMistake::sums_never_written;
  for (uint64_t k = 0; k < 4; ++k) tensor_multiply(tensor, a + 2 * k, b + 2 * k, tensor_product<T, 128, false, false>() ^ type, adds || k > 0);
  tensor_commit(at.done);
}

template <typename T, int N> DEVICE void multiply_stored(const TensorPlaces& at, uint32_t tensor, TensorMistake made) {
  if (made != TensorMistake::stores_not_told) barrier_wait(at.stored, 0);
  if (made != TensorMistake::no_fence_after) tensor_fence_after();
  const uint64_t b = tensor_descriptor(at.right, 16384, 1024);
  for (uint32_t k = 0; k < 8; ++k) {
    tensor_multiply(tensor + TENSOR_SUMS, tensor + 8 * k, b + 128 * k, tensor_product<T, N, false, true>(), true);
  }
  tensor_commit(at.done);
}

// A warp's lanes: the first sums, rounded and scaled, over themselves, and zeros where the last will be added to.
template <typename T, int N> DEVICE void store_rounded(const TensorArguments& arguments, uint32_t mine) {
  const TensorMistake made = arguments.mistake;
  float scores[128], zeros[16] = {};
  for (uint32_t i = 0; i < 128; i += 16) tensor_load(scores + i, mine + i);
  for (uint32_t i = 0; i < N; i += 16) tensor_store(mine + TENSOR_SUMS + i, zeros);
  if (made != TensorMistake::loads_not_awaited) tensor_wait_loads(scores);
  for (uint32_t i = 0; i < 128; i += 32) {
    uint32_t pairs[16];
    for (uint32_t j = 0; j < 16; ++j) pairs[j] = pack<T>(scores[i + 2 * j] * arguments.scale, scores[i + 2 * j + 1] * arguments.scale);
    tensor_store(mine + i / 2, pairs);
  }
  if (made != TensorMistake::stores_not_awaited) tensor_wait_stores();
  if (made != TensorMistake::no_fence_before) tensor_fence_before();
}

// (left middle^T, rounded and scaled) right: the first sums go through registers, the last are added to zeros that were stored.
template <typename T, int N> DEVICE void tensor_body(const TensorArguments& arguments) {
  SHARED_MEMORY(memory);
  constexpr uint32_t panels = (N + 63) / 64;
  const TensorPlaces at(shared_address(memory), panels);
  const TensorMistake made = arguments.mistake;
  const int thread = static_cast<int>(threadIdx.x), warp = warp_index();
  if (thread == 0) {
    barrier_init(at.full, 1);
    barrier_init(at.done, 1);
    barrier_init(at.stored, 4);
    barrier_init_fence();
  }
  if (warp == 3) tensor_take(at.address);
  __syncthreads();
  const uint32_t tensor = load_shared<uint32_t>(at.address);
  const uint32_t lanes = static_cast<uint32_t>(made == TensorMistake::lanes_of_another_warp ? 32 : 32 * warp);
  const uint32_t mine = tensor + (lanes << 16) + (made == TensorMistake::columns_past_the_end ? 500 : 0);
  if (thread == 0) load_three(arguments, at, panels), multiply_both<T>(at, tensor, made);
  __syncwarp();
  if (made != TensorMistake::products_not_awaited) barrier_wait(at.done, 0);
  tensor_fence_after();
  store_rounded<T, N>(arguments, mine);
  __syncwarp();
  if (lane_index() == 0) barrier_arrive(at.stored);
  if (thread == (made == TensorMistake::two_threads_multiply ? 32 : 0)) multiply_stored<T, N>(at, tensor, made);
  __syncwarp();
  if (made == TensorMistake::given_back_early && warp == 3) tensor_give(tensor);
  barrier_wait(at.done, 1);
  tensor_fence_after();
  for (uint32_t i = 0; i < N; i += 16) {
    float row[16];
    tensor_load(row, mine + TENSOR_SUMS + i);
    tensor_wait_loads(row);
    for (uint32_t j = 0; j < 16; ++j) arguments.c[static_cast<uint32_t>(thread * N) + i + j] = row[j];
  }
  tensor_fence_before();
  __syncthreads();
  tensor_fence_after();
  if (made != TensorMistake::never_given_back && warp == 3) tensor_give(tensor);
}
ENTRY_100(tensor_64, 128, 1, TensorArguments, tensor_body<Bf16, 64>)
ENTRY_100(tensor_80, 128, 1, TensorArguments, tensor_body<F16, 80>)
ENTRY_100(tensor_128, 128, 1, TensorArguments, tensor_body<Bf16, 128>)

// Numbers of few bits: rounding changes none of the first sums but by what is written here too.
template <typename T, int N>
std::string tensor_products(const char* kernel, uint64_t seed, TensorMistake mistake = TensorMistake::none) {
  const auto left = samples<T>(128 * 64, 3), middle = samples<T>(128 * 64, 5), right = samples<T>(128 * N, 11);
  std::vector<float> c(128 * N, -1);
  TensorArguments arguments{};
  arguments.scale = 0.25f;
  arguments.mistake = mistake;
  if (map_of(&arguments.left_map, left, 128, 64, 128) != 0) return "no map of the left operand";
  if (map_of(&arguments.middle_map, middle, 128, 64, 128) != 0) return "no map of the middle one";
  if (map_of(&arguments.right_map, right, 128, N, 128) != 0) return "no map of the right one";
  arguments.c = c.data();
  const std::string wrong = launch(kernel, arguments, 4 * 16384 + 64, seed);
  if (!wrong.empty()) return wrong;
  const auto first = product(128, 128, 64, [&](size_t m, size_t k) { return to_float(left[m * 64 + k]); },
                             [&](size_t k, size_t n) { return to_float(middle[n * 64 + k]); });
  const auto rounded = [&](size_t m, size_t k) { return to_float(from_float<T>(first[m * 128 + k] * arguments.scale)); };
  return compare("element", c, product(128, N, 128, rounded, [&](size_t k, size_t n) { return to_float(right[k * N + n]); }));
}

inline void add_tensor_cases(std::vector<Case>& cases, uint64_t seed) {
  cases.push_back({"tensor memory, 64 columns", [=] { return tensor_products<Bf16, 64>("tensor_64", seed); }});
  cases.push_back({"tensor memory, 80 columns", [=] { return tensor_products<F16, 80>("tensor_80", seed); }});
  cases.push_back({"tensor memory, 128 columns", [=] { return tensor_products<Bf16, 128>("tensor_128", seed); }});
#define TENSOR_CASE(name, message)                                                                                          \
  cases.push_back({"tensor memory: " #name, [=] {                                                                           \
    const std::string found = tensor_products<Bf16, 64>("tensor_64", seed, TensorMistake::name);                            \
    return expect(TensorMistake::name == TensorMistake::none, found, message);                                              \
  }});
  MISTAKES_100(TENSOR_CASE)
}

}  // namespace tests
