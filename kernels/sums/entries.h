#include "sums.h"

ENTRY(sum_rows_bf16, OPERATOR_THREADS, 4, SumRowsArguments, sum_rows<Bf16>)
ENTRY(sum_rows_f16, OPERATOR_THREADS, 4, SumRowsArguments, sum_rows<F16>)
ENTRY(sum_rows_f32, OPERATOR_THREADS, 4, SumRowsArguments, sum_rows<float>)
ENTRY(sum_partials_f32, OPERATOR_THREADS, 4, SumPartialsArguments, sum_partials)
ENTRY(sum_f64, OPERATOR_THREADS, 1, SumArguments, sum_list)
