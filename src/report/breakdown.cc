#include "report/breakdown.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "results/documents.h"

namespace kvartet {
namespace {

std::optional<int> bin_of(const std::string& depths_json) {
  const nlohmann::json depths = nlohmann::json::parse(depths_json, nullptr, false);
  if (!depths.is_array() || depths.size() != 1 || !depths[0].is_number()) return std::nullopt;
  const double depth = depths[0].get<double>();
  if (!(depth >= 0 && depth <= 1)) return std::nullopt;
  return std::min(kDepthBins - 1, static_cast<int>(depth * kDepthBins));
}

struct BinPool {
  std::vector<double> scores;
  PairedDifferences score_differences;
  std::vector<double> likelihoods;
  PairedDifferences likelihood_differences;
};

}  // namespace

std::vector<DepthRow> depth_rows(const StoredResults& results, const std::string& full_spec) {
  const DocumentNumbers documents(results);
  std::map<std::string, std::string> metric_of;
  for (const StoredTask& t : results.tasks) metric_of[t.task] = t.metric;
  std::map<SampleKey, int> bins;
  for (const SampleRecord& s : results.samples) {
    if (const std::optional<int> bin = bin_of(s.depths_json)) bins[s.key] = *bin;
  }
  const std::set<SampleKey> decided = samples_decided_by_prefill(results);
  std::map<SampleKey, const Outcome*> full;
  for (const Outcome& o : results.outcomes) {
    if (o.spec == full_spec && !o.failed() && !decided.contains(o.key)) full[o.key] = &o;
  }
  using RowKey = std::pair<Cell, std::string>;  // and the cache
  std::vector<RowKey> order;
  std::map<RowKey, std::vector<BinPool>> pools;
  for (const Outcome& o : results.outcomes) {
    const auto bin = bins.find(o.key);
    if (bin == bins.end() || o.failed()) continue;
    std::vector<BinPool>& pool = pools[{o.key.cell(), o.spec}];
    if (pool.empty()) {
      pool.resize(kDepthBins);
      order.emplace_back(o.key.cell(), o.spec);
    }
    BinPool& into = pool[static_cast<std::size_t>(bin->second)];
    const auto it = full.find(o.key);
    const Outcome* reference = it == full.end() ? nullptr : it->second;
    if (o.score) into.scores.push_back(*o.score);
    if (o.score && reference != nullptr && reference->score)
      into.score_differences.add(*o.score - *reference->score, documents.of(o.key));
    if (o.gold_log_likelihood) into.likelihoods.push_back(*o.gold_log_likelihood);
    if (o.gold_log_likelihood && reference != nullptr && reference->gold_log_likelihood) {
      into.likelihood_differences.add(*o.gold_log_likelihood - *reference->gold_log_likelihood, documents.of(o.key));
    }
  }
  // All tables of one task stand together, by context.
  std::ranges::stable_sort(order, {}, [&](const RowKey& key) {
    const auto task = std::ranges::find(results.tasks, key.first.task, &StoredTask::task);
    return std::tuple(task - results.tasks.begin(), key.first.context, key.first.position);
  });

  std::vector<DepthRow> out;
  for (const RowKey& key : order) {
    DepthRow row;
    std::tie(row.cell, row.spec) = key;
    const bool compared = row.spec != full_spec && !full.empty();
    const ScoreKind kind = score_kind(metric_of[row.cell.task]);
    for (const BinPool& pool : pools[key]) {
      DepthBin bin;
      bin.n = static_cast<int>(std::max(pool.scores.size(), pool.likelihoods.size()));
      bin.score = measured_from(pool.scores, pool.score_differences, compared, kind, 100, kScoreMargin);
      bin.likelihood =
          measured_from(pool.likelihoods, pool.likelihood_differences, compared, ScoreKind::kMeasurement, 1, kLikelihoodMargin);
      row.bins.push_back(bin);
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<Disagreement> disagreements(const StoredResults& results, const Cell& cell) {
  std::map<SampleKey, std::vector<const Outcome*>> by_sample;
  for (const Outcome& o : results.outcomes) {
    if (o.key.cell() == cell && !o.failed()) by_sample[o.key].push_back(&o);
  }
  std::vector<Disagreement> out;
  for (const SampleRecord& s : results.samples) {
    const auto it = by_sample.find(s.key);
    if (it == by_sample.end()) continue;
    std::optional<double> low, high;
    for (const Outcome* o : it->second) {
      if (!o->score) continue;
      low = std::min(low.value_or(*o->score), *o->score);
      high = std::max(high.value_or(*o->score), *o->score);
    }
    if (!low || *high - *low < kDisagreement) continue;
    out.push_back({&s, it->second, *high - *low});
  }
  std::ranges::stable_sort(out, std::greater<>(), &Disagreement::spread);
  return out;
}

}  // namespace kvartet
