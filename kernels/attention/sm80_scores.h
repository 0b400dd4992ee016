// Scores in registers, as the tensor cores leave them: masks, weights and slopes of rows.
//
// A warp holds `Down` fragments of 16 queries and `Across` of 8 keys; a lane has of each fragment two rows (`half`) of two keys.
#pragma once
#include "dropout.h"
#include "rows.h"
#include "sm80_tiles.h"

// One number for each row of a lane's fragments.
template <int Down> struct RowValues {
  float of[Down][2];
};

// Those of 16 * Down rows from shared memory.
template <int Down> DEVICE RowValues<Down> load_rows(uint32_t address) {
  RowValues<Down> values;
  UNROLL
  for (int m = 0; m < Down; ++m) {
    UNROLL
    for (int half = 0; half < 2; ++half) values.of[m][half] = load_shared<float>(address + 4 * (16 * m + fragment_row(half)));
  }
  return values;
}

// Scores of keys that their query does not see become -inf. `rows` queries there are; the scores begin at `query` and `key`.
template <int Down, int Across>
DEVICE void hide_unseen(float (&scores)[Down][Across][4], const Keys& tile, int rows, int batch, int query, int key) {
  UNROLL
  for (int m = 0; m < Down; ++m) {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const Spans spans = spans_of(tile.queries, tile.visibilities, rows, batch, query + 16 * m + fragment_row(half));
      UNROLL
      for (int n = 0; n < Across; ++n) {
        const uint32_t bits = seen_bits(spans, key + n / 4 * 32) >> fragment_column();
        UNROLL
        for (int e = 0; e < 2; ++e) {
          if ((bits >> (n % 4 * 8 + e) & 1) == 0) scores[m][n][2 * half + e] = -infinity();
        }
      }
    }
  }
}

// Multiplies weights, or what slopes are made of, by what dropout makes of them; they begin at `query` and `key`.
template <int Down, int Across>
DEVICE void drop(float (&weights)[Down][Across][4], const Keys& tile, int rows, int batch, int head, int query, int key) {
  static_assert(2 * Across <= 32, "a bit for each weight of a row");
  const auto key_of = [&](int i) { return key + i / 2 * 8 + fragment_column() + i % 2; };
  UNROLL
  for (int m = 0; m < Down; ++m) {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t kept = kept_bits(tile, batch, head, rows, query + 16 * m + fragment_row(half), 2 * Across, key_of);
      UNROLL
      for (int i = 0; i < 2 * Across; ++i) weights[m][i / 2][2 * half + i % 2] *= weight_factor(tile, kept, i);
    }
  }
}

// Backward: weights of scores, exp2(scale_log2 * score - lse_log2).
template <int Down, int Across>
DEVICE void weigh(float (&scores)[Down][Across][4], float scale_log2, const RowValues<Down>& lse_log2) {
  UNROLL
  for (int m = 0; m < Down; ++m) {
    UNROLL
    for (int n = 0; n < Across; ++n) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        scores[m][n][e] = exp2_fast(multiply_add(scores[m][n][e], scale_log2, -lse_log2.of[m][e / 2]));
      }
    }
  }
}

// Backward: slopes of products of gradient and value, weight * (product - delta).
template <int Down, int Across>
DEVICE void slope(float (&products)[Down][Across][4], const float (&weights)[Down][Across][4], const RowValues<Down>& delta) {
  UNROLL
  for (int m = 0; m < Down; ++m) {
    UNROLL
    for (int n = 0; n < Across; ++n) {
      UNROLL
      for (int e = 0; e < 4; ++e) products[m][n][e] = weights[m][n][e] * (products[m][n][e] - delta.of[m][e / 2]);
    }
  }
}

// Gradients of queries lie in global memory as they leave the tensor cores: fragments of 16 rows and 8 columns, element by
// element of all lanes, so that the lanes of a warp reach neighbours: [B, Hq, padded / 16, D / 8, 4, 32].
constexpr int FRAGMENT_ELEMENTS = 128;

// From a fragment of 16 rows that starts at `row` of all, and of 8 columns: this lane's element 0; the others are 32 apart.
template <int D> DEVICE int64_t fragment_offset(int64_t row, int column) {
  return row * D + column / 8 * FRAGMENT_ELEMENTS + lane_index();
}
