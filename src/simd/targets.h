// Which instruction sets kernels can run on here, and how a test makes them use another than the best.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvartet {

struct SimdTarget {
  std::string name;      // "AVX2"
  std::int64_t bit = 0;  // Highway's number for it
};

// The instruction sets that kernels are compiled for and this CPU has, best first.
std::vector<SimdTarget> simd_targets();

// While it lives, kernels are chosen for `target`. For tests, in one thread: make formats and run them inside its life.
class ScopedSimdTarget {
 public:
  explicit ScopedSimdTarget(const SimdTarget& target);
  ~ScopedSimdTarget();
  ScopedSimdTarget(const ScopedSimdTarget&) = delete;
  ScopedSimdTarget& operator=(const ScopedSimdTarget&) = delete;
};

}  // namespace kvartet
