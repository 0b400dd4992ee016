#include "rope.h"

ENTRY(rope_bf16, OPERATOR_THREADS, 2, RopeArguments, rope<Bf16>)
ENTRY(rope_f16, OPERATOR_THREADS, 2, RopeArguments, rope<F16>)
ENTRY(rope_f32, OPERATOR_THREADS, 2, RopeArguments, rope<float>)
