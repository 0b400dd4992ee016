// Which block of keys a block of threads of backward keeps (sm_90a), and what becomes of one that nothing sees.
#pragma once
#include "sm90_pipeline.h"

namespace sm90 {

// The block of keys that a block of threads keeps: of the grid's one dimension, most blocks of a tile x heads of keys x batch rows
// x tiles.
struct KeyBlock {
  const Keys& tile;
  int first, head, batch;
  const Reach* reach;  // null where the tile has no such block
  const Spans* spans;  // of its rows

  // The one of this number in the launch's order.
  DEVICE KeyBlock(const BackwardArguments& arguments, int keys, int number) : KeyBlock(arguments, keys, item(arguments, number)) {}

  // Of dk and dv: where this block's are.
  DEVICE int64_t first_sum(const BackwardArguments& arguments) const {
    const int64_t head_of_all = static_cast<int64_t>(batch) * (arguments.heads / arguments.group) + head;
    return (head_of_all * tile.rows + first) * arguments.dim;
  }

  // The blocks of keys that visit blocks of `queries` queries.
  DEVICE const Spans* visitors(const BackwardArguments& arguments, int queries) const {
    const int visibility = tile.visibilities == 1 ? 0 : batch;
    return arguments.visitors + visibility * ceiling_divide(arguments.rows, queries);
  }

 private:
  static DEVICE Item item(const BackwardArguments& arguments, int number) {
    const int heads = arguments.heads / arguments.group, outer = arguments.batch * arguments.tiles.count;
    const int blocks = static_cast<int>(gridDim.x) / (heads * outer);
    return Items{arguments.order, blocks, heads, outer, arguments.tiles.count}.at(number);
  }

  DEVICE KeyBlock(const BackwardArguments& arguments, int keys, const Item& item)
      : tile(arguments.tiles[item.batch % arguments.tiles.count]), first(item.block * keys), head(item.head),
        batch(item.batch / arguments.tiles.count) {
    const int visibility = tile.visibilities == 1 ? 0 : batch, blocks = ceiling_divide(tile.rows, keys);
    reach = first < tile.rows ? tile.key_blocks + visibility * blocks + item.block : nullptr;
    spans = tile.keys + visibility * tile.rows + first;
  }
};

// Keys that no query sees: what holds nothing yet becomes zero.
template <class Kernel> DEVICE void leave_unseen(const BackwardArguments& arguments, const KeyBlock& block) {
  if (block.tile.fresh == 0) return;
  const int64_t start = block.first_sum(arguments);
  const int count = min(Kernel::keys, block.tile.rows - block.first) * arguments.dim / 4;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += Kernel::threads) {
    store_global(reinterpret_cast<Float4*>(block.tile.dk + start) + i, Float4{0.0f, 0.0f, 0.0f, 0.0f});
    store_global(reinterpret_cast<Float4*>(block.tile.dv + start) + i, Float4{0.0f, 0.0f, 0.0f, 0.0f});
  }
}

}  // namespace sm90
