// What attention kernels are told, the same bytes in Rust (`crates/ops/src/gpu/arguments.rs`). What is said of sm90 holds of sm100.
//
// One launch folds all tiles of a hop. Shapes: q [B, Hq, Sq, D], k and v [B, Hkv, Sk, D]; query head h uses key/value head
// h / group. The last dimension is contiguous, the others have strides, in elements. D may be less than what a kernel of tensor
// cores is made for, a multiple of 8: columns past it are zeros in shared memory, and not stored. No mask is known here: a row sees the keys
// of up to two intervals.
#pragma once
#include "../operators/positions.h"
#include "../vocabulary/gpu.h"

// Who sees whom, for one row: `start .. end` twice, each empty where start >= end.
struct Spans {
  int start[2];
  int end[2];
};

// The spans of a block of rows: what any of them sees lies in `reach`, what all of them see holds `full`; half-open, twice.
// A block of keys outside of both reaches is empty; inside of one of `full`, it needs no mask.
struct Reach {
  int reach_start[2];
  int reach_end[2];
  int full_start[2];
  int full_end[2];
};

// Rows of 16 or 32 bit elements: where row r of head h of batch row b starts is b * batch + h * head + r * row.
struct Strides {
  int64_t batch;
  int64_t head;
  int64_t row;
};

// The weights of a tile that are left out; see `dropout.h`.
struct Dropped {
  const ShortRun* queries;   // where they are in the whole sequence
  const ShortRun* keys;
  uint64_t key;         // of Philox: from seed and step
  uint32_t threshold;   // words below it leave a weight out: probability * 2^32
  float scale;          // 1 / (1 - probability)
  uint32_t stream;      // layer * 2^16 + the number of the tile's first query head
  uint32_t sequence;    // the number of the first batch row
};

// Keys and values of one shard, and what the queries see of them.
struct Keys {
  const void* k;
  const void* v;
  Strides strides;           // of both
  int rows;                  // Sk
  int visibilities;          // 1: all batch rows share one; or B
  const Spans* queries;      // [visibilities, Sq]: keys that a query sees
  const Reach* query_blocks; // [visibilities, ceil(Sq / block)]: the same by blocks of queries of the launched kernel
  const Spans* keys;         // backward: [visibilities, Sk]: queries that a key is seen by
  const Reach* key_blocks;   // backward: [visibilities, ceil(Sk / block)]
  float* dk;                 // backward: f32 [B, Hkv, Sk, D] without gaps, added to; strict: order-free sums [B, Hkv, Sk, 3 D + 1]
  float* dv;
  const Dropped* dropped;    // null: every weight is kept; sm90 keeps all
  int fresh;                 // sm90 backward: 1 where dk and dv hold nothing yet, and are written instead of added to
  const int* key_starts;     // strict: how many strict blocks keys are of, the row where each begins, the row where the last ends
  const int* query_starts;   // strict backward: the same of queries
  TensorMap k_map;           // sm_90a: boxes of the kernel's block of keys; see `tensor_map` in the vocabulary
  TensorMap v_map;
};
// A fence for a map in device memory takes whole lines of 128 bytes (PTX ISA, fence.proxy.tensormap).
static_assert(__builtin_offsetof(Keys, k_map) % 128 == 0 && __builtin_offsetof(Keys, v_map) % 128 == 0, "maps on lines");
static_assert(sizeof(Keys) % 128 == 0, "every tile's maps on lines");

// The tiles of a launch: a few come with its arguments, more of them lie in device memory. sm80, whose registers are taken, reads them
// there alone.
constexpr int FEW_TILES = 4;
struct Tiles {
  Keys few[FEW_TILES];
  const Keys* many;   // null: they are the first of `few`
  int count;

  DEVICE const Keys* begin() const { return many == nullptr ? few : many; }
  DEVICE const Keys* end() const { return begin() + count; }
  DEVICE const Keys& operator[](int tile) const { return begin()[tile]; }
};

// In which order sm90 works on blocks of rows: section after section of heads, in each the longest blocks first. Sections are
// narrow, since the blocks at work then read the same rows; the last one is wide, so that its short blocks fill what is left idle.
// Heads are counted on over batch rows (and tiles).
struct Order {
  const int* blocks;         // [lists, blocks]: numbers of blocks, the longest first
  int lists;                 // 1: all batch rows have the same; or B. (Backward: of every tile, or of every tile of every batch row.)
  int heads;                 // of a section
  int last;                  // of the last section
  int* taken;                // a counter, 0 between launches
};

