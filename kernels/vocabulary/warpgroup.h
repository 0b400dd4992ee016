// What sm_90a adds, and sm_100 has but for the products: barriers in shared memory that count threads and bytes, copies by TMA, named barriers,
// registers that move from one warpgroup to another, and the order of the asynchronous products (see warpgroup_products.h).
//
// Addresses are those of shared memory. A barrier takes 8 bytes. Parity: `barrier_wait(b, p)` passes once the phase of parity p
// is complete; the first phase has parity 0, so waiting for parity 1 passes at once on a fresh barrier.
#pragma once
#include "memory.h"

// Prepares a barrier whose phases complete with `count` arrivals and all bytes that were announced. One thread does it, then
// `barrier_init_fence`, then all threads meet.
DEVICE void barrier_init(uint32_t barrier, int count) {
#if ON_GPU
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#else
  emulator::barrier_init(barrier, count);
#endif
}

// Makes fresh barriers known to the asynchronous units too.
DEVICE void barrier_init_fence() {
#if ON_GPU
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
#else
  emulator::proxy_fence();
#endif
}

// Arrives, and announces `bytes` that copies will bring before the phase completes.
DEVICE void barrier_expect(uint32_t barrier, int bytes) {
#if ON_GPU
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#else
  emulator::barrier_arrive(barrier, bytes);
#endif
}

DEVICE void barrier_arrive(uint32_t barrier) {
#if ON_GPU
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
  emulator::barrier_arrive(barrier, 0);
#endif
}

// Waits until the phase of this parity is complete. Any thread may wait, alone.
DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
#if ON_GPU
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again;\n"
      "}\n" ::"r"(barrier), "r"(parity) : "memory");
#else
  emulator::barrier_wait(barrier, parity);
#endif
}

// Meets `threads` threads, a multiple of 32, at one of 16 barriers of the block; 0 is that of `__syncthreads`. By whole warps.
DEVICE void named_sync(int id, int threads) {
#if ON_GPU
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emulator::named_barrier(id, threads, true);
#endif
}

// Counts among the threads of a `named_sync` without waiting for it.
DEVICE void named_arrive(int id, int threads) {
#if ON_GPU
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emulator::named_barrier(id, threads, false);
#endif
}

// Before the first copy by a map that lies in device memory instead of the kernel's arguments: what the host wrote there since
// an earlier launch is seen (PTX ISA, fence.proxy.tensormap). By the thread that starts the copies, once per map and block.
DEVICE void tensor_map_fence(const TensorMap* map) {
#if ON_GPU
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
#else
  emulator::tensor_map_fence(map);
#endif
}

// Starts the copy of one panel of a map's tensor: 64 columns from `column` on, the box's rows from `row` on, of one head of one
// batch row; what lies outside of the tensor comes as zeros. It lands as a panel of panels.h, at a multiple of 1024, and counts
// all of its bytes at `barrier`, those outside too. By one thread. Maps have four dimensions: columns, rows, heads, batch rows;
// boxes are 64, rows, 1, 1.
DEVICE void load_tile(uint32_t shared, const TensorMap* map, uint32_t barrier, int column, int row, int head, int batch) {
#if ON_GPU
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(shared), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
#else
  emulator::load_tile(shared, map, barrier, {column, row, head, batch});
#endif
}

// Starts the copy of `bytes`, a multiple of 16, from and to multiples of 16; they count at `barrier`. By one thread.
DEVICE void load_bytes(uint32_t shared, const void* global, int bytes, uint32_t barrier) {
#if ON_GPU
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared), "l"(global), "r"(bytes), "r"(barrier) : "memory");
#else
  emulator::load_bytes(shared, global, bytes, barrier);
#endif
}

// Starts to add `bytes` of floats in shared memory to those in global memory, a multiple of 16, from and to multiples of 16. What
// others add to the same comes before or behind: each element is added to once. By one thread, which then waits.
DEVICE void start_adding(float* global, uint32_t shared, int bytes) {
#if ON_GPU
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;"
               ::"l"(global), "r"(shared), "r"(bytes) : "memory");
