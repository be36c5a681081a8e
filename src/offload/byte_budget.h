// A cap on bytes that are not memory: the disk space of all stores that share it. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/status.h"

namespace kvartet {

class ByteBudget {
 public:
  static constexpr std::uint64_t kNoCap = ~std::uint64_t{0};
  explicit ByteBudget(std::uint64_t cap = kNoCap) : cap_(cap) {}

  // kExhausted when `bytes` more would pass the cap; then nothing is charged. `what` names the thing in the message.
  Status charge(std::uint64_t bytes, std::string_view what) {
    std::uint64_t used = used_.load();
    do {
      if (bytes > cap_ - used) {
        return exhausted(
            fmt::format("{} needs {} bytes more, but {} of the slow tier's {} bytes are used; raise its cap or use a "
                        "shorter context",
                        what, bytes, used, cap_));
      }
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return {};
  }
  void release(std::uint64_t bytes) { used_.fetch_sub(bytes); }
  std::uint64_t used() const { return used_.load(); }

 private:
  std::uint64_t cap_;
  std::atomic<std::uint64_t> used_{0};
};

}  // namespace kvartet
