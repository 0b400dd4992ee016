// Every kind of mistake, made once in a kernel that is right otherwise: the emulator has to say so, with every seed.
#pragma once
#include "warpgroups.h"

namespace tests {

#define MISTAKES_80(MISTAKE)                                                          \
  MISTAKE(none, "")                                                                   \
  MISTAKE(no_barrier_after_copies, "race: ")                                          \
  MISTAKE(copies_not_waited_for, "race: ldmatrix")                                    \
  MISTAKE(no_barrier_before_reuse, "race: ")                                          \
  MISTAKE(no_barrier_after_store, "race: ")                                           \
  MISTAKE(no_syncwarp, "")                                                              \
  MISTAKE(half_a_warp_meets, "lanes of one warp reached different operations")        \
  MISTAKE(half_a_warp_shuffles, "shuffle_xor")                                        \
  MISTAKE(different_operations, "lanes of one warp reached different operations")     \
  MISTAKE(unequal_barriers, "threads expected here")                                  \
  MISTAKE(barrier_too_large, "deadlock: warp 0 waits for numbered barrier 3")         \
  MISTAKE(read_past_the_end, "the block has 4096 bytes")                              \
  MISTAKE(read_unaligned, "not a multiple of 16")                                     \
  MISTAKE(matrix_unaligned, "ldmatrix of 16 bytes")                                   \
  MISTAKE(copy_unaligned, "not a multiple of 16")                                     \
  MISTAKE(null_pointer, "null pointer")                                               \
  MISTAKE(foreign_pointer, "not to shared memory")                                    \
  WILD_POINTERS(MISTAKE)
#if defined(__SANITIZE_ADDRESS__)
#define WILD_POINTERS(MISTAKE)
#else
#define WILD_POINTERS(MISTAKE)                     \
  MISTAKE(wild_pointer, "fault: nothing may be")   \
  MISTAKE(stack_too_deep, "fault: nothing may be")
#endif
#define MISTAKES_90(MISTAKE)                                                          \
  MISTAKE(right, "")                                                                  \
  MISTAKE(no_init_fence, "without barrier_init_fence")                                \
  MISTAKE(no_meeting_after_init, "barrier")                                           \
  MISTAKE(too_few_bytes, "deadlock")                                                  \
  MISTAKE(too_many_bytes, "deadlock")                                                 \
  MISTAKE(arrives_twice, "more than")                                                 \
  MISTAKE(waits_for_wrong_parity, "")                                                 \
  MISTAKE(slot_not_awaited, "")                                                       \
  MISTAKE(slot_returned_early, "race: ")                                              \
  MISTAKE(no_proxy_fence, "without a proxy fence")                                    \
  MISTAKE(no_meeting_after_store, "race: ")                                           \
  MISTAKE(no_fence_before_product, "without warpgroup_fence")                         \
  MISTAKE(sums_written_early, "sums of a product were written")                       \
  MISTAKE(a_written_early, "registers of A were written")                             \
  MISTAKE(never_waited_for, "asynchronous products under way")                        \
  MISTAKE(warps_differ, "start different products")                                   \
  MISTAKE(rows_unaligned, "of the first of eight rows")                               \
  MISTAKE(descriptor_outside, "operand of a product of 16 bytes")                     \
  MISTAKE(map_not_fenced, "without tensor_map_fence")                                 \
  MISTAKE(tile_unaligned, "not a multiple of 1024")                                   \
  MISTAKE(copy_not_awaited, "copies")                                                 \
  MISTAKE(barrier_overwritten, "a barrier lives there")                               \
  MISTAKE(claims_too_much, "waits for registers")

#define MISTAKE_NAME(name, message) name,
enum class Mistake : int { MISTAKES_80(MISTAKE_NAME) MISTAKES_90(MISTAKE_NAME) };

// Deeper than any stack; what it does with the numbers keeps compilers from turning it into a loop.
inline int descend(int depth) {
  volatile int numbers[1024];
  numbers[depth % 1024] = depth;
  return depth == 0 ? 0 : descend(depth - 1) + numbers[depth % 1024];
}

struct PlainArguments {
  const void* values;   // [128, 64] of 16 bits
  float* result;        // [64]
  Mistake mistake;
};

// What lane 9 stores, lane 3 reads.
DEVICE float from_lane_to_lane(uint32_t address, Mistake made) {
  if (lane_index() == 9) store_shared(address, 2.0f);
  if (made != Mistake::no_syncwarp) __syncwarp();
  return lane_index() == 3 ? load_shared<float>(address) : 0.0f;
}

// Two warps: a tile through ldmatrix and the tensor cores, twice, then a value from the other warp.
DEVICE void plain_body(const PlainArguments& arguments) {
  SHARED_MEMORY(memory);
  const Mistake made = arguments.mistake;
  const uint32_t tile = shared_address(made == Mistake::foreign_pointer ? reinterpret_cast<const void*>(&arguments) : memory);
  const int lane = lane_index(), thread = static_cast<int>(threadIdx.x);
  float c[4] = {};
  for (int round = 0; round < 4; ++round) {
    const uint16_t* values = static_cast<const uint16_t*>(arguments.values) + round * 16 * 64;
    for (int i = thread; i < 128; i += 64) {
      copy_async(tile + panel_address(16, i / 8, i % 8 * 8), values + i * 8 + (made == Mistake::copy_unaligned), true);
    }
    copy_commit();
    if (made != Mistake::copies_not_waited_for) copy_wait<0>();
    if (made != Mistake::no_barrier_after_copies) __syncthreads();
    uint32_t a[4];
    load_matrices(a, tile + panel_address(16, lane % 16, lane / 16 * 8) + (made == Mistake::matrix_unaligned ? 4 : 0));
    multiply_add<Bf16>(c, a, a[0], a[2]);
    if (made != Mistake::no_barrier_before_reuse) __syncthreads();
  }
  const uint32_t row = tile + 2048 + 4u * static_cast<uint32_t>(thread);
  store_shared(row, c[0]);
  if (made != Mistake::no_barrier_after_store) __syncthreads();
  float sum = load_shared<float>(tile + 2048 + 4u * static_cast<uint32_t>(thread ^ 32));
  sum += from_lane_to_lane(tile + 2304 + 4u * static_cast<uint32_t>(warp_index()), made);
  if (made == Mistake::half_a_warp_meets && lane < 16) __syncthreads();
  if (made != Mistake::half_a_warp_shuffles || lane < 16) sum += shuffle_xor(sum, 1);
  if (made == Mistake::different_operations && lane == 5) sum += shuffle_down(sum, 1);
  if (made == Mistake::different_operations && lane != 5) sum += shuffle_xor(sum, 1);
  if (made == Mistake::unequal_barriers) named_sync(3, thread < 32 ? 64 : 96);
  if (made == Mistake::barrier_too_large) named_sync(3, 96);
  if (made == Mistake::read_past_the_end) sum += load_shared<float>(tile + 4096);
  if (made == Mistake::read_unaligned) sum += load_shared<Float4>(tile + 8).x;
  if (made == Mistake::null_pointer) sum += load_global(static_cast<const float*>(nullptr));
#if !defined(__SANITIZE_ADDRESS__)
  if (made == Mistake::wild_pointer && thread == 5) sum += load_global(reinterpret_cast<const float*>(uint64_t{1} << 45));
  if (made == Mistake::stack_too_deep && thread == 7) sum += static_cast<float>(descend(1000000));
#endif
  arguments.result[thread] = sum;
}
ENTRY(plain_mistakes, 64, 1, PlainArguments, plain_body)

inline std::string plain_mistake(Mistake mistake, uint64_t seed) {
  const auto values = samples<Bf16>(65 * 64, 2);
  std::vector<float> result(64);
  const std::string wrong = launch("plain_mistakes", PlainArguments{values.data(), result.data(), mistake}, 4096, seed);
  for (float value : result) {
    if (wrong.empty() && value != value) return "NaN";
  }
  return wrong;
}

struct GroupArguments {
  TensorMap map;          // [256, 64]
  const TensorMap* far;   // the same
  float* result;          // [128]
  Mistake mistake;
};

struct GroupMemory {
  uint32_t tiles, stored, full, empty;
};

DEVICE void make_barriers(const GroupMemory& at, Mistake made) {
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < 2; ++i) {
      barrier_init(at.full + 8 * i, 1);
      barrier_init(at.empty + 8 * i, 4);
    }
    if (made != Mistake::no_init_fence) barrier_init_fence();
  }
  if (made != Mistake::no_meeting_after_init) __syncthreads();
}

