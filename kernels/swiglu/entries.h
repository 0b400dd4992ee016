#include "swiglu.h"

ENTRY(swiglu_forward_bf16, OPERATOR_THREADS, 4, SwigluForwardArguments, swiglu_forward<Bf16>)
ENTRY(swiglu_forward_f16, OPERATOR_THREADS, 4, SwigluForwardArguments, swiglu_forward<F16>)
ENTRY(swiglu_forward_f32, OPERATOR_THREADS, 4, SwigluForwardArguments, swiglu_forward<float>)
ENTRY(swiglu_backward_bf16, OPERATOR_THREADS, 4, SwigluBackwardArguments, swiglu_backward<Bf16>)
ENTRY(swiglu_backward_f16, OPERATOR_THREADS, 4, SwigluBackwardArguments, swiglu_backward<F16>)
ENTRY(swiglu_backward_f32, OPERATOR_THREADS, 4, SwigluBackwardArguments, swiglu_backward<float>)
