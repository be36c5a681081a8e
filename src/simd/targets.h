// Which instruction sets kernels can run on here, and how a test makes them use another than the best.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvartet {

// What kernels written with intrinsics need, each with all that come before it: twins of Highway's kernels in files named
// x_avx512.cc, because it has no name for the instruction that wins (simd/avx512.h).
enum class SimdExtension : std::uint8_t {
  kNone,
  kAvx2,  // with FMA and F16C, which Highway does have: for what has an AVX-512 twin and no portable kernel (x_avx2.cc)
  kVnni,  // AVX-512 with VBMI, VBMI2 and VNNI: permutations of bytes, dot products of 8-bit and 16-bit integers
  kBf16,  // dot products of BF16
};

struct SimdTarget {
  std::string name;      // "AVX2", "AVX3_VNNI"
  std::int64_t bit = 0;  // Highway's number for it
  SimdExtension extension = SimdExtension::kNone;
};

// The instruction sets that kernels are compiled for and this CPU has, best first.
std::vector<SimdTarget> simd_targets();

// May a twin that needs `extension` be chosen: does this CPU have it, and has no test chosen less?
bool uses_extension(SimdExtension extension);

// While it lives, kernels are chosen for `target`. For tests, in one thread: make formats and run them inside its life.
class ScopedSimdTarget {
 public:
  explicit ScopedSimdTarget(const SimdTarget& target);
  ~ScopedSimdTarget();
  ScopedSimdTarget(const ScopedSimdTarget&) = delete;
  ScopedSimdTarget& operator=(const ScopedSimdTarget&) = delete;
};

}  // namespace kvartet
