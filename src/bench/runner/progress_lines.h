// When a line of progress is due where no terminal rewrites one (a file, a log, a pipe).
#pragma once

#include "core/clock.h"

namespace kvartet {

inline constexpr double kSecondsBetweenLines = 10;

// The first at once, every other at least kSecondsBetweenLines after the one before.
class ProgressLines {
 public:
  explicit ProgressLines(const Clock& clock = Clock::real()) : clock_(clock) {}

  bool due() {
    const double now = clock_.seconds();
    if (any_ && now - last_ < kSecondsBetweenLines) return false;
    any_ = true;
    last_ = now;
    return true;
  }

 private:
  const Clock& clock_;
  double last_ = 0;
  bool any_ = false;
};

}  // namespace kvartet
