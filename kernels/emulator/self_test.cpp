// The emulator's own test: every primitive against a plain computation, and every kind of mistake found.
//
//   c++ -std=c++17 -O2 -pthread kernels/emulator/self_test.cpp -o self_test && ./self_test [seeds]
//
// As a library (EMULATOR_LIBRARY): emulator_self_test says what failed first.
#include "tests/mistakes.h"
#include "tests/tensor.h"
#include "tests/tiles.h"
#include "tests/warps.h"

extern "C" int emulator_self_test(uint64_t seeds, char* message, uint64_t bytes) {
  int failures = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    std::vector<tests::Case> cases;
    tests::add_tile_cases(cases, seed);
    tests::add_warp_cases(cases, seed);
    tests::add_warpgroup_cases(cases, seed);
    tests::add_tensor_cases(cases, seed);
    tests::add_mistake_cases(cases, seed);
    for (const tests::Case& one : cases) {
      const std::string wrong = one.run();
      if (wrong.empty()) continue;
      if (failures++ == 0) std::snprintf(message, bytes, "%s: %s", one.name.c_str(), wrong.c_str());
    }
  }
  return failures;
}

#ifndef EMULATOR_LIBRARY
int main(int count, char** values) {
  char message[1024] = "";
  const uint64_t seeds = count > 1 ? std::strtoull(values[1], nullptr, 10) : 4;
  const int failures = emulator_self_test(seeds, message, sizeof message);
  std::printf("%d failures%s%s\n", failures, failures != 0 ? ": " : "", message);
  return failures != 0;
}
#endif
