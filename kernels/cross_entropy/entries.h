#include "cross_entropy.h"
#include "predictions.h"

ENTRY(cross_entropy_bf16, CROSS_ENTROPY_THREADS, 2, CrossEntropyArguments, cross_entropy<Bf16>)
ENTRY(cross_entropy_f16, CROSS_ENTROPY_THREADS, 2, CrossEntropyArguments, cross_entropy<F16>)
ENTRY(cross_entropy_f32, CROSS_ENTROPY_THREADS, 2, CrossEntropyArguments, cross_entropy<float>)
ENTRY(prediction_f32, CROSS_ENTROPY_THREADS, 2, PredictionArguments, prediction)
