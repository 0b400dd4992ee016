// Attention whose bits do not depend on who holds which block of positions: what its kernels share. As
// `crates/ops/src/attention/fused/strict`: what rows that stay and a strict block of rows that visit come to is computed by
// itself, in the same order wherever it is, and added to order-free sums (`../order_free/bins.h`), whose bins stay in registers.
//
// Threads stand as in `simt_tiles.h`, and multiply f32 whatever the inputs are. A strict block is gone through in pieces from its own
// first row on. Heads may be shorter than the kernel is made for; nothing past `dim` is read.
#pragma once
#include "../order_free/bins.h"
#include "simt_tiles.h"

// Copies rows 0 .. count of `source` as f32, and zeros up to row `filled`.
template <typename T, int Width>
DEVICE void fill_strict(uint32_t tile, const T* source, int64_t stride, int count, int filled, int dim) {
  const int chunks = ceiling_divide(dim, 4);
  const bool grouped = dim % 4 == 0 && stride % 4 == 0 && (reinterpret_cast<uint64_t>(source) & (4 * sizeof(T) - 1)) == 0;
  for (int i = threadIdx.x; i < filled * chunks; i += SIMT_THREADS) {
    const int row = i / chunks, chunk = i % chunks;
    float values[4] = {};
    const T* from = source + row * stride + 4 * chunk;
    if (row < count && grouped) {
      read<T, 4>(from, values);
    } else if (row < count) {
      for (int j = 0; j < min(4, dim - 4 * chunk); ++j) values[j] = to_float(load_global(from + j));
    }
    store_shared(chunk_address<Width>(tile, row, chunk), Float4{values[0], values[1], values[2], values[3]});
  }
}

// Rows of a tile that are filled for so many visitors: products take 16 at a time.
DEVICE int filled_rows(int visitors) { return ceiling_divide(visitors, SIMT_SIDE) * SIMT_SIDE; }

// products = rows that stay times the first `visitors` rows that visit, 0 of others; over `chunks` of four columns: the sum of
// sums over 16 columns each.
template <int Width, int Down, int Across>
DEVICE void multiply_strict(float (&products)[Down][Across], uint32_t stays, uint32_t visits, int chunks, int visitors) {
  UNROLL
  for (int i = 0; i < Down * Across; ++i) products[i / Across][i % Across] = 0.0f;
  NO_UNROLL
  for (int first = 0; first < chunks; first += 4) {
    float piece[Down][Across] = {};
    NO_UNROLL
    for (int chunk = first; chunk < min(first + 4, chunks); ++chunk) {
      Float4 left[Down];
      UNROLL
      for (int i = 0; i < Down; ++i) left[i] = load_shared<Float4>(chunk_address<Width>(stays, simt_row() * Down + i, chunk));
      UNROLL
      for (int j = 0; j < Across; ++j) {
        if (SIMT_SIDE * j >= visitors) continue;
        const Float4 right = load_shared<Float4>(chunk_address<Width>(visits, simt_column() + SIMT_SIDE * j, chunk));
        UNROLL
        for (int i = 0; i < Down; ++i) {
          float& sum = piece[i][j];
          sum = multiply_add(left[i].x, right.x, sum);
          sum = multiply_add(left[i].y, right.y, sum);
          sum = multiply_add(left[i].z, right.z, sum);
          sum = multiply_add(left[i].w, right.w, sum);
        }
      }
    }
    UNROLL
    for (int i = 0; i < Down * Across; ++i) products[i / Across][i % Across] += piece[i / Across][i % Across];
  }
}

// What rows that stay and a strict block come to: a thread has chunks simt_column(), + 16, ... of its rows.
template <int Down, int Chunks> struct StrictPartial {
  Float4 rows[Down][Chunks];

  DEVICE void clear() {
    UNROLL
    for (int i = 0; i < Down * Chunks; ++i) rows[i / Chunks][i % Chunks] = {0.0f, 0.0f, 0.0f, 0.0f};
  }

  // rows += weights times the first `visitors` rows that visit, one after the other.
  template <int Width, int Visit> DEVICE void add(uint32_t weights, uint32_t visits, int chunks, int visitors) {
    NO_UNROLL
    for (int four = 0; four < ceiling_divide(visitors, 4); ++four) {
      Float4 factors[Down];
      UNROLL
      for (int i = 0; i < Down; ++i) factors[i] = load_shared<Float4>(chunk_address<Visit>(weights, simt_row() * Down + i, four));
      UNROLL
      for (int c = 0; c < Chunks; ++c) {
        const int chunk = simt_column() + SIMT_SIDE * c;
        if (chunk >= chunks) continue;
        UNROLL
        for (int visitor = 0; visitor < 4; ++visitor) {
          const Float4 value = load_shared<Float4>(chunk_address<Width>(visits, 4 * four + visitor, chunk));
          UNROLL
          for (int i = 0; i < Down; ++i) {
            const Float4& f = factors[i];
            add_scaled(rows[i][c], visitor == 0 ? f.x : visitor == 1 ? f.y : visitor == 2 ? f.z : f.w, value);
          }
        }
      }
    }
  }
};

