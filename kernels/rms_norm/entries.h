#include "backward.h"

ENTRY(rms_norm_forward_warp_bf16, OPERATOR_THREADS, 4, RmsNormForwardArguments, rms_norm_forward<Bf16, 1>)
ENTRY(rms_norm_forward_warp_f16, OPERATOR_THREADS, 4, RmsNormForwardArguments, rms_norm_forward<F16, 1>)
ENTRY(rms_norm_forward_warp_f32, OPERATOR_THREADS, 4, RmsNormForwardArguments, rms_norm_forward<float, 1>)
ENTRY(rms_norm_forward_block_bf16, OPERATOR_THREADS, 4, RmsNormForwardArguments, rms_norm_forward<Bf16, 8>)
ENTRY(rms_norm_forward_block_f16, OPERATOR_THREADS, 4, RmsNormForwardArguments, rms_norm_forward<F16, 8>)
ENTRY(rms_norm_forward_block_f32, OPERATOR_THREADS, 4, RmsNormForwardArguments, rms_norm_forward<float, 8>)
ENTRY(rms_norm_backward_warp_bf16, OPERATOR_THREADS, 4, RmsNormBackwardArguments, rms_norm_backward<Bf16, 1>)
ENTRY(rms_norm_backward_warp_f16, OPERATOR_THREADS, 4, RmsNormBackwardArguments, rms_norm_backward<F16, 1>)
ENTRY(rms_norm_backward_warp_f32, OPERATOR_THREADS, 4, RmsNormBackwardArguments, rms_norm_backward<float, 1>)
ENTRY(rms_norm_backward_block_bf16, OPERATOR_THREADS, 4, RmsNormBackwardArguments, rms_norm_backward<Bf16, 8>)
ENTRY(rms_norm_backward_block_f16, OPERATOR_THREADS, 4, RmsNormBackwardArguments, rms_norm_backward<F16, 8>)
ENTRY(rms_norm_backward_block_f32, OPERATOR_THREADS, 4, RmsNormBackwardArguments, rms_norm_backward<float, 8>)
