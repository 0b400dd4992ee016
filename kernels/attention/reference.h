// The ladder's first step: attention as it is written down, one warp per row, any head length, any type, one key after the other.
// Everything is f32 and nothing but the lanes' parts of a sum is parallel. What the faster generations are held to.
#pragma once
#include "../vocabulary/reductions.h"
#include "dropout.h"
#include "rows.h"

// The product of two rows, in every lane.
template <typename T> DEVICE float dot(const T* left, const T* right, int dim) {
  float sum = 0.0f;
  for (int d = lane_index(); d < dim; d += 32) {
    sum = multiply_add(to_float(load_global(left + d)), to_float(load_global(right + d)), sum);
  }
  return warp_sum(sum);
}

// to += factor * row
template <typename T> DEVICE void add_row(float* to, float factor, const T* row, int dim) {
  for (int d = lane_index(); d < dim; d += 32) to[d] = multiply_add(factor, to_float(load_global(row + d)), to[d]);
}

// Which row this warp owns.
DEVICE int own_row() { return static_cast<int>(blockIdx.x * (blockDim.x / 32)) + warp_index(); }

// Calls `visit` with every index that is seen, in order.
template <typename Visit> DEVICE void for_each_seen(const Spans& spans, Visit visit) {
  for (int which = 0; which < 2; ++which) {
    for (int index = spans.start[which]; index < spans.end[which]; ++index) visit(index);
  }
}

// What dropout makes of the weight of one pair.
DEVICE float factor_of(const Keys& tile, int batch, int head, int rows, int query, int key) {
  return weight_factor(tile, kept_bits(tile, batch, head, rows, query, 1, [&](int) { return key; }), 0);
}

// Folds all tiles into the state: each key in turn raises the maximum, or adds its weight below it.
template <typename T, int...> DEVICE void forward_reference(const ForwardArguments& arguments) {
  const int row = own_row(), head = blockIdx.y, batch = blockIdx.z, dim = arguments.dim;
  if (row >= arguments.rows) return;
  const T* q = row_start<T>(arguments.q, arguments.q_strides, batch, head, row);
  const int64_t state = (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.rows + row;
  float* out = arguments.out + state * dim;
  float maximum = arguments.maximum[state], sum = arguments.sum[state];
  for (int i = 0; i < arguments.tiles.count; ++i) {
    const Keys& tile = arguments.tiles[i];
    for_each_seen(spans_of(tile.queries, tile.visibilities, arguments.rows, batch, row), [&](int key) {
      const float score = dot(q, row_start<T>(tile.k, tile.strides, batch, head / arguments.group, key), dim);
      if (score > maximum) {
        const float shrink = exp2_fast((maximum - score) * arguments.scale_log2);
        for (int d = lane_index(); d < dim; d += 32) out[d] *= shrink;
        sum *= shrink;
        maximum = score;
      }
      const float weight = exp2_fast((score - maximum) * arguments.scale_log2);
      sum += weight;
      const float kept = weight * factor_of(tile, batch, head, arguments.rows, row, key);
      add_row(out, kept, row_start<T>(tile.v, tile.strides, batch, head / arguments.group, key), dim);
    });
  }
  if (lane_index() != 0) return;
  arguments.maximum[state] = maximum;
  arguments.sum[state] = sum;
}

// What one query and one key make of each other in backward.
struct Pair {
  float weight, slope;
};
template <typename T>
DEVICE Pair pair_of(const BackwardArguments& arguments, const T* q, const T* gradient, const T* k, const T* v,
                    int64_t padded_row, float factor) {
  const float score = dot(q, k, arguments.dim), product = dot(gradient, v, arguments.dim);
  const float weight = exp2_fast(multiply_add(score, arguments.scale_log2, -arguments.lse_log2[padded_row]));
  return {weight * factor, weight * (product * factor - arguments.delta[padded_row])};
}

// dk and dv of one key: from all queries of its group's heads that see it.
template <typename T, int...> DEVICE void backward_keys_reference(const BackwardArguments& arguments) {
  const Keys& tile = arguments.tiles[blockIdx.z % arguments.tiles.count];
  const int row = own_row(), kv_head = blockIdx.y, batch = blockIdx.z / arguments.tiles.count, dim = arguments.dim;
  if (row >= tile.rows) return;
  const T* k = row_start<T>(tile.k, tile.strides, batch, kv_head, row);
  const T* v = row_start<T>(tile.v, tile.strides, batch, kv_head, row);
  const int64_t kv_heads = arguments.heads / arguments.group;
  const int64_t own = ((batch * kv_heads + kv_head) * tile.rows + row) * dim;
  const Spans seen_by = spans_of(tile.keys, tile.visibilities, tile.rows, batch, row);
  for (int head = kv_head * arguments.group; head < (kv_head + 1) * arguments.group; ++head) {
    const int64_t padded = (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.padded;
    for_each_seen(seen_by, [&](int query) {
      const T* q = row_start<T>(arguments.q, arguments.q_strides, batch, head, query);
      const T* gradient = row_start<T>(arguments.gradient, arguments.gradient_strides, batch, head, query);
      const float factor = factor_of(tile, batch, head, arguments.rows, query, row);
      const Pair pair = pair_of(arguments, q, gradient, k, v, padded + query, factor);
      add_row(tile.dv + own, pair.weight, gradient, dim);
      add_row(tile.dk + own, pair.slope * arguments.scale, q, dim);
    });
  }
}

// dq of one query, before the scale: from all keys that it sees. In rows.
template <typename T, int...> DEVICE void backward_queries_reference(const BackwardArguments& arguments) {
  const int row = own_row(), head = blockIdx.y, batch = blockIdx.z, dim = arguments.dim;
  if (row >= arguments.rows) return;
  const T* q = row_start<T>(arguments.q, arguments.q_strides, batch, head, row);
  const T* gradient = row_start<T>(arguments.gradient, arguments.gradient_strides, batch, head, row);
  const int64_t own = (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.padded + row;
  for (int i = 0; i < arguments.tiles.count; ++i) {
    const Keys& tile = arguments.tiles[i];
    for_each_seen(spans_of(tile.queries, tile.visibilities, arguments.rows, batch, row), [&](int key) {
      const T* k = row_start<T>(tile.k, tile.strides, batch, head / arguments.group, key);
      const T* v = row_start<T>(tile.v, tile.strides, batch, head / arguments.group, key);
      const float factor = factor_of(tile, batch, head, arguments.rows, row, key);
      add_row(arguments.dq + own * dim, pair_of(arguments, q, gradient, k, v, own, factor).slope, k, dim);
    });
  }
}
