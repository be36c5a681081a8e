#include "cache/spec_grammar.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <numeric>

#include <fmt/format.h>

namespace kvartet {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// `what` names the place in messages: "the name", "bits".
Result<SidedText> parse_sided(std::string_view what, std::string_view text) {
  const std::vector<std::string_view> parts = split(text, '/');
  if (parts.size() > 2) {
    return usage_error(fmt::format("{} = {} has {} parts; write one, or two as keys/values", what, quoted(text), parts.size()));
  }
  for (const std::string_view part : parts) {
    if (part.empty())
      return usage_error(fmt::format("{} has an empty side in {}; write one value, or keys/values", what, quoted(text)));
  }
  return SidedText{std::string(parts.front()), std::string(parts.back())};
}

Result<SpecSetting> parse_setting(std::string_view stage, std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    return usage_error(
        fmt::format("{} in {} is not a setting; write key=value, several separated by ','", quoted(text), quoted(stage)));
  }
  const std::string_view name = text.substr(0, equals);
  KV_ASSIGN(SidedText value, parse_sided(printable(name), text.substr(equals + 1)));
  return SpecSetting{std::string(name), std::move(value)};
}

Result<SpecStage> parse_stage(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  if (name.empty()) return usage_error(fmt::format("a stage without a name in {}; write name or name:key=value", quoted(text)));
  SpecStage stage;
  KV_ASSIGN(stage.name, parse_sided("the method name", name));
  if (colon == std::string_view::npos) return stage;
  for (const std::string_view part : split(text.substr(colon + 1), ',')) {
    KV_ASSIGN(SpecSetting setting, parse_setting(text, part));
    if (stage.find(setting.name) != nullptr) {
      return usage_error(fmt::format("{} is set twice in {}; keep one", quoted(setting.name), quoted(text)));
    }
    stage.settings.push_back(std::move(setting));
  }
  return stage;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // distances of a[0, i) to every prefix of b
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (lower(a[i]) == lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

const SpecSetting* SpecStage::find(std::string_view setting) const {
  const auto it = std::find_if(settings.begin(), settings.end(), [&](const SpecSetting& s) { return s.name == setting; });
  return it == settings.end() ? nullptr : &*it;
}

Result<std::vector<SpecStage>> parse_stages(std::string_view text) {
  if (text.empty()) return usage_error("the cache spec is empty; the plain cache is 'full'");
  // Far above any sensible spec; keeps the edit distances of a hostile one cheap.
  constexpr std::size_t kLongest = 1000;
  if (text.size() > kLongest) {
    return usage_error(
        fmt::format("the cache spec {} has {} characters; at most {} are read", quoted(text), text.size(), kLongest));
  }
  std::vector<SpecStage> stages;
  for (const std::string_view part : split(text, '+')) {
    if (part.empty())
      return usage_error(fmt::format("{} has an empty stage; write stage+stage, such as snapkv+kivi", quoted(text)));
    KV_ASSIGN(SpecStage stage, parse_stage(part));
    stages.push_back(std::move(stage));
  }
  return stages;
}

Result<int> parse_whole(std::string_view key, std::string_view text, int least, int most) {
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range ||
      (error == std::errc() && end == text.data() + text.size() && (number < least || number > most))) {
    const bool low = text.front() == '-' || (error == std::errc() && number < least);
    return usage_error(
        fmt::format("{}={} is outside {}..{}; the nearest is {}={}", key, quoted(text), least, most, key, low ? least : most));
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    return usage_error(fmt::format("{}={} is not a whole number; write one from {} to {}", key, quoted(text), least, most));
  }
  return static_cast<int>(number);
}

std::optional<std::string_view> likely_name(std::string_view word, std::span<const std::string_view> names) {
  const auto edits = [&](std::string_view name) { return edit_distance(word, name); };
  const auto nearest = std::ranges::min_element(names, {}, edits);
  if (nearest == names.end() || 2 * edits(*nearest) > std::max(word.size(), nearest->size())) return std::nullopt;
  return *nearest;
}

std::string choice_hint(std::string_view word, std::span<const std::string_view> names, std::string_view before) {
  const std::string choices = "choose " + list_names(names);
  const std::optional<std::string_view> likely = likely_name(word, names);
  return likely ? fmt::format("the nearest is {}{} ({})", before, *likely, choices) : choices;
}

std::string list_names(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string shown(text.substr(0, kShown));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return shown + (text.size() > kShown ? "..." : "");
}

std::string quoted(std::string_view text) { return fmt::format("'{}'", printable(text)); }

}  // namespace kvartet
