// The kernels of `table.h`.
#pragma once
#include "finish.h"
#include "prepare.h"
#include "reference.h"
#include "sm80_backward.h"
#include "sm80_forward.h"
#include "sm80_queries.h"

// What the table's words mean.
namespace table {
using f32 = float;
using bf16 = Bf16;
using f16 = F16;
constexpr int any = 0, d64 = 64, d80 = 80, d96 = 96, d128 = 128, d256 = 256;

using forward = ForwardArguments;
using prepare = PrepareArguments;
using backward = BackwardArguments;
using backward_keys = BackwardArguments;
using backward_queries = BackwardArguments;
using finish = FinishArguments;
using finish_queries = FinishQueriesArguments;
}  // namespace table

#define ATTENTION(pass, rung, type, dim, query_block, key_block, threads, blocks, shared_bytes)     \
  ENTRY(attention_##pass##_##rung##_##type##_##dim, threads, blocks, table::pass,                   \
        pass##_##rung<table::type, table::dim, query_block, key_block, threads, shared_bytes>)
#include "table.h"
#undef ATTENTION
