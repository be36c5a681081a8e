#include "report/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace kvartet {
namespace {

struct Stage {
  std::string head;
  std::vector<std::pair<std::string, std::string>> keys;
};

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> out;
  for (;;) {
    const std::size_t cut = text.find(at);
    out.emplace_back(text.substr(0, cut));
    if (cut == std::string_view::npos) return out;
    text.remove_prefix(cut + 1);
  }
}

std::vector<Stage> stages_of(const std::string& spec) {
  std::vector<Stage> out;
  for (const std::string& text : split(spec, '+')) {
    Stage stage;
    const std::size_t colon = text.find(':');
    stage.head = text.substr(0, colon);
    if (colon != std::string::npos) {
      for (const std::string& pair : split(std::string_view(text).substr(colon + 1), ',')) {
        const std::size_t equals = pair.find('=');
        stage.keys.emplace_back(pair.substr(0, equals), equals == std::string::npos ? "" : pair.substr(equals + 1));
      }
    }
    out.push_back(std::move(stage));
  }
  return out;
}

std::string heads_of(const std::vector<Stage>& stages) {
  std::string out;
  for (const Stage& stage : stages) out += (out.empty() ? "" : "+") + stage.head;
  return out;
}

}  // namespace

std::map<std::string, std::string> short_names(const std::vector<std::string>& specs) {
  using Place = std::pair<std::string, std::string>;  // heads, "stage number key"
  std::map<Place, std::set<std::string>> values;
  std::map<std::string, int> alike;
  std::map<Place, int> having;
  const auto place = [](const std::string& heads, std::size_t stage, const std::string& key) {
    return Place(heads, fmt::format("{} {}", stage, key));
  };
  for (const std::string& spec : specs) {
    const std::vector<Stage> stages = stages_of(spec);
    const std::string heads = heads_of(stages);
    ++alike[heads];
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (const auto& [key, value] : stages[i].keys) {
        values[place(heads, i, key)].insert(value);
        ++having[place(heads, i, key)];
      }
    }
  }
  std::map<std::string, std::string> out;
  std::map<std::string, int> used;
  for (const std::string& spec : specs) {
    const std::vector<Stage> stages = stages_of(spec);
    const std::string heads = heads_of(stages);
    std::string name;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      name += (i == 0 ? "" : "+") + stages[i].head;
      char before = ':';
      for (const auto& [key, value] : stages[i].keys) {
        const Place here = place(heads, i, key);
        const bool telling = key == "bits" || key == "budget" || values[here].size() > 1 || having[here] < alike[heads];
        if (!telling) continue;
        name += before + key + (value.empty() ? "" : "=" + value);
        before = ',';
      }
    }
    out[spec] = name;
    ++used[name];
  }
  for (auto& [spec, name] : out) {
    if (used[name] > 1) name = spec;  // keys that only one of two has
  }
  return out;
}

std::vector<std::string> specs_of(const StoredResults& results) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const Outcome& o : results.outcomes) {
    if (seen.insert(o.spec).second) out.push_back(o.spec);
  }
  std::ranges::stable_partition(out, [](const std::string& spec) { return spec == kReference; });
  return out;
}

WorkKind workload_of(std::string_view metric) {
  if (metric.starts_with("rouge")) return WorkKind::kSummaries;
  if (metric.starts_with("code_sim")) return WorkKind::kCode;
  if (metric == "classification") return WorkKind::kClasses;
  if (metric == "likelihood") return WorkKind::kLikelihood;
  return WorkKind::kQuestions;
}

const char* workload_name(WorkKind workload) {
  switch (workload) {
    case WorkKind::kQuestions: return "questions with short answers";
    case WorkKind::kSummaries: return "summaries";
    case WorkKind::kClasses: return "sorting into classes";
    case WorkKind::kCode: return "code completion";
    case WorkKind::kLikelihood: return "reference texts, judged by likelihood alone";
  }
  return "";
}

std::string signed_text(double x, int decimals) {
  const std::string digits = fmt::format("{:.{}f}", std::abs(x), decimals);
  if (digits.find_first_not_of("0.") == std::string::npos) return digits;
  return (x < 0 ? "−" : "+") + digits;
}

std::string interval_text(double low, double high, int decimals) {
  return fmt::format("{} to {}", signed_text(low, decimals), signed_text(high, decimals));
}

std::string rate_text(double tokens_per_s) { return fmt::format("{:.{}f}", tokens_per_s, tokens_per_s < 10 ? 2 : 1); }

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) out += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return out;
}

std::string grouped(double x) {
  const std::string digits = fmt::format("{:.0f}", std::abs(x));
  std::string out = x < 0 && digits != "0" ? "−" : "";
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string range_text(double low, double high, int decimals) {
  const std::string a = fmt::format("{:.{}f}", low, decimals);
  const std::string b = fmt::format("{:.{}f}", high, decimals);
  return a == b ? a : a + " to " + b;
}

}  // namespace kvartet
