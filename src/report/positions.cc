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

// One question through one cache, seen and in another position, and through `full` likewise where it has been.
struct TwoAnswers {
  const Outcome* seen = nullptr;
  const Outcome* other = nullptr;
  const Outcome* full_seen = nullptr;
  const Outcome* full_other = nullptr;
  int document = 0;

  bool second() const { return other->key.position == QuestionPosition::kSecond; }
};

using Figure = std::optional<double> Outcome::*;

std::optional<double> change(const Outcome* from, const Outcome* to, Figure figure) {
  if (from == nullptr || to == nullptr || !(from->*figure) || !(to->*figure)) return std::nullopt;
  return *(to->*figure) - *(from->*figure);
}

// Of the cache, or for a second question of its loss.
std::optional<double> cost(const TwoAnswers& a, Figure figure) {
  const std::optional<double> own = change(a.seen, a.other, figure);
  if (!a.second()) return own;
  const std::optional<double> of_full = change(a.full_seen, a.full_other, figure);
  if (!own || !of_full || a.seen->spec == kReference) return std::nullopt;
  return *own - *of_full;
}

struct Pool {
  struct Figures {
    std::vector<double> seen, other;
    PairedDifferences differences;

    void add(const TwoAnswers& answers, Figure figure) {
      if (!(answers.seen->*figure) || !(answers.other->*figure)) return;
      seen.push_back(*(answers.seen->*figure));
      other.push_back(*(answers.other->*figure));
      if (const std::optional<double> x = cost(answers, figure)) differences.add(*x, answers.document);
    }
    Measured measured(ScoreKind kind, double scale, double margin) const {
      return measured_from(other, differences, !differences.values.empty(), kind, scale, margin);
    }
  };
  int n = 0;
  Figures score, likelihood;

  void add(const TwoAnswers& answers) {
    ++n;
    score.add(answers, &Outcome::score);
    likelihood.add(answers, &Outcome::gold_log_likelihood);
  }
  Measured nats() const { return likelihood.measured(ScoreKind::kMeasurement, 1, kLikelihoodMargin); }
};

// In the order of the outcomes that are seen.
std::vector<TwoAnswers> answers_in_two_positions(const StoredResults& results) {
  const DocumentNumbers documents(results);
  std::map<SampleKey, std::pair<std::string, std::string>> texts;  // hashes of the prompt and of the document
  for (const SampleRecord& s : results.samples) texts[s.key] = {s.prompt_hash, s.document};
  std::map<std::pair<SampleKey, std::string>, const Outcome*> done;
  for (const Outcome& o : results.outcomes) {
    if (!o.failed()) done[{o.key, o.spec}] = &o;
  }
  const auto find = [&](const SampleKey& key, const std::string& spec) {
    const auto it = done.find({key, spec});
    return it == done.end() ? nullptr : it->second;
  };
  const auto same = [&](const SampleKey& seen, const SampleKey& other) {
    const auto& [prompt, document] = texts[seen];
    const auto& [other_prompt, other_document] = texts[other];
    return other.position == QuestionPosition::kSecond ? document == other_document : prompt == other_prompt;
  };
  const std::set<SampleKey> decided = samples_decided_by_prefill(results);
  std::vector<TwoAnswers> out;
  for (const Outcome& seen : results.outcomes) {
    if (seen.key.position != QuestionPosition::kSeen || seen.failed() || decided.contains(seen.key)) continue;
    for (const QuestionPosition position : {QuestionPosition::kUnseen, QuestionPosition::kSecond}) {
      SampleKey key = seen.key;
      key.position = position;
      const Outcome* other = find(key, seen.spec);
      if (other == nullptr || !same(seen.key, key)) continue;
      out.push_back({&seen, other, find(seen.key, kReference), find(key, kReference), documents.of(seen.key)});
    }
  }
  return out;
}

// The differences of one cache over all tables.
struct OwnDifferences {
  int prompts = 0;
  double sum = 0;
  double largest = 0;
};

