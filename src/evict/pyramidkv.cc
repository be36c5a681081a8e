#include "evict/pyramidkv.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"

namespace kvartet {

int pyramid_capacity(int tokens, const PyramidOptions& options, int layer, int layers) {
  KV_CHECK(layer >= 0 && layer < layers && options.beta >= 1);
  const int window = options.snap.window;
  const std::int64_t mean = options.snap.capacity - window;  // of the prefix
  if (layers == 1 || tokens < 2 * mean || mean <= 0) return options.snap.capacity;
  std::int64_t least = mean / options.beta;
  std::int64_t most = 2 * mean - least;
  if (most >= tokens - window) {
    most = tokens - window;
    least = 2 * mean - most;
  }
  const std::int64_t steps = layers - 1;
  std::int64_t left = layers * mean;
  for (std::int64_t l = 0; l < layers; ++l) left -= most - (l * (most - least) + steps - 1) / steps;
  // `left` rows were lost to rounding down, fewer than layers were rounded.
  std::int64_t rounded_before = 0;
  for (std::int64_t l = 0; l < layer; ++l) rounded_before += l * (most - least) % steps != 0 ? 1 : 0;
  const std::int64_t fall = layer * (most - least);
  const bool extra = fall % steps != 0 && rounded_before < left;
  return static_cast<int>(most - (fall + steps - 1) / steps + (extra ? 1 : 0)) + window;
}

}  // namespace kvartet
