#include "results/outcome_check.h"

#include <algorithm>
#include <initializer_list>

namespace kvartet {
namespace {

constexpr double kRounding = 1e-6;         // a mean of scores, or a likelihood of nearly 1, may lie beyond the end
constexpr double kLeastLikelihood = -1e6;  // nats per token
constexpr double kMost = 1e12;             // seconds, tokens per second, rows
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

bool within(double x, double least, double most) { return x >= least && x <= most; }  // no NaN is

}  // namespace

bool has_possible_figures(const Outcome& o) {
  if (o.failed()) return true;
  if (o.score && !within(*o.score, -kRounding, 1 + kRounding)) return false;
  if (o.gold_log_likelihood && !within(*o.gold_log_likelihood, kLeastLikelihood, kRounding)) return false;
  const std::initializer_list<double> reals = {o.ttft_s, o.prefill_s, o.compress_s, o.decode_tokens_per_s, o.rows_kept};
  const std::initializer_list<std::int64_t> counts = {o.live_bytes,     o.allocated_bytes, o.fast_bytes,
                                                      o.f16_bytes,      o.end_live_bytes,  o.end_allocated_bytes,
                                                      o.end_fast_bytes, o.end_f16_bytes,   o.completion_tokens};
  return std::ranges::all_of(reals, [](double x) { return within(x, 0, kMost); }) &&
         std::ranges::all_of(counts, [](std::int64_t n) { return n >= 0 && n <= kMostBytes; });
}

}  // namespace kvartet
