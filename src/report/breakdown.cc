#include "report/breakdown.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "report/pairing.h"
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

}  // namespace

std::vector<DepthRow> depth_rows(const StoredResults& results, const std::string& full_spec) {
  const DocumentNumbers documents(results);
  std::map<std::string, std::string> metric_of;
  for (const StoredTask& t : results.tasks) metric_of[t.task] = t.metric;
  std::map<SampleKey, int> bins;
  for (const SampleRecord& s : results.samples) {
    if (const std::optional<int> bin = bin_of(s.depths_json)) bins[s.key] = *bin;
  }
  const References full = references_of(results, full_spec);
  using RowKey = std::pair<Cell, std::string>;  // and the cache
  std::vector<RowKey> order;
  std::map<RowKey, std::vector<PairedPool>> pools;
  for (const Outcome& o : results.outcomes) {
    const auto bin = bins.find(o.key);
    if (bin == bins.end() || o.failed()) continue;
    std::vector<PairedPool>& pool = pools[{o.key.cell(), o.spec}];
    if (pool.empty()) {
      pool.resize(kDepthBins);
      order.emplace_back(o.key.cell(), o.spec);
    }
    pool[static_cast<std::size_t>(bin->second)].add(o, full, documents.of(o.key));
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
    for (const PairedPool& pool : pools[key]) {
      DepthBin bin;
      bin.n = pool.n();
      bin.score = pool.score(compared, kind);
      bin.likelihood = pool.likelihood(compared);
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
