// The C interface that Rust and drivers call. Included by one source file of a library.
#pragma once
#include "../vocabulary/gpu.h"

namespace emulator {

inline int refuse(char* message, uint64_t bytes, const std::string& text) {
  if (message != nullptr && bytes > 0) std::snprintf(message, bytes, "%s", text.c_str());
  return 1;
}

inline const Registration* find_kernel(const char* name) {
  const Registration* kernel = Registration::first;
  while (kernel != nullptr && std::strcmp(kernel->name, name) != 0) kernel = kernel->next;
  return kernel;
}

// What a driver would refuse; empty where it is fine.
inline std::string objection(const Registration& kernel, const uint32_t grid[3], uint32_t shared_bytes, uint64_t argument_bytes) {
  if (argument_bytes != kernel.argument_bytes) {
    return "arguments of " + std::to_string(argument_bytes) + " bytes, the kernel takes " + std::to_string(kernel.argument_bytes);
  }
  if (argument_bytes > 4096) return "arguments of more than 4096 bytes";
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return "an empty grid";
  if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > 0x7fffffff) return "a grid of more than 2^31 - 1, 65535, 65535 blocks";
  if (shared_bytes > MOST_SHARED) return "more shared memory than " + std::to_string(MOST_SHARED) + " bytes";
  if (kernel.threads % 32 != 0 || kernel.threads == 0 || kernel.threads > MOST_THREADS) return "threads: whole warps up to 1024";
  return "";
}

}  // namespace emulator

extern "C" {

// Runs a kernel's grid. 0: fine. 1: `message` says what was wrong with the launch or which mistake the kernel made.
int emulator_launch(const char* kernel, const uint32_t grid[3], uint32_t shared_bytes, const void* arguments,
                    uint64_t argument_bytes, uint64_t seed, uint32_t workers, char* message, uint64_t message_bytes) {
  const emulator::Registration* entry = emulator::find_kernel(kernel);
  if (entry == nullptr) return emulator::refuse(message, message_bytes, std::string("no kernel `") + kernel + "`");
  const std::string wrong = emulator::objection(*entry, grid, shared_bytes, argument_bytes);
  if (!wrong.empty()) return emulator::refuse(message, message_bytes, std::string(kernel) + ": " + wrong);
  emulator::Launch launch;
  launch.kernel = entry;
  launch.grid = {grid[0], grid[1], grid[2]};
  launch.shared_bytes = shared_bytes;
  launch.arguments = arguments;
  launch.seed = seed;
  emulator::run(launch, workers);
  return launch.failed ? emulator::refuse(message, message_bytes, launch.message) : 0;
}

// Describes a tensor of up to four dimensions to `load_tile`, as the driver's cuTensorMapEncodeTiled with the 128-byte swizzle
// and zeros outside; 1 where the driver would refuse. Sizes and boxes in elements, of dimensions 0 to 4 (the last 1); strides of
// dimensions 1 to 4.
int emulator_tensor_map(TensorMap* map, const void* base, int dtype_bytes, const int64_t sizes[5], const int64_t strides_bytes[4],
                        const int32_t box[5]) {
  emulator::TensorLayout layout{};
  layout.mark = emulator::TENSOR_MARK;
  layout.base = static_cast<const unsigned char*>(base);
  layout.element_bytes = static_cast<uint32_t>(dtype_bytes);
  bool fine = reinterpret_cast<uintptr_t>(base) % 16 == 0 && reinterpret_cast<uintptr_t>(map) % 64 == 0 && sizes[4] == 1 &&
              box[4] == 1 && int64_t{box[0]} * dtype_bytes <= 128 && int64_t{box[0]} * dtype_bytes % 16 == 0;
  for (int i = 0; i < 5; ++i) {
    fine = fine && sizes[i] > 0 && sizes[i] < int64_t{1} << 32 && box[i] > 0 && box[i] <= 256;
    layout.sizes[i] = static_cast<uint32_t>(sizes[i]);
    layout.box[i] = static_cast<uint32_t>(box[i]);
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t stride = strides_bytes[i];
    fine = fine && (sizes[i + 1] == 1 || (stride % 16 == 0 && stride >= 0 && stride < int64_t{1} << 40));
    layout.strides[i] = stride;
  }
  if (!fine) return 1;
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &layout, sizeof layout);
  return 0;
}

}  // extern "C"
