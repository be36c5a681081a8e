#include "engine/log_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace kvartet {

double log_sum_exp(std::span<const float> logits) {
  if (logits.empty()) return -std::numeric_limits<double>::infinity();
  const double max = *std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(max)) return max;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum);
}

double log_probability(std::span<const float> logits, int token) {
  KV_CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size());
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_sum_exp(logits);
}

}  // namespace kvartet
