#include "dropout.h"

ENTRY(input_dropout_bf16, OPERATOR_THREADS, 4, InputDropoutArguments, input_dropout<Bf16>)
ENTRY(input_dropout_f16, OPERATOR_THREADS, 4, InputDropoutArguments, input_dropout<F16>)
ENTRY(input_dropout_f32, OPERATOR_THREADS, 4, InputDropoutArguments, input_dropout<float>)
