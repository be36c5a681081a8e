#include "offload/fault_guard.h"

#include <signal.h>
#include <ucontext.h>

#include <csetjmp>
#include <cstdint>
#include <mutex>

namespace kvartet {
namespace {

struct Guard {
  std::uintptr_t begin;
  std::uintptr_t end;
  sigjmp_buf back;
};

// A signal handler has no argument of ours: what it needs must be found from nowhere. Hence these four.
thread_local Guard* active_guard = nullptr;
thread_local sigset_t mask_at_fault;
struct sigaction previous_action;
std::once_flag installed;

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Guard* guard = active_guard;
  if (guard != nullptr && address >= guard->begin && address < guard->end) {
    mask_at_fault = static_cast<const ucontext_t*>(context)->uc_sigmask;
    siglongjmp(guard->back, 1);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    ::sigaction(signal, &previous_action, nullptr);  // the load runs again and ends the process as it would have
  }
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &previous_action);
}

}  // namespace

bool read_guarded(std::span<const std::byte> mapped, const std::function<void()>& read) {
  std::call_once(installed, install);
  Guard guard;
  guard.begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  guard.end = guard.begin + mapped.size();
  if (sigsetjmp(guard.back, 0) != 0) {  // without the mask, so that a guard costs no system call; a fault restores it
    active_guard = nullptr;
    ::pthread_sigmask(SIG_SETMASK, &mask_at_fault, nullptr);
    return false;
  }
  active_guard = &guard;
  read();
  active_guard = nullptr;
  return true;
}

}  // namespace kvartet
