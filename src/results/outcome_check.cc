#include "results/outcome_check.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace kvartet {
namespace {

constexpr double kRounding = 1e-6;         // a mean of scores, or a likelihood of nearly 1, may lie beyond the end
constexpr double kLeastLikelihood = -1e6;  // nats per token
constexpr double kMost = 1e12;             // seconds, tokens per second, rows
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

bool within(double x, double least, double most) { return x >= least && x <= most; }  // no NaN is

bool are_times(std::initializer_list<double> reals) {
  return std::ranges::all_of(reals, [](double x) { return within(x, 0, kMost); });
}
bool are_counts(std::initializer_list<std::int64_t> counts) {
  return std::ranges::all_of(counts, [](std::int64_t n) { return n >= 0 && n <= kMostBytes; });
}

void skip_blanks(std::string_view* text) { text->remove_prefix(std::min(text->find_first_not_of(" \t\n\r"), text->size())); }

bool take(std::string_view* text, char c) {
  skip_blanks(text);
  if (text->empty() || text->front() != c) return false;
  text->remove_prefix(1);
  return true;
}

// One number as JSON has them: none that from_chars would call infinite, not a number or written with a plus.
bool take_number(std::string_view* text, double* number) {
  skip_blanks(text);
  const char* const begin = text->data();
  const auto [end, error] = std::from_chars(begin, begin + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<std::size_t>(end - begin));
  return true;
}

}  // namespace

bool is_list_of_numbers(std::string_view json, double least, double most) {
  if (json.empty()) return true;
  if (!take(&json, '[')) return false;
  bool more = !take(&json, ']');
  while (more) {
    double number = 0;
    if (!take_number(&json, &number) || !within(number, least, most)) return false;
    more = take(&json, ',');
    if (!more && !take(&json, ']')) return false;
  }
  skip_blanks(&json);
  return json.empty();
}

bool has_possible_depths(const SampleRecord& sample) { return is_list_of_numbers(sample.depths_json, 0, kMost); }

bool has_possible_figures(const Outcome& o) {
  if (o.failed()) return true;
  if (o.score && !within(*o.score, -kRounding, 1 + kRounding)) return false;
  if (o.gold_log_likelihood && !within(*o.gold_log_likelihood, kLeastLikelihood, kRounding)) return false;
  return are_times({o.ttft_s, o.prefill_s, o.compress_s, o.decode_tokens_per_s, o.rows_kept}) &&
         are_counts({o.live_bytes, o.allocated_bytes, o.fast_bytes, o.f16_bytes, o.end_live_bytes, o.end_allocated_bytes,
                     o.end_fast_bytes, o.end_f16_bytes, o.completion_tokens}) &&
         is_list_of_numbers(o.token_gaps_json, 0, kMost);
}

bool has_possible_figures(const SoloRun& s) {
  if (s.failed()) return true;
  return are_times({s.ttft_s, s.prefill_s, s.compress_s, s.decode_tokens_per_s, s.end_to_end_tokens_per_s}) &&
         are_counts({s.completion_tokens, s.peak_rss_bytes, s.weight_bytes}) && is_list_of_numbers(s.token_gaps_json, 0, kMost);
}

}  // namespace kvartet
