// The kernels of sm_90a as lines of `table.h` name them; the line's numbers are held to what the kernel is made of.
#pragma once
#include "sm90_backward.h"
#include "sm90_forward.h"
#include "sm90_queries.h"

// Whether a line says what a kernel has.
template <class Kernel, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
constexpr bool agrees = Kernel::queries == QueryBlock && Kernel::keys == KeyBlock && Kernel::threads == Threads &&
                        Kernel::shared_bytes == SharedBytes;

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void forward_sm90(const ForwardArguments& arguments) {
  using Kernel = sm90::Forward<T, Dim, QueryBlock, KeyBlock>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm90::attend_rows<Kernel, sm90::ForwardConsumer>(arguments);
}

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_sm90(const BackwardArguments& arguments) {
  using Kernel = sm90::Backward<T, Dim, QueryBlock, sm90::QuerySums::Unordered>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm90::attention_backward<Kernel>(arguments);
}

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_in_turn_sm90(const BackwardArguments& arguments) {
  using Kernel = sm90::Backward<T, Dim, QueryBlock, sm90::QuerySums::InTurn>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm90::attention_backward<Kernel>(arguments);
}

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_keys_sm90(const BackwardArguments& arguments) {
  using Kernel = sm90::Backward<T, Dim, QueryBlock, sm90::QuerySums::Elsewhere>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm90::attention_backward<Kernel>(arguments);
}

template <typename T, int Dim, int QueryBlock, int KeyBlock, int Threads, int SharedBytes>
DEVICE void backward_queries_sm90(const BackwardArguments& arguments) {
  using Kernel = sm90::BackwardQueries<T, Dim, QueryBlock, KeyBlock>;
  static_assert(agrees<Kernel, QueryBlock, KeyBlock, Threads, SharedBytes>, "the line in table.h");
  sm90::attend_rows<Kernel, sm90::QueriesConsumer>(arguments);
}
