#include "bench/metrics/structured_answer.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>

#include "bench/metrics/json_in_text.h"
#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

using Items = std::multiset<std::string>;

std::string normalized(const std::string& text) {
  std::u32string out;
  for (const std::u32string& word : split_words(to_lower(decode_utf8(text)))) {
    if (!out.empty()) out += U' ';
    out += word;
  }
  return encode_utf8(out);
}

// Every leaf with the keys that lead to it; places in lists do not count.
void add_items(const nlohmann::json& value, const std::string& path, Items& items) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) add_items(inner, path + normalized(key) + '\x1f', items);
  } else if (value.is_array()) {
    for (const nlohmann::json& inner : value) add_items(inner, path, items);
  } else {
    items.insert(path + (value.is_string() ? normalized(value.get<std::string>()) : value.dump()));
  }
}

std::optional<Items> items_of(std::string_view text) {
  const nlohmann::json value = json_in_text(text);
  if (!value.is_object() && !value.is_array()) return std::nullopt;
  Items items;
  add_items(value, "", items);
  return items;
}

struct Comparison {
  bool format_failure = true;
  bool equal = false;
  double item_f1 = 0;
};

Comparison compare(std::string_view prediction, Texts references) {
  const std::optional<Items> gold = references.empty() ? std::nullopt : items_of(references.front());
  const std::optional<Items> found = items_of(prediction);
  if (!gold || !found) return {};
  Items common;
  std::set_intersection(gold->begin(), gold->end(), found->begin(), found->end(), std::inserter(common, common.begin()));
  const std::size_t total = gold->size() + found->size();
  return {.format_failure = false,
          .equal = *gold == *found,
          .item_f1 = total == 0 ? 1.0 : 2.0 * static_cast<double>(common.size()) / static_cast<double>(total)};
}

}  // namespace

bool is_structured(std::string_view text) {
  const nlohmann::json value = parse_json(text);
  return value.is_object() || value.is_array();
}

double structured_match(std::string_view prediction, Texts references, Texts) {
  return compare(prediction, references).equal ? 1 : 0;
}

std::vector<ScorePart> structured_parts(std::string_view prediction, Texts references, Texts) {
  const Comparison c = compare(prediction, references);
  return {{"item_f1", c.item_f1}, {"format_failures", c.format_failure ? 1.0 : 0.0}};
}

Status check_structured(std::string_view, Texts references, Texts) {
  if (!references.empty() && is_structured(references.front())) return {};
  return bad_input("the reference answer is no JSON object or list, so only a judge could score it");
}

}  // namespace kvartet