DEVICE void produce(const GroupArguments& arguments, const GroupMemory& at) {
  const Mistake made = arguments.mistake;
  if (threadIdx.x != 128) return;
  if (made != Mistake::map_not_fenced) tensor_map_fence(arguments.far);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t slot = i % 2;
    if (made != Mistake::slot_not_awaited) barrier_wait(at.empty + 8 * slot, i / 2 % 2 ^ 1);
    const int bytes = made == Mistake::too_few_bytes ? 4096 : made == Mistake::too_many_bytes ? 16384 : 8192;
    barrier_expect(at.full + 8 * slot, bytes);
    if (made == Mistake::arrives_twice) barrier_arrive(at.full + 8 * slot);
    const uint32_t to = at.tiles + 8192 * slot + (made == Mistake::tile_unaligned ? 512 : 0);
    load_tile(to, i % 2 == 0 ? &arguments.map : arguments.far, at.full + 8 * slot, 0, static_cast<int>(i) * 64, 0, 0);
  }
  if (made == Mistake::copy_not_awaited) {
    barrier_wait(at.empty, 1);
    barrier_expect(at.full, 8192);
    load_tile(at.tiles, &arguments.map, at.full, 0, 0, 0, 0);
  }
}

// Rounds A to shared memory by threads, for the product to read.
DEVICE void store_a(const GroupMemory& at, Mistake made) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 64 * 32; i += 128) {
    store_shared(at.stored + panel_address(64, i / 32, i % 32 * 2), pack<Bf16>(1.0f, static_cast<float>(i % 4)));
  }
  if (made != Mistake::no_proxy_fence) proxy_fence();
  if (made != Mistake::no_meeting_after_store) named_sync(1, 128);
  if (made == Mistake::barrier_overwritten && thread == 0) store_shared(at.empty, 1.0f);
}

