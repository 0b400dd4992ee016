#include "norm.h"

ENTRY(norm_squares_bf16, OPERATOR_THREADS, 4, NormSquaresArguments, norm_squares<Bf16>)
ENTRY(norm_squares_f16, OPERATOR_THREADS, 4, NormSquaresArguments, norm_squares<F16>)
ENTRY(norm_squares_f32, OPERATOR_THREADS, 4, NormSquaresArguments, norm_squares<float>)
ENTRY(clip_factor, 32, 1, ClipFactorArguments, norm_factor)