// The largest over the 16 threads that own the same rows.
DEVICE uint32_t row_most(uint32_t value) {
  UNROLL
  for (int mask = SIMT_SIDE / 2; mask > 0; mask /= 2) value = max(value, shuffle_xor(value, mask));
  return value;
}

// Order-free sums of a thread's rows.
template <int Down, int Chunks> struct StrictSums {
  static constexpr int N = 4 * Chunks;
  RowBins<N> rows[Down];

  // Adds what a block came to, times `factor` and 2^(13 shift).
  DEVICE void add(const StrictPartial<Down, Chunks>& partial, float factor, const int (&shifts)[Down]) {
    UNROLL
    for (int i = 0; i < Down; ++i) {
      float numbers[N];
      uint32_t most = 0;
      UNROLL
      for (int c = 0; c < Chunks; ++c) {
        const Float4& four = partial.rows[i][c];
        numbers[4 * c] = multiply(four.x, factor), numbers[4 * c + 1] = multiply(four.y, factor);
        numbers[4 * c + 2] = multiply(four.z, factor), numbers[4 * c + 3] = multiply(four.w, factor);
      }
      UNROLL
      for (int j = 0; j < N; ++j) most = max(most, magnitude_bits(numbers[j]));
      rows[i].add(numbers, row_most(most), shifts[i]);
    }
  }

  // From rows of a table, of `left` that there are; nothing where it is null.
  DEVICE void load_from(const uint32_t* table, int left, int dim) {
    UNROLL
    for (int i = 0; i < Down; ++i) {
      rows[i].clear();
      const int row = simt_row() * Down + i;
      if (table == nullptr || row >= left) continue;
      const uint32_t* from = table + row * sums_length(dim);
      UNROLL
      for (int j = 0; j < BINS * N; ++j) {
        const int column = column_of(j % N);
        if (column < dim) rows[i].bins[j / N][j % N] = load(from + j / N * dim + column);
      }
      rows[i].top = load(from + BINS * dim);
    }
    // All have read which bin is highest before one writes it.
    __syncwarp();
  }

  DEVICE void store_to(uint32_t* table, int left, int dim) const {
    UNROLL
    for (int i = 0; i < Down; ++i) {
      // Addresses of where sums came from would stay in registers all the while.
      const int row = afresh(simt_row() * Down + i);
      if (row >= left) continue;
      uint32_t* to = table + row * sums_length(dim);
      UNROLL
      for (int j = 0; j < BINS * N; ++j) {
        const int column = column_of(j % N);
        if (column < dim) store_global(to + j / N * dim + column, rows[i].bins[j / N][j % N]);
      }
      if (simt_column() == 0) store_global(to + BINS * dim, rows[i].top);
    }
  }

 private:
  static DEVICE int column_of(int index) { return 4 * (simt_column() + SIMT_SIDE * (index / 4)) + index % 4; }
};

// Calls `visit(first, count)` for the pieces of at most `Rows` rows of those strict blocks of `starts` that any row of `reach`
// sees something of, and `end()` behind each such block. `starts`: how many blocks, where each begins, where the last ends.
template <int Rows, typename Visit, typename End>
DEVICE void for_strict_blocks(const int* starts, const Reach& reach, Visit visit, End end) {
  const int count = load_global(starts);
  for (int block = 1; block <= count; ++block) {
    const int start = load_global(starts + block), stop = load_global(starts + block + 1);
    if (coverage(reach, start, stop) == Coverage::Empty) continue;
    for (int first = start; first < stop; first += Rows) {
      const int last = min(first + Rows, stop);
      if (coverage(reach, first, last) != Coverage::Empty) visit(first, last - first);
    }
    end();
  }
}
