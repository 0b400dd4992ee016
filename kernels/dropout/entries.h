#include "dropout.h"

ENTRY(dropout_bf16, OPERATOR_THREADS, 4, DropoutArguments, dropout<Bf16>)
ENTRY(dropout_f16, OPERATOR_THREADS, 4, DropoutArguments, dropout<F16>)
ENTRY(dropout_f32, OPERATOR_THREADS, 4, DropoutArguments, dropout<float>)
