// Random bits as a pure function of a counter and a key: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once
#include "../vocabulary/gpu.h"

// The 128-bit counter, and after the rounds the bits.
struct Counter {
  uint32_t word[4];
};

struct Product {
  uint32_t low;
  uint32_t high;
};

DEVICE Product wide_product(uint32_t a, uint32_t b) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  return {static_cast<uint32_t>(product), static_cast<uint32_t>(product >> 32)};
}

// Each round multiplies two words, and mixes the upper halves of the products with the other two and the key, which moves on by
// the golden ratio and sqrt(3) - 1.
DEVICE Counter philox(Counter counter, uint64_t seed) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t(&c)[4] = counter.word;
  UNROLL
  for (int round = 0; round < 10; round++) {
    const Product first = wide_product(c[0], 0xd2511f53u), second = wide_product(c[2], 0xcd9e8d57u);
    c[0] = second.high ^ c[1] ^ key[0];
    c[1] = second.low;
    c[2] = first.high ^ c[3] ^ key[1];
    c[3] = first.low;
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return counter;
}

// Word `index` of the bits, without an array in local memory.
DEVICE uint32_t word_of(const Counter& counter, uint32_t index) {
  const uint32_t first = index % 2 == 0 ? counter.word[0] : counter.word[1];
  return index < 2 ? first : index % 2 == 0 ? counter.word[2] : counter.word[3];
}
