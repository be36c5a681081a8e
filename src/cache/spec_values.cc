// How the keys of a stage are read (spec_method.h).
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "cache/spec_method.h"

namespace kvartet {
bool contains(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::string stage_name(const SpecStage& stage) {
  return stage.name.paired() ? stage.name.key + "/" + stage.name.value : stage.name.key;
}

const SpecMethod* find_method(std::span<const SpecMethod> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const SpecMethod& m) { return m.info.name == name; });
  return found == table.end() ? nullptr : &*found;
}

Status check_keys(const SpecStage& stage, Names allowed) {
  for (const SpecSetting& setting : stage.settings) {
    if (contains(allowed, setting.name)) continue;
    const std::string name = stage_name(stage);
    if (allowed.empty())
      return usage_error(fmt::format("'{}' takes no keys, not {}; write {} alone", name, quoted(setting.name), name));
    const std::optional<std::string_view> likely = likely_name(setting.name, allowed);
    return usage_error(fmt::format("'{}' has no key {}; {}it takes {}", name, quoted(setting.name),
                                   likely ? fmt::format("the nearest is '{}'; ", *likely) : "", list_names(allowed)));
  }
  return {};
}

// The text of a key that takes one value, or the default.
Result<std::string> single_text(const SpecStage& stage, std::string_view key, std::string_view otherwise) {
  const SpecSetting* setting = stage.find(key);
  if (setting == nullptr) return std::string(otherwise);
  if (setting->value.paired()) {
    return usage_error(fmt::format("'{}' of '{}' takes one value, not the pair '{}/{}'; write {}={}", key, stage_name(stage),
                                   printable(setting->value.key), printable(setting->value.value), key,
                                   printable(setting->value.key)));
  }
  return setting->value.key;
}

Result<int> single_whole(const SpecStage& stage, std::string_view key, int otherwise, int least, int most) {
  KV_ASSIGN(const std::string text, single_text(stage, key, std::to_string(otherwise)));
  return parse_whole(key, text, least, most);
}

Result<std::string> single_word(const SpecStage& stage, std::string_view key, Names words) {
  KV_ASSIGN(std::string text, single_text(stage, key, words.front()));
  if (!contains(words, text)) {
    return usage_error(fmt::format("{}={} is unknown; {}", key, quoted(text), choice_hint(text, words, fmt::format("{}=", key))));
  }
  return text;
}

Result<int> one_of(std::string_view key, std::string_view text, std::span<const int> choices) {
  KV_ASSIGN(const int number, parse_whole(key, text, 0, kMostRows));
  const int nearest = *std::min_element(choices.begin(), choices.end(),
                                        [&](int a, int b) { return std::abs(a - number) < std::abs(b - number); });
  if (nearest == number) return number;
  std::vector<int> ascending(choices.begin(), choices.end());  // the tables begin with the default
  std::sort(ascending.begin(), ascending.end());
  return usage_error(
      fmt::format("{}={} is not one of {}; the nearest is {}={}", key, number, fmt::join(ascending, ", "), key, nearest));
}

Result<double> single_share(const SpecStage& stage, std::string_view key, double otherwise) {
  KV_ASSIGN(const std::string text, single_text(stage, key, fmt::format("{}", otherwise)));
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share, std::chars_format::general);
  if (error == std::errc() && end == text.data() + text.size() && share >= 0 && share <= 1) return share;
  return usage_error(
      fmt::format("{}={} is not a share between 0 and 1; write for example {}={}", key, quoted(text), key, otherwise));
}

Result<Budget> parse_budget(std::string_view text) {
  if (text.find_first_not_of("-0123456789") == std::string_view::npos) {
    KV_ASSIGN(const int rows, parse_whole("budget", text, 1, kMostRows));
    return Budget{static_cast<double>(rows)};
  }
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share, std::chars_format::general);
  const bool read = error == std::errc() && end == text.data() + text.size();
  if (read && share > 0 && share < 1) return Budget{share};
  const std::string_view hint = read && share >= 1 && std::isfinite(share) ? "0.99, or 'full' to keep every row" : "0.25";
  return usage_error(
      fmt::format("budget={} is neither a whole number of rows nor a share between 0 and 1; write rows such as 1024, or a share "
                  "such as {}",
                  quoted(text), hint));
}

bool is_share(const Budget& budget) { return budget.value < 1; }
std::string print_budget(const Budget& budget) {
  return is_share(budget) ? fmt::format("{}", budget.value) : fmt::format("{}", static_cast<int>(budget.value));
}

std::string print_sided(const SidedText& text) { return text.paired() ? text.key + "/" + text.value : text.key; }

}  // namespace kvartet
