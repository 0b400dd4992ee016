// What a model predicts at tokens, and its loss there: for evaluation, which asks for nothing else of the logits.
#pragma once
#include "cross_entropy.h"

// losses[t] as above; predicted[t]: the class of the highest logit, the first of equal ones, 0 where no logit is a number. All targets are
// classes, of which there are at most 2^24: their numbers are exact in f32. Grid: tokens. Shared memory: TEAM_SCRATCH.
struct PredictionArguments {
  const float* logits;      // [tokens, classes]
  const int64_t* targets;   // [tokens]
  double* losses;           // [tokens]
  uint32_t* predicted;      // [tokens]
  int classes;
};

DEVICE void prediction(const PredictionArguments& arguments) {
  SHARED_MEMORY(shared);
  const int64_t token = blockIdx.x;
  const int classes = arguments.classes;
  const float* logits = arguments.logits + token * classes;
  const Softmax row = softmax_of_row(logits, classes, shared_address(shared));
  int first = classes;
  for_range<GROUP<float>>(0, classes, aligned(logits), [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float x[N];
    read(logits + at, x);
    UNROLL
    for (int i = 0; i < N; i++) {
      if (x[i] == row.highest) first = min(first, static_cast<int>(at) + i);
    }
  });
  first = static_cast<int>(-block_max(-static_cast<float>(first), shared_address(shared)));
  if (threadIdx.x == 0) {
    store_global(arguments.losses + token, loss_of(row, load(logits + load_global(arguments.targets + token))));
    store_global(arguments.predicted + token, static_cast<uint32_t>(first < classes ? first : 0));
  }
}
