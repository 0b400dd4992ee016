#include "norm.h"

ENTRY(norm_squares_f32, OPERATOR_THREADS, 4, NormSquaresArguments, norm_squares)
