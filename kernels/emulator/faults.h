// A wild pointer of a kernel ends its launch with a message, not the process: while machines run, a fault of theirs is caught on
// a stack of its own and leaves the block like any other mistake. (Not under the address sanitizer, which says more.)
#pragma once
#include <csignal>
#include <mutex>
#include <vector>

#include "block.h"

namespace emulator {

class FaultGuard {
 public:
  FaultGuard() {
#if !defined(__SANITIZE_ADDRESS__)
    stack_.resize(64 * 1024);
    stack_t own{};
    own.ss_sp = stack_.data();
    own.ss_size = stack_.size();
    sigaltstack(&own, &former_stack_);
    const std::lock_guard<std::mutex> guard(lock());
    if (guards()++ != 0) return;
    struct sigaction action {};
    action.sa_sigaction = &FaultGuard::caught;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < 2; ++i) sigaction(SIGNALS[i], &action, &former(i));
#endif
  }

  ~FaultGuard() {
#if !defined(__SANITIZE_ADDRESS__)
    {
      const std::lock_guard<std::mutex> guard(lock());
      if (--guards() == 0) {
        for (size_t i = 0; i < 2; ++i) sigaction(SIGNALS[i], &former(i), nullptr);
      }
    }
    sigaltstack(&former_stack_, nullptr);
#endif
  }

  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  static constexpr int SIGNALS[2] = {SIGSEGV, SIGBUS};

  static std::mutex& lock() {
    static std::mutex one;
    return one;
  }
  static int& guards() {
    static int count = 0;
    return count;
  }
  static struct sigaction& former(size_t i) {
    static struct sigaction actions[2];
    return actions[i];
  }

  // Of a thread that runs no block, the fault is somebody else's: it happens again under the former handler.
  static void caught(int signal, siginfo_t* what, void*) {
    if (running != nullptr && running->current != nullptr) {
      running->fail("fault: nothing may be read or written at %p", what->si_addr);
    }
    sigaction(signal, &former(signal == SIGSEGV ? 0 : 1), nullptr);
  }

  std::vector<char> stack_;
  stack_t former_stack_{};
};

}  // namespace emulator
