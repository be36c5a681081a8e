#include "report/diagnosis.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "report/json_fields.h"

namespace kvartet {
namespace {

using nlohmann::json;

constexpr std::size_t kMostCells = 1 << 16;  // of a map, its lines counted too: above any model

DiagnosedFigure figure_of(const json& object, const char* key, JsonFields* fields) {
  const json& found = fields->part(object, key);
  DiagnosedFigure out{
      .mean = fields->number(found, "mean"), .p5 = fields->number(found, "p5"), .p95 = fields->number(found, "p95"), .map = {}};
  const json& map = fields->part(found, "map");
  if (!map.is_array()) fields->miss("map");
  std::size_t cells = 0;
  for (const json& line : map.is_array() ? map : json::array()) {
    out.map.emplace_back();
    if (!line.is_array() || (cells += line.size() + 1) > kMostCells || line.size() != map.front().size()) {
      fields->miss("map");
      return out;
    }
    for (const json& x : line)
      out.map.back().push_back(x.is_number() ? x.get<double>() : std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

DiagnosedCache cache_of(const json& row, JsonFields* fields) {
  DiagnosedCache cache;
  cache.spec = fields->word(row, "spec");
  if (row.is_object() && row.contains("sweep_of")) {
    cache.sweep_of = fields->word(row, "sweep_of");
    cache.budget_share = fields->number(row, "budget_share");
  }
  cache.selected_rows = fields->whole(row, "selected_rows");
  cache.recall = figure_of(row, "recall", fields);
  cache.mass = figure_of(row, "mass", fields);
  cache.mass_ratio = figure_of(row, "mass_ratio", fields);
  const json& errors = fields->part(row, "output_error");
  cache.output_error = figure_of(errors, "stored_selected", fields);
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
    cache.gold = figure_of(row, "gold_recall", fields);
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
  JsonFields fields;
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
