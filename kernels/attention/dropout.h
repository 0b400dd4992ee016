// Dropout of attention's weights (Srivastava et al., JMLR 15, 2014): whether a weight is left out is a pure function of where its
// query and its key are in the whole sequence, so that forward, backward, every generation and any number of ranks agree, and nothing is
// kept. The bits of key k for query q of head h are word k % 4 of Philox at (k / 4, q, sequence, stream + h).
#pragma once
#include "philox.h"
#include "arguments.h"

// Bit i: whether query `query` keeps its weight of key `key_of(i)`, for i below `count`; all where none is left out. Rows past the
// last of a shard, which have no weights, are taken for the last. Keys that are neighbours in the whole sequence share their draw.
template <typename KeyOf>
DEVICE uint32_t kept_bits(const Keys& tile, int batch, int head, int rows, int query, int count, KeyOf key_of) {
  if (tile.dropped == nullptr) return ~0u;
  const Dropped& dropped = *tile.dropped;
  const uint32_t position = position_of(dropped.queries, min(query, rows - 1));
  Counter counter{{0, position, dropped.sequence + batch, dropped.stream + head}}, words{};
  uint32_t kept = 0;
  NO_UNROLL
  for (int i = 0; i < count; ++i) {
    const uint32_t key = position_of(dropped.keys, min(key_of(i), tile.rows - 1));
    if (i == 0 || counter.word[0] != key / 4) {
      counter.word[0] = key / 4;
      words = philox(counter, dropped.key);
    }
    kept |= (word_of(words, key % 4) >= dropped.threshold ? 1u : 0u) << i;
  }
  return kept;
}

// What a weight is multiplied by whose bit of `kept` is `index`.
DEVICE float weight_factor(const Keys& tile, uint32_t kept, int index) {
  if (tile.dropped == nullptr) return 1.0f;
  return (kept >> index & 1) != 0 ? tile.dropped->scale : 0.0f;
}
