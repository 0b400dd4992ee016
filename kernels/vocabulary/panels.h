// Tiles of 16-bit numbers in shared memory: panels of 64 columns, one 128-byte row after the other, the 16-byte chunks of row r
// at index XOR (r & 7). So eight rows of one chunk column lie in eight different bank groups, and the tile is what the tensor
// memory unit writes and wgmma reads (PTX ISA, "128B swizzle": address bits 4-6 XOR bits 7-9, the tile at a multiple of 1024).
#pragma once
#include "gpu.h"

constexpr int PANEL_COLUMNS = 64;
constexpr int PANEL_ROW_BYTES = 128;

// From the tile's start to element (row, column) of a tile of `rows` rows, in bytes.
DEVICE constexpr uint32_t panel_address(int rows, int row, int column) {
  return static_cast<uint32_t>((column / PANEL_COLUMNS * rows + row) * PANEL_ROW_BYTES +
                               (((column / 8 % 8) ^ (row & 7)) << 4) + column % 8 * 2);
}

// The bytes of a tile of `rows` rows whose columns fill whole panels.
DEVICE constexpr int panel_bytes(int rows, int columns) {
  return ceiling_divide(columns, PANEL_COLUMNS) * rows * PANEL_ROW_BYTES;
}
