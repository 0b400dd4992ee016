// AdamW with decoupled decay (Loshchilov and Hutter, arXiv 1711.05101), of all parameters in one launch, on f32 masters.
#pragma once
#include "../operators/chunks.h"

// One parameter, in a table in device memory.
struct AdamwTensor {
  float* master;           // [count]
  float* first;            // [count]: running mean of gradients
  float* second;           // [count]: of their squares
  const float* gradient;   // [count]
  void* copy;              // [count] of the model's type, or null: the master rounded
  int64_t count;
  float keep;              // 1 - learning rate * weight decay, of this parameter
};

// g = clip * gradient     m = keep_first m + take_first g     v = keep_second v + take_second g^2
// p = p keep - rate m / (sqrt(v) / root + epsilon)
// with take = 1 - keep, rate = learning rate / (1 - keep_first^step), root = sqrt(1 - keep_second^step).
//
// A clip that is not finite changes nothing: the host finds out later, and all is as after the last step.
// Grid: chunks. Two parameters share no memory.
struct AdamwArguments {
  const AdamwTensor* tensors;
  const Chunk* chunks;
  const float* clip;   // in device memory: what gradients are multiplied by
  float keep_first, take_first;
  float keep_second, take_second;
  float rate, root, epsilon;
};

// N elements of a parameter. Each operation is said: which of two products a compiler made one operation of with their sum might
// differ between the elements that are moved together and those that are not, and which those are depends on who updates what.
template <typename Copy, int N>
DEVICE void adamw_elements(const AdamwArguments& arguments, const AdamwTensor& tensor, float clip, int64_t at) {
  float p[N], m[N], v[N], g[N];
  read(tensor.master + at, p);
  read(tensor.first + at, m);
  read(tensor.second + at, v);
  read(tensor.gradient + at, g);
  UNROLL
  for (int i = 0; i < N; i++) {
    g[i] = multiply(g[i], clip);
    m[i] = multiply_add(arguments.keep_first, m[i], multiply(arguments.take_first, g[i]));
    v[i] = multiply_add(arguments.keep_second, v[i], multiply(arguments.take_second, multiply(g[i], g[i])));
    const float step = multiply(arguments.rate, m[i]) / (sqrt_exact(v[i]) / arguments.root + arguments.epsilon);
    p[i] = multiply_add(p[i], tensor.keep, -step);
  }
  write(tensor.master + at, p);
  write(tensor.first + at, m);
  write(tensor.second + at, v);
  if (tensor.copy) write(static_cast<Copy*>(tensor.copy) + at, p);
}

template <typename Copy> DEVICE void adamw(const AdamwArguments& arguments) {
  const float clip = load_global(arguments.clip);
  if (!(absolute(clip) < infinity())) return;
  const Chunk chunk = load_global(arguments.chunks + blockIdx.x);
  const AdamwTensor tensor = arguments.tensors[chunk.tensor];
  const bool grouped = aligned(tensor.master, tensor.first, tensor.second, tensor.gradient, tensor.copy);
  for_chunk<4>(chunk, tensor.count, grouped, [&](int64_t at, auto lanes) {
    adamw_elements<Copy, decltype(lanes)::COUNT>(arguments, tensor, clip, at);
  });
}
