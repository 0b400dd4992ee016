// What the emulator's own tests stand on: launches by name, numbers that 16 bits hold, and a list of cases.
#pragma once
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "../../vocabulary/matrix.h"
#include "../../vocabulary/panels.h"
#include "../../vocabulary/reductions.h"
#include "../../vocabulary/warpgroup.h"
#include "../interface.h"

namespace tests {

// A case says what went wrong; empty where nothing did.
struct Case {
  std::string name;
  std::function<std::string()> run;
};

template <typename Arguments>
std::string launch(const char* kernel, const Arguments& arguments, uint32_t shared_bytes, uint64_t seed, uint32_t blocks = 1,
                   uint32_t workers = 1) {
  const uint32_t grid[3] = {blocks, 1, 1};
  char text[1024] = "";
  const int wrong = emulator_launch(kernel, grid, shared_bytes, &arguments, sizeof arguments, seed, workers, text, sizeof text);
  return wrong != 0 ? text : "";
}

// Small numbers with few bits, so that sums of products of either format are exact.
inline float sample(size_t i) { return static_cast<float>(static_cast<int>(i * 2654435761u >> 7 & 15) - 7) / 4.0f; }

template <typename T> std::vector<T> samples(size_t count, size_t salt) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = from_float<T>(sample(i + salt));
  return values;
}

inline std::string differs(const char* what, size_t i, double found, double wanted) {
  return std::string(what) + " " + std::to_string(i) + ": " + std::to_string(found) + ", not " + std::to_string(wanted);
}

// Exact agreement, NaN with nothing.
inline std::string compare(const char* what, const std::vector<float>& found, const std::vector<float>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!(found[i] == wanted[i])) return differs(what, i, found[i], wanted[i]);
  }
  return "";
}

// c[m][n] = sum over k of a(m, k) b(k, n).
template <typename A, typename B> std::vector<float> product(size_t rows, size_t columns, size_t depth, A a, B b) {
  std::vector<float> c(rows * columns);
  for (size_t m = 0; m < rows; ++m) {
    for (size_t n = 0; n < columns; ++n) {
      double sum = 0;
      for (size_t k = 0; k < depth; ++k) sum += static_cast<double>(a(m, k)) * b(k, n);
      c[m * columns + n] = static_cast<float>(sum);
    }
  }
  return c;
}

}  // namespace tests
