#include "report/diagnosis.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace kvartet {
namespace {

using nlohmann::json;

constexpr std::size_t kMostCells = 1 << 16;  // of a map, its lines counted too: above any model
constexpr double kMostFigure = 1e9;          // no share, count or relative error is larger

// Reads fields and remembers the first that is not what it should be.
class Fields {
 public:
  bool ok() const { return missing_.empty(); }
  const std::string& missing() const { return missing_; }

  double number(const json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (object.is_object() && found != object.end() && found->is_number()) {
      const auto x = found->get<double>();
      if (std::abs(x) < kMostFigure) return x;
    }
    miss(key);
    return 0;
  }
  int whole(const json& object, const char* key) {
    const double x = number(object, key);
    if (x < 0) miss(key);
    return x >= 0 ? static_cast<int>(x) : 0;
  }
  const json& part(const json& object, const char* key) {
    static const json kNothing;
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (object.is_object() && found != object.end()) return *found;
    miss(key);
    return kNothing;
  }
  std::string word(const json& object, const char* key) {
    const json& found = part(object, key);
    if (found.is_string()) return found.get<std::string>();
    miss(key);
    return {};
  }
  DiagnosedFigure figure(const json& object, const char* key) {
    const json& found = part(object, key);
    DiagnosedFigure out{.mean = number(found, "mean"), .p5 = number(found, "p5"), .p95 = number(found, "p95"), .map = {}};
    const json& map = part(found, "map");
    if (!map.is_array()) miss("map");
    std::size_t cells = 0;
    for (const json& line : map.is_array() ? map : json::array()) {
      out.map.emplace_back();
      if (!line.is_array() || (cells += line.size() + 1) > kMostCells || line.size() != map.front().size()) {
        miss("map");
        return out;
      }
      for (const json& x : line)
        out.map.back().push_back(x.is_number() ? x.get<double>() : std::numeric_limits<double>::quiet_NaN());
    }
    return out;
  }

 private:
  void miss(const char* key) {
    if (missing_.empty()) missing_ = key;
  }
  std::string missing_;
};

DiagnosedCache cache_of(const json& row, Fields* fields) {
  DiagnosedCache cache;
  cache.spec = fields->word(row, "spec");
  if (row.is_object() && row.contains("sweep_of")) {
    cache.sweep_of = fields->word(row, "sweep_of");
    cache.budget_share = fields->number(row, "budget_share");
  }
  cache.selected_rows = fields->whole(row, "selected_rows");
  cache.recall = fields->figure(row, "recall");
  cache.mass = fields->figure(row, "mass");
  cache.mass_ratio = fields->figure(row, "mass_ratio");
  const json& errors = fields->part(row, "output_error");
  cache.output_error = fields->figure(errors, "stored_selected");
  const auto mean = [&](const json& object, const char* key) { return fields->number(fields->part(object, key), "mean"); };
  cache.exact_oracle = mean(errors, "exact_oracle");
  cache.stored_oracle = mean(errors, "stored_oracle");
  cache.exact_selected = mean(errors, "exact_selected");
  cache.oracle_mass = mean(row, "oracle_mass");
  cache.aggregation_loss = mean(row, "aggregation_loss");
  cache.key_error = mean(row, "key_error");
  cache.key_error_p99 = fields->number(row, "key_error_p99");
  cache.reuse = mean(row, "reuse");
  if (row.is_object() && row.contains("gold_recall")) {
    cache.gold = fields->figure(row, "gold_recall");
    cache.gold_by_one = mean(row, "gold_by_one_head");
  }
  return cache;
}

// A cache that takes all rows at its own budget is in no diagnosis, those of its sweep are: they stand for themselves then.
void free_orphans(std::vector<DiagnosedCache>* caches) {
  std::set<std::string> bases;
  for (const DiagnosedCache& c : *caches)
    if (c.sweep_of.empty()) bases.insert(c.spec);
  for (DiagnosedCache& c : *caches)
    if (!bases.contains(c.sweep_of)) c.sweep_of.clear();
}

}  // namespace

Result<SelectionDiagnosis> parse_diagnosis(std::string_view text, const std::string& source) {
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    return bad_input(fmt::format("{} is no JSON document; write it with 'kvartet fidelity --diagnose --json'", source));
  }
  const auto inner = document.find("diagnosis");
  const json& diagnosis = inner != document.end() ? *inner : document;
  Fields fields;
  SelectionDiagnosis out;
  out.source = source;
  if (diagnosis.is_object() && diagnosis.contains("texts")) out.texts = fields.whole(diagnosis, "texts");
  out.prefix_tokens = fields.whole(diagnosis, "prefix_tokens");
  out.steps = fields.whole(diagnosis, "steps");
  out.gold_tokens = fields.whole(diagnosis, "gold_tokens");
  const json& rows = fields.part(diagnosis, "rows");
  if (rows.is_array())
    for (const json& row : rows) out.caches.push_back(cache_of(row, &fields));
  free_orphans(&out.caches);
  if (!fields.ok() || !rows.is_array()) {
    return bad_input(
        fmt::format("{} holds no diagnosis that this version can read ({} is missing or wrong); write it with 'kvartet "
                    "fidelity --diagnose --json'",
                    source, fields.ok() ? "rows" : fields.missing()));
  }
  if (out.caches.empty()) {
    return bad_input(fmt::format("{} holds a diagnosis of no cache: none of those compared selects rows", source));
  }
  return out;
}

}  // namespace kvartet
