// Standard normal numbers for tests and benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rng.h"

namespace kvartet {

inline std::vector<float> normals(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

}  // namespace kvartet
