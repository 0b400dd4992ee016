#include "squares.h"
#include "tensor.h"

ENTRY(order_free_add, OPERATOR_THREADS, 4, AddSumsArguments, add_sums)
ENTRY(order_free_read, OPERATOR_THREADS, 4, ReadSumsArguments, read_sums)
ENTRY(order_free_partials, OPERATOR_THREADS, 4, FoldPartialsArguments, fold_partials)
ENTRY(order_free_squares, OPERATOR_THREADS, 4, ExactSquaresArguments, exact_squares)
ENTRY(order_free_embedding_bf16, OPERATOR_THREADS, 4, EmbeddingSumsArguments, embedding_sums<Bf16>)
ENTRY(order_free_embedding_f16, OPERATOR_THREADS, 4, EmbeddingSumsArguments, embedding_sums<F16>)
ENTRY(order_free_embedding_f32, OPERATOR_THREADS, 4, EmbeddingSumsArguments, embedding_sums<float>)
ENTRY(order_free_weight_bf16, OPERATOR_THREADS, 1, WeightSumsArguments, weight_sums_16<Bf16>)
ENTRY(order_free_weight_f16, OPERATOR_THREADS, 1, WeightSumsArguments, weight_sums_16<F16>)
ENTRY(order_free_weight_f32, OPERATOR_THREADS, 1, WeightSumsArguments, weight_sums<float>)
ENTRY(order_free_product_bf16_bf16, OPERATOR_THREADS, 2, ProductArguments, product_16<Bf16, Bf16>)
ENTRY(order_free_product_bf16_f32, OPERATOR_THREADS, 2, ProductArguments, product_16<Bf16, float>)
ENTRY(order_free_product_f16_f16, OPERATOR_THREADS, 2, ProductArguments, product_16<F16, F16>)
ENTRY(order_free_product_f16_f32, OPERATOR_THREADS, 2, ProductArguments, product_16<F16, float>)
ENTRY(order_free_product_f32_f32, OPERATOR_THREADS, 2, ProductArguments, product<float, float>)