#else
  emulator::start_adding(global, shared, bytes);
#endif
}

// Waits until all but the newest `Unread` that this thread started to add were read: shared memory may be written again, once others
// know.
template <int Unread = 0> DEVICE void wait_until_read() {
#if ON_GPU
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Unread) : "memory");
#else
  emulator::wait_until_read(Unread);
#endif
}

// Waits until all that this thread started to add is added.
DEVICE void wait_until_added() {
#if ON_GPU
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#else
  emulator::wait_until_added();
#endif
}

// Waits until a number in global memory is `own`: what whoever wrote it had added is there then, also for what this thread starts
// to add. Only global memory is between them: a fence of all memory costs a barrier of the whole GPU more.
DEVICE void wait_for_turn(const int* turn, int own) {
#if ON_GPU
  int found;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(turn) : "memory");
  } while (found != own);
  asm volatile("fence.proxy.async.global;" ::: "memory");
#else
  emulator::wait_for_turn(turn, own);
#endif
}

// Writes it, behind all that this thread has waited for.
DEVICE void pass_turn(int* turn, int next) {
#if ON_GPU
  asm volatile("fence.proxy.async.global;\nst.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
#else
  emulator::pass_turn(turn, next);
#endif
}

// Makes what threads stored into shared memory visible to products and copies that start after the next barrier: every thread
// that stored, before that barrier (PTX ISA, "Async proxy").
DEVICE void proxy_fence() {
#if ON_GPU
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulator::proxy_fence();
#endif
}

// True in one lane of a warp that is here as a whole, and known to the compiler as one: what it starts needs no loop over lanes
// (PTX ISA, elect.sync).
DEVICE bool elected() {
#if ON_GPU
  uint32_t own;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(own));
  return own != 0;
#else
  return emulator::thread_index().x % emulator::LANES == 0;
#endif
}

// Gives registers back down to, or asks for up to, `Count` per thread: 24 to 256, a multiple of 8. By whole warpgroups.
template <int Count> DEVICE void registers_release() {
  static_assert(Count >= 24 && Count <= 256 && Count % 8 == 0, "24 to 256 registers, by eights");
#if ON_GPU
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#else
  emulator::release_registers(Count);
#endif
}
template <int Count> DEVICE void registers_claim() {
  static_assert(Count >= 24 && Count <= 256 && Count % 8 == 0, "24 to 256 registers, by eights");
#if ON_GPU
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#else
  emulator::claim_registers(Count);
#endif
}

// Before the first product, and whenever registers of products were written since: orders them (PTX ISA, wgmma.fence).
DEVICE void warpgroup_fence() {
#if ON_GPU
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  emulator::warpgroup_fence();
#endif
}

// Makes one group of the warpgroup's products since the last commit.
DEVICE void warpgroup_commit() {
#if ON_GPU
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulator::warpgroup_commit();
#endif
}

// Waits until at most the newest `Pending` groups are under way; only then may their registers be touched.
template <int Pending> DEVICE void warpgroup_wait() {
#if ON_GPU
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#else
  emulator::warpgroup_wait(Pending);
#endif
}

// Keeps the compiler from moving uses of these sums across a wait or a fence; costs nothing.
template <int Count> DEVICE void warpgroup_hold(float (&sums)[Count]) {
#if ON_GPU
  UNROLL
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
#else
  static_cast<void>(sums);
#endif
}

// The same for left operands: made before a fence, and not made anew before the products that read them are awaited.
template <int Count> DEVICE void warpgroup_hold(uint32_t (&fragments)[Count][4]) {
#if ON_GPU
  UNROLL
  for (int i = 0; i < Count; ++i) {
    UNROLL
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(fragments[i][e])::"memory");
  }
#else
  static_cast<void>(fragments);
#endif
}

#include "warpgroup_products.h"
