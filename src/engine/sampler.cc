#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "core/rng.h"

namespace kvartet {

namespace {

struct Candidate {
  Token token = 0;
  double weight = 0;  // exp((logit - max) / temperature)
};

Result<Token> most_likely(std::span<const float> logits) {
  Token best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]))
      return bad_input(fmt::format("the model gave NaN for token {}; its weights or the cache are damaged", i));
    if (logits[i] > best_logit) {
      best_logit = logits[i];
      best = static_cast<Token>(i);
    }
  }
  if (best < 0 || !std::isfinite(best_logit))
    return bad_input("the model gave no finite logit; its weights or the cache are damaged");
  return best;
}

std::vector<Candidate> weigh(std::span<const float> logits, double max, double temperature) {
  std::vector<Candidate> all(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    all[i] = {static_cast<Token>(i), std::exp((static_cast<double>(logits[i]) - max) / temperature)};
  }
  return all;
}

double total(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// Keeps the nucleus, sorted. Tokens below (1 - top_p) / n hold less than 1 - top_p together, so none of them is in it:
// dropping them first leaves a few hundred to sort instead of the whole vocabulary.
void keep_nucleus(std::vector<Candidate>* candidates, double top_p) {
  const double sum = total(*candidates);
  const double floor = sum * (1 - top_p) / static_cast<double>(candidates->size());
  std::erase_if(*candidates, [&](const Candidate& c) { return c.weight < floor; });
  std::sort(candidates->begin(), candidates->end(), [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  });
  double held = 0;
  std::size_t kept = 0;
  while (kept < candidates->size() && held < top_p * sum) held += (*candidates)[kept++].weight;
  candidates->resize(std::max<std::size_t>(kept, 1));
}

}  // namespace

Status check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    return usage_error(fmt::format("temperature {} is not allowed; it must be 0 (greedy) or more", options.temperature));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return usage_error(fmt::format("top-p {} is not allowed; it must be above 0 and at most 1", options.top_p));
  }
  return {};
}

Result<Token> sample(std::span<const float> logits, const SamplingOptions& options, std::uint64_t step) {
  KV_ASSIGN(const Token best, most_likely(logits));
  if (options.temperature == 0) return best;

  std::vector<Candidate> candidates = weigh(logits, logits[static_cast<std::size_t>(best)], options.temperature);
  if (options.top_p < 1) keep_nucleus(&candidates, options.top_p);
  const double uniform = static_cast<double>(Rng(options.seed).at(step) >> 11) * 0x1.0p-53;
  double left = uniform * total(candidates);
  for (const Candidate& c : candidates) {
    left -= c.weight;
    if (left < 0) return c.token;
  }
  return best;  // rounding left a crumb behind the last candidate
}

}  // namespace kvartet
