#include "report/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "results/paired.h"

namespace kvartet {
namespace {

RunSpread spread_of(const std::vector<double>& x) { return {median(x), quantile(x, 0), quantile(x, 1)}; }

std::optional<RunSpread> spread_of_rates(const std::vector<double>& rates) {
  std::vector<double> known;
  std::ranges::copy_if(rates, std::back_inserter(known), [](double x) { return x > 0; });
  return known.empty() ? std::nullopt : std::optional(spread_of(known));
}

template <typename Value>
std::vector<double> collect(const std::vector<const SoloRun*>& runs, Value value) {
  std::vector<double> out;
  for (const SoloRun* run : runs) out.push_back(static_cast<double>(value(*run)));
  return out;
}

SoloFigures figures_of(const std::vector<const SoloRun*>& all) {
  SoloFigures out;
  std::vector<const SoloRun*> done;
  for (const SoloRun* run : all) {
    // Repeats belong to one prompt; of several, the first is taken.
    if (out.sample.empty()) out.sample = run->key.sample;
    if (run->key.sample != out.sample) continue;
    if (!run->failed()) {
      done.push_back(run);
    } else if (out.failed++ == 0) {
      out.first_error = run->error;
    }
  }
  out.runs = static_cast<int>(done.size());
  if (done.empty()) return out;
  out.completion_tokens = done.front()->completion_tokens;
  out.ttft_s = spread_of(collect(done, [](const SoloRun& r) { return r.ttft_s; }));
  out.prefill_s = median(collect(done, [](const SoloRun& r) { return r.prefill_s; }));
  out.compress_s = median(collect(done, [](const SoloRun& r) { return r.compress_s; }));
  out.decode_tokens_per_s = spread_of_rates(collect(done, [](const SoloRun& r) { return r.decode_tokens_per_s; }));
  out.end_to_end_tokens_per_s = spread_of_rates(collect(done, [](const SoloRun& r) { return r.end_to_end_tokens_per_s; }));
  std::vector<double> gaps;
  for (const SoloRun* run : done) {
    const std::vector<double> more = numbers_of(run->token_gaps_json);
    gaps.insert(gaps.end(), more.begin(), more.end());
    out.peak_rss_bytes = std::max(out.peak_rss_bytes, run->peak_rss_bytes);
    out.weight_bytes = std::max(out.weight_bytes, run->weight_bytes);
  }
  out.gaps = gap_spread(gaps);
  return out;
}

}  // namespace

std::vector<double> numbers_of(const std::string& json) {
  const nlohmann::json list = nlohmann::json::parse(json, nullptr, false);
  std::vector<double> out;
  if (!list.is_array()) return out;
  for (const nlohmann::json& x : list) {
    constexpr double kMost = 1e12;  // ms between two tokens
    if (x.is_number() && x.get<double>() >= 0 && x.get<double>() <= kMost) out.push_back(x.get<double>());
  }
  return out;
}

std::optional<GapSpread> gap_spread(const std::vector<double>& gaps_ms) {
  if (gaps_ms.empty()) return std::nullopt;
  return GapSpread{median(gaps_ms), quantile(gaps_ms, 0.95), quantile(gaps_ms, 0.99), quantile(gaps_ms, 1)};
}

std::map<std::pair<Cell, std::string>, SoloFigures> solo_figures(const StoredResults& results) {
  std::map<std::pair<Cell, std::string>, std::vector<const SoloRun*>> runs;
  for (const SoloRun& run : results.solo) runs[{run.key.cell(), run.spec}].push_back(&run);
  std::map<std::pair<SampleKey, std::string>, const Outcome*> shared;
  std::map<SampleKey, int> prompt_tokens;
  if (!runs.empty()) {
    for (const Outcome& o : results.outcomes) shared[{o.key, o.spec}] = &o;
    for (const SampleRecord& s : results.samples) prompt_tokens[s.key] = s.prompt_tokens;
  }
  std::map<std::pair<Cell, std::string>, SoloFigures> out;
  for (const auto& [key, all] : runs) {
    SoloFigures figures = figures_of(all);
    const SampleKey sample = {key.first.task, key.first.context, figures.sample, key.first.position};
    if (const auto tokens = prompt_tokens.find(sample); tokens != prompt_tokens.end()) figures.prompt_tokens = tokens->second;
    const auto company = shared.find({sample, key.second});
    if (company != shared.end() && !company->second->failed() && figures.runs > 0) {
      figures.same_text = std::ranges::all_of(all, [&](const SoloRun* run) {
        return run->failed() || run->key.sample != figures.sample || run->text == company->second->prediction;
      });
    }
    out[key] = std::move(figures);
  }
  return out;
}

std::vector<std::string> solo_caveats(const std::string& name, const SoloFigures& solo) {
  std::vector<std::string> out;
  if (solo.failed > 0)
    out.push_back(fmt::format("{}: {} of {} alone failed; the first: {}", name, solo.failed,
                              counted(solo.failed + solo.runs, "run"), solo.first_error));
  if (solo.same_text == false)
    out.push_back(
        fmt::format("{}: alone it wrote another text than in company on sample {}, so its quality was measured on other "
                    "answers than its speed.",
                    name, solo.sample));
  return out;
}

}  // namespace kvartet
