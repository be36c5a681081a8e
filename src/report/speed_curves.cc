#include "report/speed_curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "report/json_fields.h"

namespace kvartet {
namespace {

using nlohmann::json;

// False: this depth of the curve is known already, and which of the two rates holds nobody can tell.
bool add_point(const std::string& engine, const std::string& spec, const SpeedPoint& point, std::vector<SpeedCurve>* curves) {
  auto at = std::ranges::find_if(*curves, [&](const SpeedCurve& c) { return c.engine == engine && c.spec == spec; });
  if (at == curves->end()) at = curves->insert(at, SpeedCurve{engine, spec, {}});
  if (std::ranges::find(at->points, point.depth, &SpeedPoint::depth) != at->points.end()) return false;
  at->points.push_back(point);
  return true;
}

Status add_row(const json& row, SpeedCurves* out, JsonFields* fields) {
  const std::string engine = fields->word(row, "engine");
  const std::string spec = fields->word(row, "spec");
  const std::string phase = fields->word(row, "phase");
  const SpeedPoint point{fields->whole(row, "depth"), fields->number(row, "tokens_per_s")};
  if (phase != "decode" && phase != "prefill") fields->miss("phase");
  if (!(point.tokens_per_s > 0)) fields->miss("tokens_per_s");
  if (!fields->ok()) return {};
  if (add_point(engine, spec, point, phase == "decode" ? &out->decode : &out->prefill)) return {};
  return bad_input(fmt::format("{} measures {} of {} {} at {} more than once; leave one of them", out->source, phase, engine,
                               spec, counted(point.depth, "token")));
}

}  // namespace

Result<SpeedCurves> parse_speed(std::string_view text, const std::string& source) {
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    return bad_input(fmt::format("{} is no JSON document; write it with 'kvartet speed --json'", source));
  }
  JsonFields fields;
  SpeedCurves out;
  out.source = source;
  out.model = fields.word(document, "model");
  out.filled_directly = fields.word(document, "fill") == "direct";
  const json& machine = fields.part(document, "machine");
  out.cpu = fields.word(machine, "cpu");
  out.threads = fields.whole(machine, "threads");
  out.read_gb_per_s = fields.number(machine, "read_gb_per_s");
  const json& rows = fields.part(document, "rows");
  if (!rows.is_array()) fields.miss("rows");
  for (const json& row : rows.is_array() ? rows : json::array()) KV_TRY(add_row(row, &out, &fields));
  if (!fields.ok()) {
    return bad_input(
        fmt::format("{} holds no speeds that this version can read ({} is missing or wrong); write it with 'kvartet "
                    "speed --json'",
                    source, fields.missing()));
  }
  if (out.decode.empty()) return bad_input(fmt::format("{} holds no decode rate", source));
  for (std::vector<SpeedCurve>* curves : {&out.decode, &out.prefill})
    for (SpeedCurve& curve : *curves) std::ranges::sort(curve.points, {}, &SpeedPoint::depth);
  return out;
}

}  // namespace kvartet
