// A flow of control with a stack of its own, entered and left by hand: what a GPU thread is here. The switch keeps what the
// calling convention says a function keeps, and nothing else: a few nanoseconds.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__))
#define SWITCHES_BY_HAND 1
extern "C" void emulator_switch(void** save, void* load);
#else
#define SWITCHES_BY_HAND 0
#include <ucontext.h>
#endif

#if defined(__ELF__) && defined(__x86_64__)
// System V ABI, "Registers": rbx, rbp and r12-r15 belong to the caller.
asm(R"(
.pushsection .text.emulator_switch, "axG", @progbits, emulator_switch, comdat
.weak emulator_switch
.type emulator_switch, @function
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size emulator_switch, . - emulator_switch
.popsection
)");
#elif defined(__ELF__) && defined(__aarch64__)
// AAPCS64: x19-x29 and the low halves of v8-v15 belong to the caller; x30 is where to go on.
asm(R"(
.pushsection .text.emulator_switch, "axG", %progbits, emulator_switch, comdat
.weak emulator_switch
.type emulator_switch, %function
emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulator_switch, . - emulator_switch
.popsection
)");
#endif

namespace emulator {

class Fiber {
 public:
  // The flow that is running already: the first one.
  void adopt() {
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    void* start = nullptr;
    pthread_attr_getstack(&attributes, &start, &bytes_);
    pthread_attr_destroy(&attributes);
    stack_ = static_cast<char*>(start);
#endif
  }

  // A flow that will start at `entry`, which never returns, on this stack; what ran there before is forgotten. The first
  // `skipped` bytes stay unused, so that the frames of many fibers do not meet in the same cache sets.
  void prepare(char* stack, size_t bytes, size_t skipped, void (*entry)()) {
    stack_ = stack;
    bytes_ = bytes;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, bytes);
#endif
    place(stack + (bytes - skipped) / 64 * 64, entry);
  }

  // Goes on with `next`; returns when somebody switches back to this one.
  void switch_to(Fiber& next) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, next.stack_, next.bytes_);
#endif
#if SWITCHES_BY_HAND
    emulator_switch(&stack_pointer_, next.stack_pointer_);
#else
    swapcontext(&context_, &next.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  // The first thing that an entry does.
  static void entered() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  }

 private:
#if SWITCHES_BY_HAND
  // Lays down what `emulator_switch` takes up again. Each ABI wants the stack at a multiple of 16 when a function is called;
  // on x86-64 the return address is pushed after that.
  void place(char* top, void (*entry)()) {
#if defined(__x86_64__)
    void** word = reinterpret_cast<void**>(top) - 1;
    *--word = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--word = nullptr;
#else
    void** word = reinterpret_cast<void**>(top) - 20;
    for (int i = 0; i < 20; ++i) word[i] = nullptr;
    word[11] = reinterpret_cast<void*>(entry);
#endif
    stack_pointer_ = word;
  }

  void* stack_pointer_ = nullptr;
#else
  void place(char* top, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = static_cast<size_t>(top - stack_);
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }

  ucontext_t context_;
#endif
  char* stack_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace emulator
