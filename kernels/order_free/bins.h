// Sums whose bits depend on what is added alone: not on the order, nor on what was added together before. The same arithmetic as
// `crates/ops/src/order_free`, after Demmel and Nguyen, "Parallel reproducible summation", IEEE Trans. Computers 64, 2015.
//
// A number is cut into parts, each a small multiple of a power of two, 2^(13 i) for neighbouring i, and parts of the same i are
// added as integers, a bin for each i. Numbers that are added at once, a row, are cut from the highest bin that any of them
// reaches. A sum keeps the three highest bins that anything has reached. In memory a row of `width` sums is
//
//   [high bins; width] [middle; width] [low; width] [which is highest]
#pragma once
#include "../operators/groups.h"

constexpr int BIN_BITS = 13, BINS = 3, LOWEST_BIN = -9, HIGHEST_BIN = 8;
// Added to the number of a row's highest bin: 0 is a row that nothing was added to.
constexpr int BIN_BIAS = 1 << 20;
// The highest bin of a row that is NaN.
constexpr uint32_t SPOILT = ~0u;
// Sums of a parameter's elements lie in rows of so many, whatever its shape: the last one is filled up.
constexpr int PARAMETER_ROW = 64;

// Integers of a row of `width` sums.
DEVICE constexpr int64_t sums_length(int width) { return static_cast<int64_t>(BINS) * width + 1; }

// The bits of a magnitude: of floats that are not negative bits have the order of numbers, and those of NaN are the largest.
DEVICE uint32_t magnitude_bits(float number) { return bits_as<uint32_t>(number) & 0x7fffffffu; }

// The bin of a number above 0, by its bits: i of the largest 2^(13 i) that is at most as large.
DEVICE int bin_of(uint32_t magnitude) {
  // Ten bins more, so that what is divided is above 0.
  return max((static_cast<int>(magnitude >> 23) - 127 + 10 * BIN_BITS) / BIN_BITS - 10, LOWEST_BIN);
}

// 1.5 * 2^(23 + 13 bin): a number below 2^(22 + 13 bin) that it is added to is rounded to a multiple of 2^(13 bin).
DEVICE float rounding_to(int bin) { return bits_as<float>(static_cast<uint32_t>(127 + 23 + BIN_BITS * bin) << 23 | 1u << 22); }

// What a thread has of a row: the bins of N of its sums. `top`, which is highest, is the same in all threads of the row.
template <int N> struct RowBins {
  uint32_t bins[BINS][N];
  uint32_t top;

  DEVICE void clear() {
    UNROLL
    for (int i = 0; i < BINS * N; ++i) bins[i / N][i % N] = 0;
    top = 0;
  }

  // Adds numbers times 2^(13 shift). `most`: the bits of the largest magnitude of all numbers of the row.
  DEVICE void add(const float (&numbers)[N], uint32_t most, int shift) {
    if (most == 0) return;
    const int own = bin_of(most);
    // What is infinite or no number is of a bin above the highest, too.
    if (own > HIGHEST_BIN) {
      top = SPOILT;
      return;
    }
    const uint32_t skipped = raise(static_cast<uint32_t>(own + shift + BIN_BIAS));
    if (skipped >= BINS) return;
    float left[N];
    UNROLL
    for (int i = 0; i < N; ++i) left[i] = numbers[i];
    UNROLL
    for (int bin = 0; bin < BINS; ++bin) {
      if (bin < static_cast<int>(skipped)) continue;
      const float round = rounding_to(own - (bin - static_cast<int>(skipped)));
      UNROLL
      for (int i = 0; i < N; ++i) {
        const float rounded = left[i] + round;
        bins[bin][i] += bits_as<uint32_t>(rounded) - bits_as<uint32_t>(round);
        left[i] -= rounded - round;
      }
    }
  }

  // Adds the bins of another row, of which `from_top` is highest.
  DEVICE void join(const uint32_t (&from)[BINS][N], uint32_t from_top) {
    if (from_top == SPOILT) top = SPOILT;
    if (from_top == 0 || from_top == SPOILT) return;
    const uint32_t skipped = raise(from_top);
    UNROLL
    for (int bin = 0; bin < BINS; ++bin) {
      UNROLL
      for (int source = 0; source <= bin; ++source) {
        if (skipped != static_cast<uint32_t>(bin - source)) continue;
        UNROLL
        for (int i = 0; i < N; ++i) bins[bin][i] += from[source][i];
      }
    }
  }

  // Makes room for a highest bin: how many the row's own highest lies above it. From BINS on there is nothing to add: the row is
  // spoilt, or the number too small.
  DEVICE uint32_t raise(uint32_t bin) {
    if (top < bin) {
      if (top > 0) lower(bin - top);
      top = bin;
    }
    return top - bin;
  }

  // Bins become those of a higher one: so many places down, and the lowest drop out.
  DEVICE void lower(uint32_t by) {
    UNROLL
    for (int i = 0; i < N; ++i) {
      bins[2][i] = by == 1 ? bins[1][i] : by == 2 ? bins[0][i] : 0;
      bins[1][i] = by == 1 ? bins[0][i] : 0;
      bins[0][i] = 0;
    }
  }
};

// What a row's sums are in units of, as a power of two; not of a row that is spoilt.
DEVICE int unit_of(uint32_t top) { return BIN_BITS * (static_cast<int>(top) - BIN_BIAS - (BINS - 1)); }

// 2^exponent, of -700 .. 700: what is smaller of a sum is nothing.
DEVICE double power_of_two(int exponent) {
  return bits_as<double>(static_cast<uint64_t>(1023 + max(min(exponent, 700), -700)) << 52);
}

// A sum in the units of its row: exactly what was added up, as far as bins go.
DEVICE double whole_sum(uint32_t first, uint32_t second, uint32_t third) {
  const auto wide = [](uint32_t bin) { return static_cast<int64_t>(static_cast<int>(bin)); };
  return static_cast<double>((wide(first) * (1ll << 2 * BIN_BITS)) + wide(second) * (1ll << BIN_BITS) + wide(third));
}

DEVICE float not_a_number() { return bits_as<float>(0x7fc00000u); }
