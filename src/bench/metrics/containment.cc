#include "bench/metrics/containment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "bench/metrics/best_reference.h"
#include "bench/metrics/json_in_text.h"
#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

bool has(std::string_view text, const std::string& part) { return !part.empty() && text.find(part) != std::string_view::npos; }

}  // namespace

double contains_any(std::string_view prediction, Texts references, Texts) {
  return best_reference(references, [&](const std::string& reference) { return has(prediction, reference); });
}

double keyword_share(std::string_view prediction, Texts references, Texts) {
  if (references.empty()) return 0;
  const auto hits = std::count_if(references.begin(), references.end(), [&](const std::string& r) { return has(prediction, r); });
  return static_cast<double>(hits) / static_cast<double>(references.size());
}

double string_match(std::string_view prediction, Texts references, Texts) {
  if (references.empty()) return 0;
  const std::u32string text = to_lower(decode_utf8(prediction));
  const auto hits = std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
    return !reference.empty() && text.find(to_lower(decode_utf8(reference))) != std::u32string::npos;
  });
  return static_cast<double>(hits) / static_cast<double>(references.size());
}

double json_equal(std::string_view prediction, Texts references, Texts) {
  const nlohmann::json value = json_in_text(prediction);
  if (value.is_discarded()) return 0;
  return best_reference(references, [&](const std::string& reference) { return value == parse_json(reference); });
}

Status check_json(std::string_view, Texts references, Texts) {
  for (std::size_t i = 0; i < references.size(); ++i) {
    if (parse_json(references[i]).is_discarded())
      return bad_input(fmt::format("answer {} is not valid JSON, and the metric json needs it", i + 1));
  }
  return {};
}

}  // namespace kvartet
