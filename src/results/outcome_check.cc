#include "results/outcome_check.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>

#include "core/utf8.h"

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

std::optional<unsigned> take_hex_digits(std::string_view* text) {
  constexpr std::size_t kDigits = 4;
  if (text->size() < kDigits) return std::nullopt;
  unsigned code = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + kDigits, code, 16);
  if (error != std::errc() || end != text->data() + kDigits) return std::nullopt;
  text->remove_prefix(kDigits);
  return code;
}

// What follows a backslash. The two halves of a surrogate pair only together.
bool take_escape(std::string_view* text) {
  if (text->empty()) return false;
  const char kind = text->front();
  text->remove_prefix(1);
  if (kind != 'u') return std::string_view("\"\\/bfnrt").find(kind) != std::string_view::npos;
  const auto is_low_half = [](unsigned code) { return code >= 0xdc00 && code <= 0xdfff; };
  const std::optional<unsigned> code = take_hex_digits(text);
  if (!code || is_low_half(*code)) return false;
  if (*code < 0xd800 || *code > 0xdbff) return true;
  if (!text->starts_with("\\u")) return false;
  text->remove_prefix(2);
  const std::optional<unsigned> low = take_hex_digits(text);
  return low && is_low_half(*low);
}

bool take_text(std::string_view* text) {
  if (!take(text, '"')) return false;
  while (!text->empty()) {
    const char c = text->front();
    text->remove_prefix(1);
    if (c == '"') return true;
    if (static_cast<unsigned char>(c) < ' ' || (c == '\\' && !take_escape(text))) return false;
  }
  return false;
}

// "[item, item]" and nothing behind it.
template <typename TakeItem>
bool is_list_of(std::string_view json, TakeItem take_item) {
  if (!take(&json, '[')) return false;
  bool more = !take(&json, ']');
  while (more) {
    if (!take_item(&json)) return false;
    more = take(&json, ',');
    if (!more && !take(&json, ']')) return false;
  }
  skip_blanks(&json);
  return json.empty();
}

}  // namespace

bool is_list_of_texts(std::string_view json) { return is_valid_utf8(json) && is_list_of(json, take_text); }

bool has_possible_texts(const SampleRecord& sample) {
  return is_list_of_texts(sample.answers_json) && (sample.classes_json == "null" || is_list_of_texts(sample.classes_json));
}

bool is_list_of_numbers(std::string_view json, double least, double most) {
  return json.empty() || is_list_of(json, [&](std::string_view* text) {
           double number = 0;
           return take_number(text, &number) && within(number, least, most);
         });
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
