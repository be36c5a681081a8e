#include "bench/metrics/containment.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "bench/metrics/best_reference.h"

namespace kvartet {
namespace {

constexpr int kMaxJsonDepth = 200;  // comparing two values recurses

bool has(std::string_view text, const std::string& part) { return !part.empty() && text.find(part) != std::string_view::npos; }

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// ```json ... ``` -> what is inside; anything else as it is.
std::string_view without_fence(std::string_view text) {
  constexpr std::string_view kFence = "```";
  text = trimmed(text);
  const std::size_t line_end = text.find('\n');
  const bool fenced = text.starts_with(kFence) && text.ends_with(kFence) && line_end != std::string_view::npos;
  if (!fenced || line_end + kFence.size() >= text.size()) return text;
  return text.substr(line_end + 1, text.size() - line_end - 1 - kFence.size());
}

// Discarded when it is no JSON, or nested too deeply to be compared.
nlohmann::json parsed(std::string_view text) {
  bool too_deep = false;
  const auto watch_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMaxJsonDepth;
    return !too_deep;
  };
  nlohmann::json value = nlohmann::json::parse(text, watch_depth, /*allow_exceptions=*/false);
  return too_deep ? nlohmann::json(nlohmann::json::value_t::discarded) : value;
}

}  // namespace

double contains_any(std::string_view prediction, Texts references, Texts) {
  return best_reference(references, [&](const std::string& reference) { return has(prediction, reference); });
}

double keyword_share(std::string_view prediction, Texts references, Texts) {
  if (references.empty()) return 0;
  const auto hits = std::count_if(references.begin(), references.end(), [&](const std::string& r) { return has(prediction, r); });
  return static_cast<double>(hits) / static_cast<double>(references.size());
}

double json_equal(std::string_view prediction, Texts references, Texts) {
  const nlohmann::json value = parsed(without_fence(prediction));
  if (value.is_discarded()) return 0;
  return best_reference(references, [&](const std::string& reference) { return value == parsed(reference); });
}

}  // namespace kvartet
