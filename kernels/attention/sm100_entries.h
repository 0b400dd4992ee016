// The kernels of sm_100 as lines of `table.h` name them; the line's numbers are held to what the kernel is made of.
#pragma once
#include "sm100_backward.h"
#include "sm100_forward.h"
#include "sm90_entries.h"

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void forward_sm100(const ForwardArguments& arguments) {
  using Kernel = sm100::Forward<T, Dim, QueryBlock, KeyBlock>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm100::attend_halves<Kernel>(arguments);
}

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_sm100(const BackwardArguments& arguments) {
  using Kernel = sm100::Backward<T, Dim, false>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm100::attention_backward<Kernel>(arguments);
}

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_in_turn_sm100(const BackwardArguments& arguments) {
  using Kernel = sm100::Backward<T, Dim, true>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm100::attention_backward<Kernel>(arguments);
}
