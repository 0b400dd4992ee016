#include "forward.h"
#include "gradient.h"

ENTRY(embedding_forward_bf16, OPERATOR_THREADS, 4, EmbeddingForwardArguments, embedding_forward<Bf16>)
ENTRY(embedding_forward_f16, OPERATOR_THREADS, 4, EmbeddingForwardArguments, embedding_forward<F16>)
ENTRY(embedding_forward_f32, OPERATOR_THREADS, 4, EmbeddingForwardArguments, embedding_forward<float>)
ENTRY(embedding_order_count, ORDER_DIGITS, 2, OrderArguments, order_count)
ENTRY(embedding_order_scan, ORDER_SCAN_THREADS, 1, OrderArguments, order_scan)
ENTRY(embedding_order_move, ORDER_DIGITS, 2, OrderArguments, order_move)
ENTRY(embedding_gradient_bf16, OPERATOR_THREADS, 3, EmbeddingGradientArguments, embedding_gradient<Bf16>)
ENTRY(embedding_gradient_f16, OPERATOR_THREADS, 3, EmbeddingGradientArguments, embedding_gradient<F16>)
ENTRY(embedding_gradient_f32, OPERATOR_THREADS, 3, EmbeddingGradientArguments, embedding_gradient<float>)
