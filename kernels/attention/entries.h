// The kernels of `table.h`.
#pragma once
#include "finish.h"
#include "prepare.h"
#include "reference.h"
#include "simt_backward.h"
#include "simt_forward.h"
#include "sm80_backward.h"
#include "sm80_forward.h"
#include "sm80_queries.h"
#include "sm100_entries.h"
#include "sm90_entries.h"
#include "sm90_finish.h"
#include "strict_backward.h"
#include "strict_forward.h"

// What the table's words mean.
namespace table {
using f32 = float;
using bf16 = Bf16;
using f16 = F16;
constexpr int any = 0, d64 = 64, d80 = 80, d96 = 96, d128 = 128, d256 = 256;

using forward = ForwardArguments;
using prepare = PrepareArguments;
using backward = BackwardArguments;
using backward_in_turn = BackwardArguments;
using backward_keys = BackwardArguments;
using backward_queries = BackwardArguments;
using finish = FinishArguments;
using finish_queries = FinishQueriesArguments;
using strict_forward = StrictForwardArguments;
using strict_keys = StrictBackwardArguments;
using strict_queries = StrictBackwardArguments;
using strict_finish = StrictFinishArguments;
}  // namespace table

// Kernels of sm_90a and of sm_100 have no body elsewhere.
#define ENTRY_OF_rows ENTRY
#define ENTRY_OF_fragments ENTRY
#define ENTRY_OF_lanes ENTRY
#define ENTRY_OF_columns ENTRY
#define ENTRY_OF_reference ENTRY
#define ENTRY_OF_simt ENTRY
#define ENTRY_OF_sm80 ENTRY
#define ENTRY_OF_sm90 ENTRY_90
#define ENTRY_OF_sm100 ENTRY_100

#define ATTENTION(pass, generation, type, dim, query_block, key_block, threads, blocks, shared_bytes)     \
  ENTRY_OF_##generation(attention_##pass##_##generation##_##type##_##dim##_##query_block##x##key_block,                   \
        threads, blocks, table::pass,                                                                     \
        pass##_##generation<table::type, table::dim, query_block, key_block, threads, shared_bytes>)
#include "table.h"
#undef ATTENTION
