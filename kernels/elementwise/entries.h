#include "arithmetic.h"
#include "copies.h"

ENTRY(add_row_bf16, OPERATOR_THREADS, 4, AddRowArguments, add_row<Bf16>)
ENTRY(add_row_f16, OPERATOR_THREADS, 4, AddRowArguments, add_row<F16>)
ENTRY(add_row_f32, OPERATOR_THREADS, 4, AddRowArguments, add_row<float>)
ENTRY(accumulate_f32_f32, OPERATOR_THREADS, 4, AccumulateArguments, accumulate)
ENTRY(add_all_f32, OPERATOR_THREADS, 4, AddAllArguments, add_all)
ENTRY(cast_bf16_f16, OPERATOR_THREADS, 4, CastArguments, cast<Bf16, F16>)
ENTRY(cast_bf16_f32, OPERATOR_THREADS, 4, CastArguments, cast<Bf16, float>)
ENTRY(cast_f16_bf16, OPERATOR_THREADS, 4, CastArguments, cast<F16, Bf16>)
ENTRY(cast_f16_f32, OPERATOR_THREADS, 4, CastArguments, cast<F16, float>)
ENTRY(cast_f32_bf16, OPERATOR_THREADS, 4, CastArguments, cast<float, Bf16>)
ENTRY(cast_f32_f16, OPERATOR_THREADS, 4, CastArguments, cast<float, F16>)
ENTRY(gather_16_bits, OPERATOR_THREADS, 4, GatherArguments, gather<uint16_t>)
ENTRY(gather_32_bits, OPERATOR_THREADS, 4, GatherArguments, gather<uint32_t>)
ENTRY(gather_64_bits, OPERATOR_THREADS, 4, GatherArguments, gather<uint64_t>)