// Forward: folds tiles into the running state. sm90 starts from nothing where these are the first tiles, and after the last ones
// leaves what `FinishArguments` says instead of a state; other kernels take a state that was filled, and leave one.
struct ForwardArguments {
  TensorMap q_map;           // sm_90a: boxes of the kernel's block of queries
  const void* q;
  Strides q_strides;
  int batch, heads, group, rows, dim;   // B, Hq, Hq / Hkv, Sq, D
  float scale_log2;                // scale * log2(e), above 0
  Tiles tiles;
  float* out;                      // [B, Hq, Sq, D]: unnormalised: sum over keys of exp2(scale_log2 * (score - maximum)) v
  float* maximum;                  // [B, Hq, Sq]: of raw scores q k; -inf where nothing was seen
  float* sum;                      // [B, Hq, Sq]: of exp2(scale_log2 * (score - maximum))
  Order order;                     // sm90: of blocks of queries
  void* result;                    // sm90, after the last tiles: [B, Sq, Hq, D] without gaps, as what follows reads it
  float* lse;                      // likewise: [B, Hq, Sq]
  int first, last;                 // sm90: 1 where these are the first tiles, the last ones
  float scale;
};

// After the last tile: out / sum in the queries' type, and lse = maximum * scale + ln(sum); 0 and -inf where nothing was seen.
struct FinishArguments {
  const float* out;
  const float* maximum;
  const float* sum;
  void* result;     // [B, Hq, Sq, D] without gaps
  float* lse;       // [B, Hq, Sq]
  int64_t rows;     // B * Hq * Sq
  int dim;
  float scale;
};

// Before the first tile of backward: what each query row needs besides q and the gradient of its output.
struct PrepareArguments {
  const void* out;        // [B, Hq, Sq, D] as Finish left it
  const void* gradient;   // of out, the same type
  Strides out_strides;
  Strides gradient_strides;
  const float* lse;       // [B, Hq, Sq]
  float* lse_log2;        // [B, Hq, Sq]: lse * log2(e); 0 where nothing was seen
  float* delta;           // [B, Hq, Sq]: sum of out * gradient
  int batch, heads, rows, dim;
};

// Backward: adds to dq, dk, dv. `dq` is f32 in an order of the kernel's own, zero before the first tile; `FinishQueriesArguments`
// brings it into rows.
struct BackwardArguments {
  TensorMap q_map;          // sm_90a: boxes of the kernel's block of queries
  TensorMap gradient_map;
  const void* q;
  const void* gradient;     // of the output
  Strides q_strides;
  Strides gradient_strides;
  int batch, heads, group, rows, padded, dim;   // padded: Sq rounded up to a multiple of 128
  float scale, scale_log2;
  Tiles tiles;
  const float* lse_log2;    // [B, Hq, padded]: as prepared; +inf past Sq, so that no weight is left there
  const float* delta;       // [B, Hq, padded]: as prepared; 0 past Sq
  float* dq;                // [B, Hq, padded, columns] elements, as many columns as the kernel is made for
  Order order;              // sm90: of blocks of what stays: keys, or of `backward_queries` queries
  const Spans* visitors;    // sm90 in turn, of one tile: [visibilities, ceil(Sq / block)]: numbers of the blocks of keys that visit
                            // a block of queries
  int* turns;               // likewise: [B, Hq, padded / block]: how many of these have added to its dq; 0 between launches
};

// After the last tile of backward: dq by rows, multiplied by the scale.
struct FinishQueriesArguments {
  const float* accumulated;  // [B, Hq, padded, columns] elements in the order of the backward kernel
  float* dq;                 // [B, Hq, Sq, D]
  int batch, heads, rows, padded, dim;
  float scale;
  int columns;               // of the kernel: D, or the next that there is a kernel for
};

// Forward with order-free sums: rows of 3 D + 1 integers of outputs, of 4 of the sums that divide; 0 before the first tile.
struct StrictForwardArguments {
  const void* q;
  Strides q_strides;
  int batch, heads, group, rows, dim;   // as above
  float scale_log2;
  Tiles tiles;
  uint32_t* out;                        // [B, Hq, Sq, 3 D + 1]
  uint32_t* sum;                        // [B, Hq, Sq, 4]
};

// After the last tile: out / sum in the queries' type, and the natural logarithm of the sum; 0 and -inf where nothing was seen.
struct StrictFinishArguments {
  const uint32_t* out;
  const uint32_t* sum;
  void* result;     // [B, Hq, Sq, D] without gaps
  float* lse;       // [B, Hq, Sq]
  int64_t rows;     // B * Hq * Sq
  int dim;
};

// Backward with order-free sums: adds to dq and to dk and dv of the tiles.
struct StrictBackwardArguments {
  const void* q;
  const void* gradient;     // of the output
  Strides q_strides;
  Strides gradient_strides;
  int batch, heads, group, rows, dim;
  float scale, scale_log2;
  Tiles tiles;
  const float* lse_log2;    // [B, Hq, Sq]: as prepared
  const float* delta;       // [B, Hq, Sq]: as prepared
  uint32_t* dq;             // [B, Hq, Sq, 3 D + 1]
};
