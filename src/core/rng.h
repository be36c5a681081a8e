// Counter-based random numbers: the n-th number of a stream is a pure function of (seed, stream, n), so results do not
// depend on thread order or on who drew before.
#pragma once

#include <cstdint>

namespace kvartet {

class Rng {
 public:
  explicit Rng(std::uint64_t seed, std::uint64_t stream = 0) : key_(mix(seed ^ mix(stream + 0x9e3779b97f4a7c15ULL))) {}

  std::uint64_t at(std::uint64_t n) const { return mix(key_ + 0x9e3779b97f4a7c15ULL * (n + 1)); }
  std::uint64_t next() { return at(counter_++); }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  // Uniform in [0, n), n > 0. The bias, below n / 2^64, is of no interest here.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  // Standard normal (Box-Muller, one of the pair).
  double normal();

 private:
  static std::uint64_t mix(std::uint64_t x) {  // the finalizer of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

}  // namespace kvartet