OwnDifferences differences_of(std::span<const PositionRow> rows, std::string_view spec) {
  OwnDifferences out;
  for (const PositionRow& row : rows) {
    if (row.position != QuestionPosition::kUnseen || row.spec != spec || !row.likelihood.difference) continue;
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
  std::map<std::string, std::string> metric_of;
  for (const StoredTask& t : results.tasks) metric_of[t.task] = t.metric;
  using RowKey = std::tuple<std::string, int, std::string, QuestionPosition>;
  std::vector<RowKey> order;
  std::map<RowKey, Pool> pools;
  for (const TwoAnswers& answers : answers_in_two_positions(results)) {
    const SampleKey& other = answers.other->key;
    const RowKey key = {other.task, other.context, answers.other->spec, other.position};
    Pool& pool = pools[key];
    if (pool.n == 0) order.push_back(key);
    pool.add(answers);
  }
  std::ranges::stable_sort(order, {}, [](const RowKey& key) { return std::get<QuestionPosition>(key); });

  std::vector<PositionRow> out;
  for (const RowKey& key : order) {
    const Pool& pool = pools[key];
    PositionRow row;
    std::tie(row.task, row.context, row.spec, row.position) = key;
    row.n = pool.n;
    row.score_seen = mean_of(pool.score.seen, 100);
    row.score = pool.score.measured(score_kind(metric_of[row.task]), 100, score_margin(row.score_seen.value_or(0) / 100));
    row.likelihood_seen = mean_of(pool.likelihood.seen, 1);
    row.likelihood = pool.nats();
    row.largest_likelihood_difference = largest_of(pool.likelihood.differences.values);
    out.push_back(std::move(row));
  }
  return out;
}

std::map<std::pair<WorkKind, std::string>, Measured> next_question_costs(const StoredResults& results) {
  std::map<std::string, std::string> metric_of;
  for (const StoredTask& t : results.tasks) metric_of[t.task] = t.metric;
  std::map<std::pair<WorkKind, std::string>, Pool> pools;
  for (const TwoAnswers& answers : answers_in_two_positions(results)) {
    if (!answers.second() || answers.other->spec == kReference) continue;
    pools[{workload_of(metric_of[answers.other->key.task]), answers.other->spec}].add(answers);
  }
  std::map<std::pair<WorkKind, std::string>, Measured> out;
  for (const auto& [key, pool] : pools) out[key] = pool.nats();
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

std::string second_question_note() {
  return "Second: the cache was sealed with another question about the document in its context, whose answer and this question "
         "then followed in a conversation. The difference is what a cache loses to full there beyond what it loses to full where "
         "this question was seen: the conversation changes full's answers, too, and that is no cost of a cache. Caches that "
         "choose "
         "no rows by the question pay here for taking question and answer through their rows, as they do unseen.";
}

nlohmann::json positions_json(std::span<const PositionRow> rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const PositionRow& r : rows) {
    out.push_back({{"task", r.task},
                   {"context", r.context},
                   {"spec", r.spec},
                   {"question_position", question_position_name(r.position)},
                   {"n", r.n},
                   {"score_seen", optional_json(r.score_seen)},
                   {fmt::format("score_{}", question_position_name(r.position)), optional_json(r.score.mean)},
                   {"difference", optional_json(r.score.difference)},
                   {"low", optional_json(r.score.low)},
                   {"high", optional_json(r.score.high)},
                   {"verdict", verdict_name(r.score.verdict)},
                   {"likelihood_seen", optional_json(r.likelihood_seen)},
                   {fmt::format("likelihood_{}", question_position_name(r.position)), optional_json(r.likelihood.mean)},
                   {"likelihood_difference", optional_json(r.likelihood.difference)},
                   {"likelihood_low", optional_json(r.likelihood.low)},
                   {"likelihood_high", optional_json(r.likelihood.high)},
                   {"likelihood_largest_difference", r.largest_likelihood_difference},
                   {"likelihood_verdict", verdict_name(r.likelihood.verdict)}});
  }
  return out;
}

}  // namespace kvartet
