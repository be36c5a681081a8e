#include "bench/metrics/entry_match.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace kvartet {
namespace {

using Json = nlohmann::json;

struct GoldField {
  std::string key;
  std::string value;  // normalized
};
using GoldEntries = std::map<std::string, std::array<GoldField, 2>>;  // by normalized name

// The typographic apostrophe counts as the plain one; nothing else is changed.
std::string normalized(std::string_view text) {
  constexpr std::string_view kCurly = "\xE2\x80\x99";
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool curly = text.substr(at, kCurly.size()) == kCurly;
    out += curly ? '\'' : text[at];
    at += curly ? kCurly.size() : 1;
  }
  return out;
}

Result<GoldEntries> gold_entries(std::string_view text) {
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return bad_input("the gold answer is not a JSON array");
  GoldEntries entries;
  for (const Json& object : list) {
    const bool complete = object.is_object() && object.size() == 3 && object.contains("name");
    if (!complete) return bad_input("a gold entry is not an object of name and two more fields");
    std::array<GoldField, 2> fields;
    std::size_t next = 0;
    for (const auto& [key, value] : object.items()) {
      if (!value.is_string())
        return bad_input(fmt::format("the field {} of a gold entry is a JSON {}, not a text", key, value.type_name()));
      if (key != "name") fields[next++] = {key, normalized(value.get<std::string>())};
    }
    const std::string name = object["name"].get<std::string>();
    if (!entries.emplace(normalized(name), fields).second)
      return bad_input(fmt::format("two gold entries have the name {}", name));
  }
  return entries;
}

// The only bracket pair of the text, brackets included; empty: there is none, or more than one.
std::string_view bracket_span(std::string_view text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  if (open != text.rfind('[') || close != text.rfind(']')) return {};
  return text.substr(open, close - open + 1);
}

// Python's `"name" not in element` raises for numbers, booleans and null, and finds "name" inside a text, whose indexing
// then raises.
bool released_scorer_raises(const Json& element) {
  if (element.is_object()) return false;
  return !element.is_string() || element.get<std::string>().find("name") != std::string::npos;
}

class Scorer {
 public:
  Scorer(GoldEntries gold, EntryScoring scoring) : remaining_(std::move(gold)), scoring_(scoring) {
    out_.gold = static_cast<int>(remaining_.size());
  }

  Status add(const Json& element) {
    if (scoring_ == EntryScoring::kStrict && released_scorer_raises(element)) {
      return bad_input(fmt::format("the released scorer fails on a list element that is a JSON {}", element.type_name()));
    }
    const auto name = element.is_object() ? element.find("name") : element.end();
    const bool named = element.is_object() && name != element.end() && name->is_string();
    const auto gold = named ? remaining_.find(normalized(name->get<std::string>())) : remaining_.end();
    if (gold == remaining_.end()) {
      ++out_.unknown;
      return {};
    }
    double credit = 1;
    for (const GoldField& field : gold->second) KV_TRY(compare(element, field, credit));
    sum_ += credit;
    ++out_.matched;
    remaining_.erase(gold);
    return {};
  }

  EntryScore result() {
    const int denominator = out_.gold + out_.unknown;
    out_.score = denominator == 0 ? 0 : sum_ / denominator;
    return out_;
  }

 private:
  Status compare(const Json& element, const GoldField& field, double& credit) {
    const auto value = element.find(field.key);
    if (value == element.end() || value->is_null()) {
      credit -= 0.5;
      ++out_.missing_fields;
      return {};
    }
    const bool readable = value->is_string() || value->is_number_integer();
    if (!readable && scoring_ == EntryScoring::kStrict) {
      return bad_input(fmt::format("the released scorer fails on the field {}, a JSON {}", field.key, value->type_name()));
    }
    const std::string text = value->is_string() ? normalized(value->get<std::string>())
                             : readable         ? value->dump()
                                                : std::string();
    if (!readable || text != field.value) {
      credit -= 0.25;
      ++out_.wrong_values;
    }
    return {};
  }

  GoldEntries remaining_;
  EntryScoring scoring_;
  EntryScore out_;
  double sum_ = 0;
};

std::string_view gold_of(Texts references) {
  return references.empty() ? std::string_view() : std::string_view(references.front());
}

}  // namespace

Result<EntryScore> score_entries(std::string_view prediction, std::string_view gold, EntryScoring scoring) {
  KV_ASSIGN(GoldEntries entries, gold_entries(gold));
  EntryScore failure = {.format_failure = true, .gold = static_cast<int>(entries.size())};
  const std::string_view span = bracket_span(prediction);
  if (span.empty()) return failure;
  const Json list = Json::parse(span, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return failure;
  Scorer scorer(std::move(entries), scoring);
  for (const Json& element : list) KV_TRY(scorer.add(element));
  return scorer.result();
}

double entry_match(std::string_view prediction, Texts references, Texts) {
  const Result<EntryScore> result = score_entries(prediction, gold_of(references), EntryScoring::kRobust);
  return result.ok() ? result->score : 0;
}

std::vector<ScorePart> entry_match_parts(std::string_view prediction, Texts references, Texts) {
  const Result<EntryScore> result = score_entries(prediction, gold_of(references), EntryScoring::kRobust);
  if (!result.ok()) return {};
  const bool retrieval_failure = !result->format_failure && result->score < 1;
  const double names = result->gold == 0 ? 0 : static_cast<double>(result->matched) / result->gold;
  return {{"format_failures", result->format_failure ? 1.0 : 0.0},
          {"retrieval_failures", retrieval_failure ? 1.0 : 0.0},
          {"names_found", names}};
}

Status check_entries(std::string_view, Texts references, Texts) { return gold_entries(gold_of(references)).status(); }

Status check_entries_strict(std::string_view prediction, Texts references, Texts) {
  return score_entries(prediction, gold_of(references), EntryScoring::kStrict).status();
}

}  // namespace kvartet