DEVICE void consume(const GroupArguments& arguments, const GroupMemory& at) {
  const Mistake made = arguments.mistake;
  const int warp = warp_index();
  if (made == Mistake::claims_too_much) registers_claim<248>();
  store_a(at, made);
  float c[32], more[32] = {};
  uint32_t a[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t slot = i % 2;
    barrier_wait(at.full + 8 * slot, i / 2 % 2 ^ (made == Mistake::waits_for_wrong_parity ? 1 : 0));
    uint32_t start = at.tiles + 8192 * slot;
    if (made == Mistake::rows_unaligned) start += 128;
    if (made == Mistake::descriptor_outside) start += 32768;
    if (made == Mistake::warps_differ && warp == 2) start += 32;
    const uint64_t b = descriptor(start, 16, 1024);
    if (made != Mistake::no_fence_before_product) warpgroup_fence();
    multiply_shared<Bf16, 64, false, false>(c, descriptor(at.stored, 16, 1024), b, i > 0);
    warpgroup_commit();
    multiply_registers<Bf16, 64, false>(more, a, b);
    warpgroup_commit();
    if (made == Mistake::sums_written_early) c[3] *= 2.0f;
    if (made == Mistake::a_written_early) a[1] = 0;
    if (made == Mistake::slot_returned_early && lane_index() == 0) barrier_arrive(at.empty + 8 * slot);
    if (made != Mistake::never_waited_for || i < 3) warpgroup_wait<0>();
    if (made != Mistake::slot_returned_early && lane_index() == 0) barrier_arrive(at.empty + 8 * slot);
  }
  arguments.result[threadIdx.x] = c[0] + more[0];
}

// One warpgroup multiplies what another loads.
DEVICE void group_body(const GroupArguments& arguments) {
  SHARED_MEMORY(memory);
  const uint32_t start = shared_address(memory);
  const GroupMemory at{start, start + 16384, start + 24576, start + 24592};
  make_barriers(at, arguments.mistake);
  if (threadIdx.x >= 128) {
    produce(arguments, at);
  } else {
    consume(arguments, at);
  }
}
ENTRY_90(group_mistakes, 256, 2, GroupArguments, group_body)

inline std::string group_mistake(Mistake mistake, uint64_t seed) {
  const auto values = samples<Bf16>(256 * 64, 2);
  std::vector<float> result(128);
  TensorMap far;
  GroupArguments arguments{{}, &far, result.data(), mistake};
  if (map_of(&arguments.map, values, 256, 64, 64) != 0) return "no map";
  far = arguments.map;
  const std::string wrong = launch("group_mistakes", arguments, 25600, seed);
  for (float value : result) {
    if (wrong.empty() && value != value) return "NaN";
  }
  return wrong;
}

// The message has to be the one wanted; of a kernel without a mistake, none.
inline std::string expect(bool right, const std::string& found, const std::string& wanted) {
  if (right) return found;
  if (found.empty()) return "not found";
  return found.find(wanted) == std::string::npos ? "found as: " + found : "";
}

inline void add_mistake_cases(std::vector<Case>& cases, uint64_t seed) {
#define PLAIN_CASE(name, message) \
  cases.push_back({#name, [=] { return expect(Mistake::name == Mistake::none, plain_mistake(Mistake::name, seed), message); }});
  MISTAKES_80(PLAIN_CASE)
#define GROUP_CASE(name, message) \
  cases.push_back({#name, [=] { return expect(Mistake::name == Mistake::right, group_mistake(Mistake::name, seed), message); }});
  MISTAKES_90(GROUP_CASE)
}

}  // namespace tests
