#include "offload/fault_guard.h"

#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace kvartet {
namespace {

struct Guard {
  std::uintptr_t begin;
  std::uintptr_t end;
  sigjmp_buf back;
};

// A signal handler has no argument of ours: what it needs must be found from nowhere. Hence these three.
thread_local Guard* active_guard = nullptr;
struct sigaction previous_action;
std::once_flag installed;

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Guard* guard = active_guard;
  if (guard != nullptr && address >= guard->begin && address < guard->end) siglongjmp(guard->back, 1);
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
  action.sa_flags = SA_SIGINFO | SA_NODEFER;  // so that the way back need not unblock it: a guard costs no system call
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &previous_action);
}

}  // namespace

bool read_guarded(std::span<const std::byte> mapped, const std::function<void()>& read) {
  std::call_once(installed, install);
  Guard guard;
  guard.begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  guard.end = guard.begin + mapped.size();
  if (sigsetjmp(guard.back, 0) != 0) {
    active_guard = nullptr;
    return false;
  }
  active_guard = &guard;
  read();
  active_guard = nullptr;
  return true;
}

}  // namespace kvartet
