// All attention kernels, one to a line: read by `entries.h`, which makes them, and line by line by the build of `crates/ops`,
// which launches them. Kernel `attention_PASS_RUNG_TYPE_DIM`:
//
//   ATTENTION(pass, rung, type, dim, query block, key block, threads, blocks per multiprocessor, bytes of shared memory)
//
// `any` dim is told by the arguments. Blocks are rows; `query_blocks` and `key_blocks` of `Keys` go by them. Grids:
//
//   forward, backward_queries   (blocks of queries, Hq, B)
//   backward, backward_keys     (most blocks of keys of a tile, Hkv, B * tiles), tile = z % tiles: no two tiles share dk and dv
//   prepare                     blocks of the B * Hq * padded rows
//   finish, finish_queries      blocks of the B * Hq * Sq rows; of `fragments`: of the B * Hq * padded rows
//
// `backward` adds dk, dv and dq, in an order no run repeats; `backward_keys` and `backward_queries` do the same in a fixed order.
// dq leaves sm80 in fragments and the other rungs in rows; `finish_queries` of that name takes it.

ATTENTION(prepare, rows, f32, any, 8, 0, 256, 4, 0)
ATTENTION(prepare, rows, bf16, any, 8, 0, 256, 4, 0)
ATTENTION(prepare, rows, f16, any, 8, 0, 256, 4, 0)
ATTENTION(finish, rows, f32, any, 8, 0, 256, 4, 0)
ATTENTION(finish, rows, bf16, any, 8, 0, 256, 4, 0)
ATTENTION(finish, rows, f16, any, 8, 0, 256, 4, 0)
ATTENTION(finish_queries, rows, f32, any, 8, 0, 256, 4, 0)
ATTENTION(finish_queries, fragments, f32, any, 128, 0, 256, 4, 0)

ATTENTION(forward, reference, f32, any, 8, 8, 256, 4, 0)
ATTENTION(forward, reference, bf16, any, 8, 8, 256, 4, 0)
ATTENTION(forward, reference, f16, any, 8, 8, 256, 4, 0)
ATTENTION(backward_keys, reference, f32, any, 8, 8, 256, 4, 0)
ATTENTION(backward_keys, reference, bf16, any, 8, 8, 256, 4, 0)
ATTENTION(backward_keys, reference, f16, any, 8, 8, 256, 4, 0)
ATTENTION(backward_queries, reference, f32, any, 8, 8, 256, 4, 0)
ATTENTION(backward_queries, reference, bf16, any, 8, 8, 256, 4, 0)
ATTENTION(backward_queries, reference, f16, any, 8, 8, 256, 4, 0)

ATTENTION(forward, sm80, bf16, d64, 128, 64, 128, 2, 40960)
ATTENTION(forward, sm80, bf16, d80, 128, 64, 128, 2, 81920)
ATTENTION(forward, sm80, bf16, d96, 128, 64, 128, 2, 81920)
ATTENTION(forward, sm80, bf16, d128, 128, 64, 128, 2, 81920)
ATTENTION(forward, sm80, bf16, d256, 128, 64, 256, 1, 163840)
ATTENTION(forward, sm80, f16, d64, 128, 64, 128, 2, 40960)
ATTENTION(forward, sm80, f16, d80, 128, 64, 128, 2, 81920)
ATTENTION(forward, sm80, f16, d96, 128, 64, 128, 2, 81920)
ATTENTION(forward, sm80, f16, d128, 128, 64, 128, 2, 81920)
ATTENTION(forward, sm80, f16, d256, 128, 64, 256, 1, 163840)

ATTENTION(backward, sm80, bf16, d64, 64, 128, 256, 1, 99328)
ATTENTION(backward, sm80, bf16, d80, 64, 128, 256, 1, 164864)
ATTENTION(backward, sm80, bf16, d96, 64, 128, 256, 1, 164864)
ATTENTION(backward, sm80, bf16, d128, 64, 128, 256, 1, 164864)
ATTENTION(backward, sm80, bf16, d256, 64, 64, 256, 1, 147968)
ATTENTION(backward, sm80, f16, d64, 64, 128, 256, 1, 99328)
ATTENTION(backward, sm80, f16, d80, 64, 128, 256, 1, 164864)
ATTENTION(backward, sm80, f16, d96, 64, 128, 256, 1, 164864)
ATTENTION(backward, sm80, f16, d128, 64, 128, 256, 1, 164864)
ATTENTION(backward, sm80, f16, d256, 64, 64, 256, 1, 147968)

ATTENTION(backward_keys, sm80, bf16, d64, 64, 128, 256, 1, 99328)
ATTENTION(backward_keys, sm80, bf16, d80, 64, 128, 256, 1, 164864)
ATTENTION(backward_keys, sm80, bf16, d96, 64, 128, 256, 1, 164864)
ATTENTION(backward_keys, sm80, bf16, d128, 64, 128, 256, 1, 164864)
ATTENTION(backward_keys, sm80, bf16, d256, 64, 64, 256, 1, 147968)
ATTENTION(backward_keys, sm80, f16, d64, 64, 128, 256, 1, 99328)
ATTENTION(backward_keys, sm80, f16, d80, 64, 128, 256, 1, 164864)
ATTENTION(backward_keys, sm80, f16, d96, 64, 128, 256, 1, 164864)
ATTENTION(backward_keys, sm80, f16, d128, 64, 128, 256, 1, 164864)
ATTENTION(backward_keys, sm80, f16, d256, 64, 64, 256, 1, 147968)

ATTENTION(backward_queries, sm80, bf16, d64, 128, 64, 256, 1, 65536)
ATTENTION(backward_queries, sm80, bf16, d80, 128, 64, 256, 1, 131072)
ATTENTION(backward_queries, sm80, bf16, d96, 128, 64, 256, 1, 131072)
ATTENTION(backward_queries, sm80, bf16, d128, 128, 64, 256, 1, 131072)
ATTENTION(backward_queries, sm80, bf16, d256, 64, 32, 256, 1, 131072)
ATTENTION(backward_queries, sm80, f16, d64, 128, 64, 256, 1, 65536)
ATTENTION(backward_queries, sm80, f16, d80, 128, 64, 256, 1, 131072)
ATTENTION(backward_queries, sm80, f16, d96, 128, 64, 256, 1, 131072)
ATTENTION(backward_queries, sm80, f16, d128, 128, 64, 256, 1, 131072)
ATTENTION(backward_queries, sm80, f16, d256, 64, 32, 256, 1, 131072)
