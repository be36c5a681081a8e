// The section on speed by depth: each cache alone on the machine, and the peer in the same rounds (kvartet speed).
#include <algorithm>
#include <set>

#include "core/counted.h"
#include "report/page_parts.h"
#include "report/speed_curves.h"

namespace kvartet {
namespace {

constexpr const char* kOurs = "kvartet";

std::vector<int> depths_of(const std::vector<SpeedCurve>& curves) {
  std::set<int> depths;
  for (const SpeedCurve& curve : curves)
    for (const SpeedPoint& point : curve.points) depths.insert(point.depth);
  return {depths.begin(), depths.end()};
}

const SpeedPoint* point_at(const SpeedCurve& curve, int depth) {
  const auto at = std::ranges::find(curve.points, depth, &SpeedPoint::depth);
  return at == curve.points.end() ? nullptr : &*at;
}

bool reference(const SpeedCurve& curve) { return curve.engine == kOurs && curve.spec == kReference; }

std::string label_of(const SpeedCurve& curve, const std::map<std::string, std::string>& names) {
  return curve.engine == kOurs ? names.at(curve.spec) : curve.engine + " " + curve.spec;
}

std::map<std::string, std::string> names_of(const SpeedCurves& speed) {
  std::vector<std::string> specs;
  for (const std::vector<SpeedCurve>* curves : {&speed.decode, &speed.prefill})
    for (const SpeedCurve& curve : *curves)
      if (curve.engine == kOurs && std::ranges::find(specs, curve.spec) == specs.end()) specs.push_back(curve.spec);
  return short_names(specs);
}

struct PhaseWish {
  std::string id;
  std::string title;
  std::string caption;
};

// Tokens per second, and in brackets how many times as many as `full` at this depth.
void write_rates(Html& out, const std::vector<SpeedCurve>& curves, const std::map<std::string, std::string>& names,
                 const std::string& caption) {
  const std::vector<int> depths = depths_of(curves);
  const auto full = std::ranges::find_if(curves, reference);
  std::vector<std::string> columns = {"cache"};
  for (const int depth : depths) columns.push_back(fmt::format("{} tokens", grouped(depth)));
  open_table(out, caption, columns);
  for (const SpeedCurve& curve : curves) {
    out.open("tr");
    out.element("th", label_of(curve, names), {{"scope", "row"}, {"title", curve.spec}});
    for (const int depth : depths) {
      const SpeedPoint* mine = point_at(curve, depth);
      const SpeedPoint* exact = full == curves.end() || reference(curve) ? nullptr : point_at(*full, depth);
      std::string text = mine == nullptr ? "–" : rate_text(mine->tokens_per_s);
      if (mine != nullptr && exact != nullptr) text += fmt::format(" (×{:.2f})", mine->tokens_per_s / exact->tokens_per_s);
      cell(out, text);
    }
    out.close();
  }
  close_table(out);
}

void write_curves(Html& out, const std::vector<SpeedCurve>& curves, const std::map<std::string, std::string>& names,
                  const PhaseWish& wish) {
  if (depths_of(curves).size() < 2) return;
  Chart chart;
  chart.id = wish.id;
  chart.title = wish.title;
  chart.caption = wish.caption;
  chart.x_label = "tokens in the cache";
  chart.y_label = "tokens per second";
  chart.y_decimals = 1;
  chart.x_decimals = 0;
  for (const SpeedCurve& curve : curves) {
    ChartSeries series{curve.spec, label_of(curve, names), static_cast<int>(chart.series.size()), reference(curve), {}};
    for (const SpeedPoint& point : curve.points)
      series.points.push_back({static_cast<double>(point.depth), point.tokens_per_s, {}, {}});
    chart.series.push_back(std::move(series));
  }
  out.open("div", {{"class", "charts"}});
  write_lines(out, chart);
  out.close();
}

void write_phase(Html& out, const std::vector<SpeedCurve>& curves, const std::map<std::string, std::string>& names,
                 const PhaseWish& wish) {
  if (curves.empty()) return;
  write_rates(out, curves, names, wish.title);
  write_curves(out, curves, names, wish);
}

void write_one(Html& out, const SpeedCurves& speed, std::size_t number) {
  const std::map<std::string, std::string> names = names_of(speed);
  out.element("h3", fmt::format("{} on {}", speed.model, speed.cpu));
  out.element("p", fmt::format("{}: {}, plain reading at {:.1f} GB/s in the same rounds, caches filled {}.", speed.source,
                               counted(speed.threads, "thread"), speed.read_gb_per_s,
                               speed.filled_directly ? "directly with random rows" : "by real prompts"));
  write_phase(out, speed.decode, names,
              {.id = fmt::format("speed-decode-{}", number),
               .title = "Tokens per second while answering, by tokens in the cache",
               .caption = "Each cache alone on the machine, taking turns."});
  write_phase(out, speed.prefill, names,
              {.id = fmt::format("speed-prefill-{}", number),
               .title = "Prompt tokens per second, by length of the prompt",
               .caption = "From empty to that length."});
}

}  // namespace

void write_speed_section(Html& out, std::span<const SpeedCurves> speeds) {
  out.open("section", {{"aria-labelledby", "speed"}});
  out.element("h2", "Speed by depth", {{"id", "speed"}});
  out.element(
      "p",
      "The weights are read for every token, whatever the cache; what a smaller cache gains begins where the cache is read for "
      "longer than they are. In brackets: times as fast as full in the same rounds.");
  for (std::size_t i = 0; i < speeds.size(); ++i) write_one(out, speeds[i], i + 1);
  out.close();
}

}  // namespace kvartet
