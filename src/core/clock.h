// Monotonic seconds. Passed down so that tests can hold time still.
#pragma once

namespace kvartet {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double seconds() const = 0;
  static const Clock& real();
};

}  // namespace kvartet
