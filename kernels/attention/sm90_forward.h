// Forward attention for sm_90a. A block of threads keeps a block of queries and visits the blocks of keys that it sees, in all
// tiles of a hop:
//
//   scores S = Q K^T        both from shared memory
//   weights P = exp2(scale (S - maximum)), sum += P       in registers, while the previous block's P V runs
//   out += P V              P from registers
//
// The state (out, maximum, sum) starts from what earlier hops left and goes back in place. One warpgroup produces, the others
// consume 64 queries each, in ping-pong.
#pragma once
#include "sm90_fragments.h"
#include "sm90_rows.h"

namespace sm90 {

// What a forward kernel is compiled for.
template <typename Number, int Dim, int QueryBlock, int KeyBlock>
struct Forward : KeptQueries<Number, Dim, QueryBlock, KeyBlock, 1> {
  using Arguments = ForwardArguments;
  static DEVICE const TensorMap& kept_map(const ForwardArguments& arguments, int) { return arguments.q_map; }
  // Whether items that see nothing are to be begun or ended all the same.
  static DEVICE bool touches_all(const ForwardArguments& arguments) { return (arguments.first | arguments.last) != 0; }
};

// A warpgroup: 64 queries of every item, from the state of earlier hops to that of this one.
template <class Kernel> struct ForwardConsumer {
  using T = typename Kernel::T;
  const ForwardArguments& arguments;
  RowsMemory<Kernel> memory;
  PingPong<Kernel::consumers> ping_pong;
  float out[Kernel::dim / 2];
  float maximum[2];
  float sum[2];  // of the columns of this thread
  uint32_t weights[Kernel::keys / 16][4];

  DEVICE ForwardConsumer(const ForwardArguments& arguments, const RowsMemory<Kernel>& memory, int consumer)
      : arguments(arguments), memory(memory), ping_pong{consumer} {}

  DEVICE void run() {
    ping_pong.begin();
    for (;;) {
      memory.kept.wait();
      const Item item = load_shared<Item>(memory.item());
      if (item.block < 0) break;
      fold(item);
      memory.kept.state.next();
    }
    ping_pong.end();
  }

 private:
  DEVICE int first_row() const { return 64 * ping_pong.consumer; }

  // This thread's two rows: their place among the queries of a head, and in the state.
  DEVICE int row_of(const Item& item, int r) const { return item.block * Kernel::queries + first_row() + sums_row() + 8 * r; }
  DEVICE int64_t row_index(const Item& item, int row) const {
    return (static_cast<int64_t>(item.batch) * arguments.heads + item.head) * arguments.rows + row;
  }

  DEVICE void fold(const Item& item) {
    if (item.empty != 0) return leave_state(item);
    Step step = await_step();
    step = first_block(item, step);
    while (step.first >= 0) step = next_block(item, step);
    memory.values.wait();
    add_values();
    await_values();
    store(item);
  }

  // An item that sees nothing: begun, or brought to its end.
  DEVICE void leave_state(const Item& item) {
    load_state(item);
    __syncwarp();  // all lanes have read the item
    memory.kept.release();
    store(item);
  }

  DEVICE Step await_step() const {
    memory.keys.wait();
    return load_shared<Step>(memory.step());
  }

  DEVICE Step first_block(const Item& item, const Step& step) {
    float scores[Kernel::keys / 2], factor[2];
    ping_pong.take();
    start_scores(scores);
    ping_pong.pass();
    load_state(item);
    await_scores<0>(scores, step, item);
    weigh(scores, factor);
    rescale(factor);
    round_sums<T, Kernel::keys>(weights, scores);
    return step_after(step);
  }

  // Scores of a block, while the weights of the one before multiply its values. That the next step is awaited before these
  // products are keeps the compiler from waiting for the products before it makes weights: it moves no wait across a loop.
  DEVICE Step next_block(const Item& item, const Step& step) {
    float scores[Kernel::keys / 2], factor[2];
    ping_pong.take();
    start_scores(scores);
    memory.values.wait();
    add_values();
    ping_pong.pass();
    await_scores<1>(scores, step, item);
    weigh(scores, factor);
    const Step after = step_after(step);
    await_values();
    rescale(factor);
    round_sums<T, Kernel::keys>(weights, scores);
    return after;
  }

  // What a row sees is looked up while the scores are made. `Pending` groups of products started after them.
  template <int Pending> DEVICE void await_scores(float (&scores)[Kernel::keys / 2], const Step& step, const Item& item) {
    Seen<Kernel::keys> seen;
    const int rows = arguments.rows - item.block * Kernel::queries;
    if (step.spans != nullptr) seen.look(step.spans, first_row(), rows, step.first);
    warpgroup_wait<Pending>();
    warpgroup_hold(scores);
    memory.keys.release();
    memory.keys.state.next();
    if (step.last != 0) memory.kept.release();
    if (step.spans != nullptr) seen.hide(scores);
  }

  // The next one, or one before the first row after the last.
  DEVICE Step step_after(const Step& step) const {
    if (step.last != 0) return {nullptr, -1, 1};
    return await_step();
  }

  DEVICE void start_scores(float (&scores)[Kernel::keys / 2]) {
    multiply_rows<T, Kernel::keys, Kernel::dim>(scores, memory.kept_tile(0), first_row(), memory.key_tile());
    warpgroup_commit();
  }

  DEVICE void add_values() {
    multiply_fragments<T, Kernel::dim>(out, weights, memory.value_tile());
    warpgroup_commit();
  }

  DEVICE void await_values() {
    warpgroup_wait<0>();
    warpgroup_hold(out);
    warpgroup_hold(weights);
    memory.values.release();
    memory.values.state.next();
  }

  // Scores become weights; what earlier ones have to be multiplied by is left in `factor`.
  DEVICE void weigh(float (&scores)[Kernel::keys / 2], float (&factor)[2]) {
    const float scale = arguments.scale_log2;
    UNROLL
    for (int r = 0; r < 2; ++r) {
      float highest = maximum[r];
      UNROLL
      for (int j = 0; j < Kernel::keys / 8; ++j) highest = max(highest, max(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      highest = quad_max(highest);
      const float zero = highest == -infinity() ? 0.0f : highest, shift = zero * scale;
      // 1 where the maximum stays: any other factor would be multiplied into the sums with every block of keys.
      factor[r] = exp2_fast((maximum[r] - zero) * scale);
      maximum[r] = highest;
      float total[2] = {0.0f, 0.0f};
      UNROLL
      for (int j = 0; j < Kernel::keys / 8; ++j) {
        UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[4 * j + 2 * r + e];
          score = exp2_fast(multiply_add(score, scale, -shift));
          total[e] += score;
        }
      }
      sum[r] = multiply_add(sum[r], factor[r], total[0] + total[1]);
    }
  }

  // Most blocks leave every maximum of a warp's rows where it was.
  DEVICE void rescale(const float (&factor)[2]) {
    if (!warp_any(factor[0] != 1.0f || factor[1] != 1.0f)) return;
    UNROLL
    for (int i = 0; i < Kernel::dim / 2; ++i) out[i] *= factor[i / 2 % 2];
  }

  // Rows past the end repeat the last one; they are not stored.
  DEVICE void load_state(const Item& item) {
    if (arguments.first != 0) return begin_state();
    UNROLL
    for (int r = 0; r < 2; ++r) {
      const int64_t row = row_index(item, min(row_of(item, r), arguments.rows - 1));
      maximum[r] = arguments.maximum[row];
      sum[r] = sums_column() == 0 ? arguments.sum[row] : 0.0f;
      const Float2* from = reinterpret_cast<const Float2*>(arguments.out + row * arguments.dim + sums_column());
      UNROLL
      for (int j = 0; j < Kernel::dim / 8; ++j) {
        // Past the last column anything will do: it is not stored. No branch: products are under way.
        const Float2 pair = from[8 * j < arguments.dim ? 4 * j : 0];
        out[4 * j + 2 * r] = pair.x;
        out[4 * j + 2 * r + 1] = pair.y;
      }
    }
  }

  DEVICE void begin_state() {
    UNROLL
    for (int r = 0; r < 2; ++r) {
      maximum[r] = -infinity();
      sum[r] = 0.0f;
    }
    UNROLL
    for (int i = 0; i < Kernel::dim / 2; ++i) out[i] = 0.0f;
  }

  DEVICE void store(const Item& item) {
    UNROLL
    for (int r = 0; r < 2; ++r) {
      const float total = quad_sum(sum[r]);
      const int64_t row = row_index(item, row_of(item, r));
      if (row_of(item, r) >= arguments.rows) continue;
      if (arguments.last != 0) store_result(item, r, total);
      else store_state(row, r, total);
    }
  }

  // The only division and the only rounding, as in finish.h.
  DEVICE void store_result(const Item& item, int r, float total) {
    const int row = row_of(item, r);
    const float share = total > 0.0f ? 1.0f / total : 0.0f;
    if (sums_column() == 0) {
      const float lse = total > 0.0f ? multiply_add(maximum[r], arguments.scale, log_exact(total)) : -infinity();
      store_global(arguments.lse + row_index(item, row), lse);
    }
    const int64_t by_token = (static_cast<int64_t>(item.batch) * arguments.rows + row) * arguments.heads + item.head;
    T* start = static_cast<T*>(arguments.result) + by_token * arguments.dim;
    uint32_t* to = reinterpret_cast<uint32_t*>(start + sums_column());
    UNROLL
    for (int j = 0; j < Kernel::dim / 8; ++j) {
      const uint32_t pair = pack<T>(out[4 * j + 2 * r] * share, out[4 * j + 2 * r + 1] * share);
      if (8 * j < arguments.dim) store_global(to + 4 * j, pair);
    }
  }

  DEVICE void store_state(int64_t row, int r, float total) {
    if (sums_column() == 0) {
      store_global(arguments.maximum + row, maximum[r]);
      store_global(arguments.sum + row, total);
    }
    Float2* to = reinterpret_cast<Float2*>(arguments.out + row * arguments.dim + sums_column());
    UNROLL
    for (int j = 0; j < Kernel::dim / 8; ++j) {
      if (8 * j < arguments.dim) store_global(to + 4 * j, Float2{out[4 * j + 2 * r], out[4 * j + 2 * r + 1]});
    }
  }
};

}  // namespace sm90
