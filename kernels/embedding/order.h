// Token places in the order of their tokens, for the embedding's gradient: places of one token become neighbours and keep their
// order, so that sums over them are the same every time.
//
// A stable counting sort by digits of 9 bits, lowest first: two passes for tables of fewer than 2^18 rows. Each pass counts digits
// by tile, makes starting places of the counts, and moves. One thread owns one digit and goes through the tile in order: no two
// threads ever meet, so nothing needs an atomic or a rank. On the device because tokens are there: the host need not wait.
// Tokens that are not of the table count as the one behind its last, whatever their own digits are: they come last, and not between
// places of a token that is.
#pragma once
#include "../vocabulary/reductions.h"

constexpr int ORDER_DIGITS = 512;
constexpr int ORDER_TILE = 4096;
constexpr int ORDER_SCAN_THREADS = 1024;

// One pass. Grid: `ceiling_divide(count, ORDER_TILE)` blocks count and move, one block scans between. Shared memory: 16 KiB;
// of the scan 4 KiB.
struct OrderArguments {
  const uint32_t* tokens;    // [count]: the tokens, or those of the last pass
  const uint32_t* places;    // [count]: of the last pass, or null in the first: 0, 1, 2, ...
  uint32_t* sorted_tokens;   // [count]
  uint32_t* sorted_places;   // [count]
  uint32_t* counts;          // [ORDER_DIGITS, tiles]
  int count;
  int tiles;
  int shift;                 // 9 * pass
  uint32_t rows;             // of the table
};

// The digits of the block's tile, one in each 32 bits of shared memory; ORDER_DIGITS, which no thread owns, past the end.
DEVICE void order_load(const OrderArguments& arguments, int first, uint32_t digits) {
  for (int i = static_cast<int>(threadIdx.x); i < ORDER_TILE; i += ORDER_DIGITS) {
    uint32_t digit = ORDER_DIGITS;
    if (first + i < arguments.count) {
      digit = min(load_global(arguments.tokens + first + i), arguments.rows) >> arguments.shift & (ORDER_DIGITS - 1);
    }
    store_shared(digits + 4u * static_cast<uint32_t>(i), digit);
  }
  __syncthreads();
}

// Calls `found(i)` for the elements of the tile that have this thread's digit, in order.
template <typename Found> DEVICE void order_find(uint32_t digits, Found found) {
  const uint32_t mine = threadIdx.x;
  for (int i = 0; i < ORDER_TILE; i += 4) {
    const auto group = load_shared<Words<4>>(digits + 4u * static_cast<uint32_t>(i));
    UNROLL
    for (int j = 0; j < 4; j++) {
      if (group.word[j] == mine) found(i + j);
    }
  }
}

DEVICE void order_count(const OrderArguments& arguments) {
  SHARED_MEMORY(shared);
  const int tile = static_cast<int>(blockIdx.x);
  const uint32_t digits = shared_address(shared);
  order_load(arguments, tile * ORDER_TILE, digits);
  uint32_t count = 0;
  order_find(digits, [&](int) { count++; });
  store_global(arguments.counts + threadIdx.x * static_cast<uint32_t>(arguments.tiles) + tile, count);
}

// The counts, by digit and within it by tile, become the number of elements before each.
DEVICE void order_scan(const OrderArguments& arguments) {
  SHARED_MEMORY(shared);
  const uint32_t sums = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x), all = ORDER_DIGITS * arguments.tiles;
  const int share = ceiling_divide(all, ORDER_SCAN_THREADS);
  const int first = min(all, thread * share), end = min(all, first + share);
  uint32_t sum = 0;
  for (int i = first; i < end; i++) sum += load(arguments.counts + i);
  const uint32_t own = sum, at = sums + 4u * static_cast<uint32_t>(thread);
  store_shared(at, sum);
  for (int distance = 1; distance < ORDER_SCAN_THREADS; distance *= 2) {
    __syncthreads();
    if (thread >= distance) sum += load_shared<uint32_t>(at - 4u * static_cast<uint32_t>(distance));
    __syncthreads();
    store_shared(at, sum);
  }
  sum -= own;
  for (int i = first; i < end; i++) {
    const uint32_t count = load(arguments.counts + i);
    store_global(arguments.counts + i, sum);
    sum += count;
  }
}

DEVICE void order_move(const OrderArguments& arguments) {
  SHARED_MEMORY(shared);
  const int tile = static_cast<int>(blockIdx.x), first = tile * ORDER_TILE;
  const uint32_t digits = shared_address(shared);
  order_load(arguments, first, digits);
  uint32_t to = load_global(arguments.counts + threadIdx.x * static_cast<uint32_t>(arguments.tiles) + tile);
  order_find(digits, [&](int i) {
    const int from = first + i;
    const uint32_t place = arguments.places ? load_global(arguments.places + from) : static_cast<uint32_t>(from);
    store_global(arguments.sorted_tokens + to, load_global(arguments.tokens + from));
    store_global(arguments.sorted_places + to, place);
    to++;
  });
}
