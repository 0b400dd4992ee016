#include "adamw.h"

ENTRY(adamw_bf16, OPERATOR_THREADS, 4, AdamwArguments, adamw<Bf16>)
ENTRY(adamw_f16, OPERATOR_THREADS, 4, AdamwArguments, adamw<F16>)
ENTRY(adamw_f32, OPERATOR_THREADS, 4, AdamwArguments, adamw<float>)
