#include "plan/candidates.h"

#include <array>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cache/format_label.h"
#include "cache/spec.h"
#include "cache/spec_method.h"

namespace kvartet {
namespace {

// Shares of the prompt kept. A grid and not a fit to the memory at hand, so that losses of neighbours can be compared.
constexpr std::array<std::string_view, 6> kBudgets = {"0.05", "0.1", "0.25", "0.5", "0.75", "0.9"};

// "bits=4|2|8, group=32|64 (or x, y)" -> the values of one key, the default first; empty: no such key.
std::vector<std::string> listed_values(std::string_view keys, std::string_view key) {
  std::size_t at = 0;
  while (true) {
    at = keys.find(key, at);
    if (at == std::string_view::npos) return {};
    const bool starts = at == 0 || keys[at - 1] == ' ' || keys[at - 1] == ',';
    if (starts && keys.substr(at + key.size()).starts_with('=')) break;
    ++at;
  }
  std::string_view text = keys.substr(at + key.size() + 1);
  text = text.substr(0, text.find_first_of(" ,("));
  std::vector<std::string> values;
  while (!text.empty()) {
    const std::size_t bar = text.find('|');
    values.emplace_back(text.substr(0, bar));
    if (bar == std::string_view::npos) break;
    text.remove_prefix(bar + 1);
  }
  return values;
}

class CandidateList {
 public:
  // Takes the spec if the grammar does. Its canonical form decides whether it is new.
  bool add(const std::string& text) {
    Result<CacheSpec> spec = parse_spec(text);
    if (!spec.ok()) return false;
    if (seen_.insert(spec->canonical).second) specs_.push_back(std::move(*spec));
    return true;
  }
  std::vector<CacheSpec> take() { return std::move(specs_); }

 private:
  std::set<std::string> seen_;
  std::vector<CacheSpec> specs_;
};

std::string stage(const std::string& name, const std::string& settings) {
  return settings.empty() ? name : name + ":" + settings;
}

std::vector<std::string> stages_of(const SpecMethod& method, const std::string& searched_key) {
  std::vector<std::string> stages;
  for (const std::string& settings : settings_tried(method.info.keys, method.info.candidates, searched_key)) {
    stages.push_back(stage(method.info.name, settings));
  }
  return stages;
}

// A reference wider than f16 saves nothing and is nobody's candidate.
bool saves(const SpecMethod& method) { return method.info.name != "f32"; }

// Two methods, one per side: the settings of one of them, when the pair takes them.
void add_pairs(CandidateList* list) {
  for (const SpecMethod& key : quantizer_methods()) {
    for (const SpecMethod& value : quantizer_methods()) {
      if (key.info.name == value.info.name || !saves(key) || !saves(value)) continue;
      const std::string name = key.info.name + "/" + value.info.name;
      if (list->add(name)) {
        for (const SpecMethod* side : {&key, &value})
          for (const std::string& bits : listed_values(side->info.keys, "bits")) list->add(stage(name, "bits=" + bits));
      }
    }
  }
}

}  // namespace

std::vector<std::string> settings_tried(const std::string& keys, const std::vector<std::string>& own,
                                        const std::string& searched_key) {
  std::vector<std::string> settings = {""};
  settings.insert(settings.end(), own.begin(), own.end());
  if (searched_key == "budget") {
    if (keys.find("budget") == std::string::npos) return settings;
    for (const std::string_view budget : kBudgets) settings.push_back(fmt::format("budget={}", budget));
    return settings;
  }
  const std::vector<std::string> values = listed_values(keys, searched_key);
  for (const std::string& key : values)
    for (const std::string& value : values) {
      if (key == value)
        settings.push_back(fmt::format("{}={}", searched_key, key));
      else if (std::atof(key.c_str()) > std::atof(value.c_str()))
        settings.push_back(fmt::format("{}={}/{}", searched_key, key, value));
    }
  return settings;
}

std::vector<CacheSpec> candidate_specs() {
  CandidateList list;
  list.add("full");
  std::vector<std::string> quantizers;
  for (const SpecMethod& method : quantizer_methods()) {
    if (!saves(method)) continue;
    for (std::string& stage : stages_of(method, "bits")) {
      if (list.add(stage)) quantizers.push_back(std::move(stage));
    }
  }
  add_pairs(&list);
  for (const SpecMethod& method : evictor_methods()) {
    for (const std::string& evict : stages_of(method, "budget")) {
      if (!list.add(evict)) continue;
      for (const std::string& quantize : quantizers) list.add(evict + "+" + quantize);
    }
  }
  for (const SpecMethod& method : offload_methods())
    for (const std::string& select : stages_of(method, "budget")) list.add(select);
  return list.take();
}

std::vector<CacheSpec> calibrated_formats(const std::vector<CacheSpec>& candidates) {
  std::vector<CacheSpec> formats;
  std::set<std::string> known;
  const auto keeps_all = [](const CacheSpec& spec) { return spec.evict == Evict::kNone && !spec.offload; };
  const auto add = [&](const CacheSpec& spec) {
    formats.push_back(spec);
    known.insert(format_label(spec.key));
    known.insert(format_label(spec.value));
  };
  for (const CacheSpec& spec : candidates)
    if (keeps_all(spec) && spec.key == spec.value) add(spec);
  for (const CacheSpec& spec : candidates) {
    if (!keeps_all(spec)) continue;
    for (const FormatRequest* side : {&spec.key, &spec.value}) {
      if (known.contains(format_label(*side))) continue;
      // On both sides where the method writes both.
      const Result<CacheSpec> both = parse_spec(fmt::format("{}:bits={}", side->name, side->bits));
      add(both.ok() && both->key == *side && both->value == *side ? *both : spec);
    }
  }
  return formats;
}

}  // namespace kvartet
