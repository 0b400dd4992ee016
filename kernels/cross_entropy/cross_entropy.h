// The cross entropy of a chunk of tokens, between two matrix products: logits come in, their gradients go out.
#pragma once
#include "../operators/teams.h"

// A target that is left out: no loss, no gradient.
constexpr int64_t IGNORED_TARGET = -100;

// losses[t] = log(sum of exp(logits)) - logit of the target, natural; gradients of the sum of losses: softmax less 1 at the target,
// rounded to the type that products take. Logits are f32 whatever that is: rounded to 16 bits they would move the loss.
// A target outside of the classes that is not IGNORED_TARGET makes the loss NaN. Grid: tokens. Shared memory: TEAM_SCRATCH.
struct CrossEntropyArguments {
  const float* logits;      // [tokens, classes], rows `stride` elements apart: a multiple of 8 is fast
  void* gradients;          // the same, of T; null: not wanted; of f32 it may be the logits
  const int64_t* targets;   // [tokens]
  double* losses;           // [tokens]
  int64_t stride;           // of both
  int classes;
};

constexpr int CROSS_ENTROPY_THREADS = 512;

// The maximum of some logits, and the sum of the exponentials of what they are above it: at most 0.
struct Softmax {
  float highest;
  float sum;
};

// exp(x - highest); 0 rather than NaN where all logits are -inf.
DEVICE float exp_below(float x, float highest) { return exp_exact(x - (highest == -infinity() ? 0.0f : highest)); }

// Of the block's row, in one reading: where a thread meets a higher logit, it corrects its sum.
DEVICE Softmax softmax_of_row(const float* logits, int classes, uint32_t scratch) {
  float highest = -infinity(), sum = 0.0f;
  for_range<GROUP<float>>(0, classes, aligned(logits), [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float x[N], top = highest;
    read(logits + at, x);
    UNROLL
    for (int i = 0; i < N; i++) top = max(top, x[i]);
    sum *= exp_below(highest, top);
    UNROLL
    for (int i = 0; i < N; i++) sum += exp_below(x[i], top);
    highest = top;
  });
  const float top = block_max(highest, scratch);
  return {top, block_sum(sum * exp_below(highest, top), scratch)};
}

// Logits become gradients.
template <typename T> DEVICE void softmax_gradient(const float* logits, T* gradients, int classes, Softmax row, int64_t target) {
  const float by = 1.0f / row.sum;
  for_range<GROUP<float, T>>(0, classes, aligned(logits, gradients), [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float x[N];
    read(logits + at, x);
    UNROLL
    for (int i = 0; i < N; i++) x[i] = exp_below(x[i], row.highest) * by - (at + i == target ? 1.0f : 0.0f);
    write(gradients + at, x);
  });
}

template <typename T> DEVICE void no_gradient(T* gradients, int classes) {
  for_range<GROUP<T>>(0, classes, aligned(gradients), [&](int64_t at, auto lanes) {
    const float zeros[decltype(lanes)::COUNT] = {};
    write(gradients + at, zeros);
  });
}

// Of a row whose target has the logit `at_target`.
DEVICE double loss_of(Softmax row, float at_target) {
  return log(static_cast<double>(row.sum)) - (static_cast<double>(at_target) - static_cast<double>(row.highest));
}

template <typename T> DEVICE void cross_entropy(const CrossEntropyArguments& arguments) {
  SHARED_MEMORY(shared);
  const int64_t token = blockIdx.x, target = load_global(arguments.targets + token);
  const int classes = arguments.classes;
  const float* logits = arguments.logits + token * arguments.stride;
  T* gradients = arguments.gradients ? static_cast<T*>(arguments.gradients) + token * arguments.stride : nullptr;
  if (target == IGNORED_TARGET) {
    if (gradients) no_gradient(gradients, classes);
    if (threadIdx.x == 0) store_global(arguments.losses + token, 0.0);
    return;
  }
  const bool valid = target >= 0 && target < classes;
  // Read by all threads: in its place is a gradient soon, after the barriers of the sums.
  const float at_target = valid ? load(logits + target) : -infinity();
  const Softmax row = softmax_of_row(logits, classes, shared_address(shared));
  if (threadIdx.x == 0) {
    store_global(arguments.losses + token, valid ? loss_of(row, at_target) : static_cast<double>(bits_as<float>(0x7fc00000u)));
  }
  if (gradients) softmax_gradient(logits, gradients, classes, row, target);
}
