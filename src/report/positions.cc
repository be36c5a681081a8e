#include "report/positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/counted.h"
#include "report/pairing.h"
#include "results/documents.h"

namespace kvartet {
namespace {

struct Pool {
  int n = 0;
  struct Figures {
    std::vector<double> seen, unseen;
    PairedDifferences differences;

    void add(const std::optional<double>& a, const std::optional<double>& b, int document) {
      if (!a || !b) return;
      seen.push_back(*a);
      unseen.push_back(*b);
      differences.add(*b - *a, document);
    }
  };
  Figures score, likelihood;

  void add(const Outcome& seen, const Outcome& unseen, int document) {
    ++n;
    score.add(seen.score, unseen.score, document);
    likelihood.add(seen.gold_log_likelihood, unseen.gold_log_likelihood, document);
  }
};

// The differences of one cache over all tables.
struct OwnDifferences {
  int prompts = 0;
  double sum = 0;
  double largest = 0;
};

OwnDifferences differences_of(std::span<const PositionRow> rows, std::string_view spec) {
  OwnDifferences out;
  for (const PositionRow& row : rows) {
    if (row.spec != spec || !row.likelihood.difference) continue;
    out.prompts += row.n;
    out.sum += row.n * *row.likelihood.difference;
    out.largest = std::max(out.largest, row.largest_likelihood_difference);
  }
  return out;
}

double largest_of(const std::vector<double>& differences) {
  double largest = 0;
  for (const double x : differences) largest = std::max(largest, std::abs(x));
  return largest;
}

std::optional<double> mean_of(const std::vector<double>& x, double scale) {
  if (x.empty()) return std::nullopt;
  double sum = 0;
  for (const double v : x) sum += v;
  return scale * sum / static_cast<double>(x.size());
}

}  // namespace

std::vector<PositionRow> position_rows(const StoredResults& results) {
  const DocumentNumbers documents(results);
  std::map<std::string, std::string> metric_of;
  for (const StoredTask& t : results.tasks) metric_of[t.task] = t.metric;
  std::map<SampleKey, std::string> hash_of;
  for (const SampleRecord& s : results.samples) hash_of[s.key] = s.prompt_hash;
  std::map<std::pair<SampleKey, std::string>, const Outcome*> unseen;
  for (const Outcome& o : results.outcomes) {
    if (o.key.position == QuestionPosition::kUnseen && !o.failed()) unseen[{o.key, o.spec}] = &o;
  }

  const std::set<SampleKey> decided = samples_decided_by_prefill(results);
  using RowKey = std::tuple<std::string, int, std::string>;
  std::vector<RowKey> order;
  std::map<RowKey, Pool> pools;
  for (const Outcome& seen : results.outcomes) {
    if (seen.key.position != QuestionPosition::kSeen || seen.failed() || decided.contains(seen.key)) continue;
    SampleKey other = seen.key;
    other.position = QuestionPosition::kUnseen;
    const auto it = unseen.find({other, seen.spec});
    if (it == unseen.end() || hash_of[seen.key] != hash_of[other]) continue;
    const RowKey key = {seen.key.task, seen.key.context, seen.spec};
    Pool& pool = pools[key];
    if (pool.n == 0) order.push_back(key);
    pool.add(seen, *it->second, documents.of(seen.key));
  }

  std::vector<PositionRow> out;
  for (const RowKey& key : order) {
    const Pool& pool = pools[key];
    PositionRow row;
    std::tie(row.task, row.context, row.spec) = key;
    row.n = pool.n;
    row.score_seen = mean_of(pool.score.seen, 100);
    row.score = measured_from(pool.score.unseen, pool.score.differences, true, score_kind(metric_of[row.task]), 100,
                              score_margin(row.score_seen.value_or(0) / 100));
    row.likelihood_seen = mean_of(pool.likelihood.seen, 1);
    row.likelihood =
        measured_from(pool.likelihood.unseen, pool.likelihood.differences, true, ScoreKind::kMeasurement, 1, kLikelihoodMargin);
    row.largest_likelihood_difference = largest_of(pool.likelihood.differences.values);
    out.push_back(std::move(row));
  }
  return out;
}

std::string position_floor(std::span<const PositionRow> rows) {
  constexpr const char* kWhy = "a prompt computed in two parts is rounded in other places than one computed at once";
  for (const auto& [spec, what] :
       {std::pair("f32", "f32, which loses nothing,"), std::pair("full", "full, which drops nothing,")}) {
    const OwnDifferences own = differences_of(rows, spec);
    if (own.prompts == 0) continue;
    return fmt::format(
        "Floor: {} itself differs by up to {:.3f} nats on one of {}, and by {:+.3f} on average: {}. Smaller differences of other "
        "caches are no cost of theirs.",
        what, own.largest, counted(own.prompts, "prompt"), own.sum / own.prompts, kWhy);
  }
  return fmt::format(
      "Floor: a cache that loses nothing differs, too, on single prompts by some hundredths of a nat: {}. Run f32 or full beside "
      "the others to see by how much here.",
      kWhy);
}

nlohmann::json positions_json(std::span<const PositionRow> rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const PositionRow& r : rows) {
    out.push_back({{"task", r.task},
                   {"context", r.context},
                   {"spec", r.spec},
                   {"n", r.n},
                   {"score_seen", optional_json(r.score_seen)},
                   {"score_unseen", optional_json(r.score.mean)},
                   {"difference", optional_json(r.score.difference)},
                   {"low", optional_json(r.score.low)},
                   {"high", optional_json(r.score.high)},
                   {"verdict", verdict_name(r.score.verdict)},
                   {"likelihood_seen", optional_json(r.likelihood_seen)},
                   {"likelihood_unseen", optional_json(r.likelihood.mean)},
                   {"likelihood_difference", optional_json(r.likelihood.difference)},
                   {"likelihood_low", optional_json(r.likelihood.low)},
                   {"likelihood_high", optional_json(r.likelihood.high)},
                   {"likelihood_largest_difference", r.largest_likelihood_difference},
                   {"likelihood_verdict", verdict_name(r.likelihood.verdict)}});
  }
  return out;
}

}  // namespace kvartet
