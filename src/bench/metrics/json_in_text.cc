#include "bench/metrics/json_in_text.h"

#include <algorithm>
#include <cstddef>

namespace kvartet {
namespace {

constexpr int kMaxDepth = 200;

// Behind the first line of the first fence, up to the next fence; empty: there is no fence.
std::string_view inside_fence(std::string_view text) {
  constexpr std::string_view kFence = "```";
  const std::size_t open = text.find(kFence);
  if (open == std::string_view::npos) return {};
  const std::size_t line_end = text.find('\n', open);
  if (line_end == std::string_view::npos) return {};
  const std::size_t close = text.find(kFence, line_end);
  return text.substr(line_end + 1, close == std::string_view::npos ? close : close - line_end - 1);
}

std::string_view inside_brackets(std::string_view text) {
  const std::size_t open = text.find_first_of("{[");
  const std::size_t close = text.find_last_of("}]");
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  return text.substr(open, close - open + 1);
}

}  // namespace

nlohmann::json parse_json(std::string_view text) {
  bool too_deep = false;
  const auto watch_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  nlohmann::json value = nlohmann::json::parse(text, watch_depth, /*allow_exceptions=*/false);
  return too_deep ? nlohmann::json(nlohmann::json::value_t::discarded) : value;
}

nlohmann::json json_in_text(std::string_view text) {
  nlohmann::json value = parse_json(text);
  for (const std::string_view part : {inside_fence(text), inside_brackets(text)}) {
    if (value.is_discarded() && !part.empty()) value = parse_json(part);
  }
  return value;
}

}  // namespace kvartet
