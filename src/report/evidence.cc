#include "report/evidence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "core/counted.h"
#include "report/pairing.h"

namespace kvartet {
namespace {

// How far the interval's weak end is from where the claim would fail; smaller decides.
double room(const Part& part) {
  if (!part.interval.measurable) return -std::numeric_limits<double>::infinity();
  const double width = part.interval.high - part.interval.low;
  return width > 0 ? part.interval.low / width : part.interval.low;
}

double shown(const Part& part, double x) { return part.is_log_ratio ? std::exp(x) : part.scale * x; }

ClaimRow row_of(std::string claim, std::string rule, const Part& part) {
  ClaimRow row;
  row.claim = std::move(claim);
  row.rule = std::move(rule);
  row.result = part.result;
  row.n = part.interval.n;
  row.figure = part.what;
  row.decimals = part.decimals;
  row.is_difference = !part.is_log_ratio;
  if (part.interval.measurable) {
    row.low = shown(part, part.interval.low);
    row.high = shown(part, part.interval.high);
  }
  return row;
}

std::string pairs_text(const PairedInterval& interval) {
  const std::string pairs = counted(interval.n, "pair");
  if (interval.documents == interval.n) return pairs;
  return fmt::format("{} about {}", pairs, counted(interval.documents, "document"));
}

std::string mean_text(const Part& part) {
  const double x = shown(part, part.interval.mean);
  return part.is_log_ratio ? fmt::format("×{:.3f}", x) : signed_text(x, part.decimals);
}

}  // namespace

std::optional<double> score_difference(const OutcomePair& pair) {
  if (!pair.mine->score || !pair.other->score) return std::nullopt;
  return *pair.mine->score - *pair.other->score;
}

std::optional<double> likelihood_difference(const OutcomePair& pair) {
  if (!pair.mine->gold_log_likelihood || !pair.other->gold_log_likelihood) return std::nullopt;
  return *pair.mine->gold_log_likelihood - *pair.other->gold_log_likelihood;
}

QuestionPosition claimed_position(const StoredResults& results) {
  for (const QuestionPosition position : kQuestionPositions) {
    if (std::ranges::any_of(results.outcomes, [&](const Outcome& o) { return o.key.position == position; })) return position;
  }
  return QuestionPosition::kSeen;
}

Evidence::Evidence(const StoredResults& results) : results_(results), documents_(results) {
  const QuestionPosition position = claimed_position(results);
  for (const StoredTask& task : results.tasks) metric_of_[task.task] = task.metric;
  for (const SampleRecord& sample : results.samples) prompt_tokens_[sample.key] = sample.prompt_tokens;
  const std::set<SampleKey> decided = samples_decided_by_prefill(results);
  for (const Outcome& outcome : results.outcomes) {
    if (decided.contains(outcome.key)) continue;
    if (!outcome.failed() && outcome.key.position == position) by_spec_[outcome.spec][outcome.key] = &outcome;
  }
  for (const SoloRun& run : results.solo) {
    if (!run.failed() && run.key.position == position) alone_[run.spec][{run.key, run.repeat}] = &run;
  }
}

std::vector<const Outcome*> Evidence::completed(const std::string& spec) const {
  std::vector<const Outcome*> out;
  const auto found = by_spec_.find(spec);
  if (found == by_spec_.end()) return out;
  for (const auto& [key, outcome] : found->second) out.push_back(outcome);
  return out;
}

std::vector<OutcomePair> Evidence::pairs(const std::string& mine, const std::string& other, const PairFilter& keep) const {
  std::vector<OutcomePair> out;
  const auto theirs = by_spec_.find(other);
  if (theirs == by_spec_.end()) return out;
  for (const Outcome* outcome : completed(mine)) {
    const auto match = theirs->second.find(outcome->key);
    if (match == theirs->second.end()) continue;
    const OutcomePair pair = {outcome, match->second};
    if (!keep || keep(pair)) out.push_back(pair);
  }
  return out;
}

PairedInterval Evidence::interval(const std::string& mine, const std::string& other, const PairValue& value, ScoreKind kind,
                                  const PairFilter& keep) const {
  PairedDifferences differences;
  for (const OutcomePair& pair : pairs(mine, other, keep)) {
    if (const std::optional<double> x = value(pair)) differences.add(*x, document(pair.mine->key));
  }
  return paired_interval(differences, kind);
}

double Evidence::mean_score(const std::string& mine, const std::string& other, const PairFilter& keep) const {
  double sum = 0;
  int n = 0;
  for (const OutcomePair& pair : pairs(mine, other, keep)) {
    if (!pair.mine->score || !pair.other->score) continue;
    sum += *pair.other->score;
    ++n;
  }
  return n > 0 ? sum / n : 0;
}

WorkKind Evidence::workload(const Outcome& outcome) const {
  const auto metric = metric_of_.find(outcome.key.task);
  return workload_of(metric == metric_of_.end() ? "" : metric->second);
}

int Evidence::prompt_tokens(const Outcome& outcome) const {
  const auto tokens = prompt_tokens_.find(outcome.key);
  return tokens == prompt_tokens_.end() ? 0 : tokens->second;
}

bool Evidence::shared(const std::string& mine, const std::string& other) const {
  return std::ranges::any_of(pairs(mine, other), [](const OutcomePair& p) { return p.mine->shared || p.other->shared; });
}

std::vector<SoloPair> Evidence::solo_pairs(const std::string& mine, const std::string& other) const {
  std::vector<SoloPair> out;
  const auto runs = alone_.find(mine);
  const auto theirs = alone_.find(other);
  if (runs == alone_.end() || theirs == alone_.end()) return out;
  for (const auto& [turn, run] : runs->second) {
    if (const auto match = theirs->second.find(turn); match != theirs->second.end()) out.push_back({run, match->second});
  }
  return out;
}

bool is_enough(const PairedInterval& interval) { return interval.measurable && interval.documents >= kMinimumPairs; }

PairedInterval beyond(PairedInterval interval, double edge) {
  interval.mean -= edge;
  interval.low -= edge;
  interval.high -= edge;
  return interval;
}

ClaimResult judge_above(const PairedInterval& interval, double margin) {
  if (!is_enough(interval)) return ClaimResult::kUndecided;
  if (interval.low > 0) return ClaimResult::kReproduced;
  const bool same = interval.low >= -margin && interval.high <= margin;
  return interval.high < 0 || same ? ClaimResult::kNotReproduced : ClaimResult::kUndecided;
}

ClaimResult judge_no_less(const PairedInterval& interval, double margin) {
  if (!is_enough(interval)) return ClaimResult::kUndecided;
  if (interval.low >= -margin) return ClaimResult::kReproduced;
  return interval.high < 0 ? ClaimResult::kNotReproduced : ClaimResult::kUndecided;
}

ClaimResult judge_equal(const PairedInterval& interval, double margin) {
  if (!is_enough(interval)) return ClaimResult::kUndecided;
  if (interval.low >= -margin && interval.high <= margin) return ClaimResult::kReproduced;
  return interval.low > 0 || interval.high < 0 ? ClaimResult::kNotReproduced : ClaimResult::kUndecided;
}

ClaimRow undecided(std::string claim, std::string rule, std::string reason) {
  ClaimRow row;
  row.claim = std::move(claim);
  row.rule = std::move(rule);
  row.result = ClaimResult::kUndecided;
  row.reason = std::move(reason);
  return row;
}

ClaimRow not_run(std::string claim, std::string rule, std::string reason, std::string to_run) {
  ClaimRow row = undecided(std::move(claim), std::move(rule), std::move(reason));
  row.result = ClaimResult::kNotRun;
  row.to_run = std::move(to_run);
  return row;
}

std::string bench_command(const StoredResults& results, std::string_view preset, const std::vector<std::string>& specs,
                          std::string_view flags) {
  std::string out = fmt::format("kvartet bench -m {} --preset {}",
                                results.runs.empty() ? "MODEL" : results.runs.front().identity.model_name, preset);
  if (!specs.empty()) out += " --kv full";
  for (const std::string& spec : specs) out += " --kv " + spec;
  if (!flags.empty()) out += fmt::format(" {}", flags);
  return out + " -o DIR";
}

ClaimRow decide_all(std::string claim, std::string rule, const std::vector<Part>& parts, std::string to_run) {
  if (parts.empty()) {
    return not_run(std::move(claim), std::move(rule), "These results hold no pair of caches to compare.", std::move(to_run));
  }
  const auto first_with = [&](ClaimResult result) {
    return std::ranges::find_if(parts, [&](const Part& p) { return p.result == result; });
  };
  auto deciding = first_with(ClaimResult::kNotReproduced);
  if (deciding == parts.end()) {
    const auto nothing = std::ranges::find_if(parts, [](const Part& p) { return p.interval.n == 0; });
    if (nothing != parts.end()) {
      ClaimRow row = not_run(std::move(claim), std::move(rule), "There is no pair of answers to compare.", std::move(to_run));
      row.figure = nothing->what;
      return row;
    }
    deciding = first_with(ClaimResult::kUndecided);
  }
  if (deciding == parts.end()) deciding = std::ranges::min_element(parts, {}, room);
  ClaimRow row = row_of(std::move(claim), std::move(rule), *deciding);
  if (deciding->result == ClaimResult::kUndecided) {
    row.reason = deciding->interval.documents < kMinimumPairs
                     ? fmt::format("{} {} too few.", pairs_text(deciding->interval), deciding->interval.n == 1 ? "is" : "are")
                     : fmt::format("{} on average, and the interval over {} allows both outcomes.", mean_text(*deciding),
                                   pairs_text(deciding->interval));
  } else {
    row.reason = fmt::format("{} on average over {}.", mean_text(*deciding), pairs_text(deciding->interval));
  }
  if (parts.size() > 1 && deciding->result == ClaimResult::kReproduced)
    row.reason += fmt::format(" This is the closest of {} comparisons, and all hold.", parts.size());
  if (parts.size() > 1 && deciding->result == ClaimResult::kNotReproduced) {
    const auto against = std::ranges::count(parts, ClaimResult::kNotReproduced, &Part::result);
    row.reason +=
        fmt::format(" {} of {} comparisons {} against the claim.", against, parts.size(), against == 1 ? "speaks" : "speak");
  }
  return row;
}

std::string SpecKeys::key(const std::string& name_of_key) const {
  const auto found = keys.find(name_of_key);
  return found == keys.end() ? "" : found->second;
}

std::optional<SpecKeys> spec_keys(std::string_view spec) {
  if (spec.find('+') != std::string_view::npos) return std::nullopt;
  SpecKeys out;
  const std::size_t colon = spec.find(':');
  out.name = spec.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view pair = rest.substr(0, comma);
    const std::size_t equals = pair.find('=');
    out.keys[std::string(pair.substr(0, equals))] = equals == std::string_view::npos ? "" : pair.substr(equals + 1);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return out;
}

std::string missing_roles(const Roles& roles, const std::vector<std::string>& wanted) {
  for (const std::string& role : wanted) {
    if (!roles.contains(role)) return fmt::format("These results hold no {}.", role);
  }
  return {};
}

namespace {

// A task by what it asks, however many questions share a document.
std::string kind_of_work(const std::string& task) {
  const std::optional<SpecKeys> keys = spec_keys(task);
  if (!keys || !keys->keys.contains("questions")) return task;
  std::vector<std::string> others;
  for (const auto& [key, value] : keys->keys) {
    if (key != "questions") others.push_back(fmt::format("{}={}", key, value));
  }
  return others.empty() ? keys->name : fmt::format("{}:{}", keys->name, fmt::join(others, ","));
}

// By how much each cache loses to each other, as -1, 0 (undecided) or 1, by likelihood.
std::map<std::pair<std::string, std::string>, int> order_of(const Evidence& evidence, const Roles& roles,
                                                            const std::set<std::string>& tasks) {
  std::map<std::pair<std::string, std::string>, int> out;
  const PairFilter common = [&](const OutcomePair& p) { return tasks.contains(kind_of_work(p.mine->key.task)); };
  for (const auto& [mine, my_spec] : roles) {
    for (const auto& [other, other_spec] : roles) {
      if (mine >= other) continue;
      const PairedInterval i = evidence.interval(my_spec, other_spec, likelihood_difference, ScoreKind::kMeasurement, common);
      out[{mine, other}] = !is_enough(i) ? 0 : i.low > 0 ? 1 : i.high < 0 ? -1 : 0;
    }
  }
  return out;
}

std::set<std::string> tasks_of(const StoredResults& results) {
  std::set<std::string> out;
  for (const StoredTask& task : results.tasks) out.insert(kind_of_work(task.task));
  return out;
}

std::string model_of(const StoredResults& results) {
  return results.runs.empty() ? "an unnamed model" : results.runs.front().identity.model_name;
}

}  // namespace

ClaimRow family_claim(const Evidence& evidence, const Roles& roles, const StoredResults* other) {
  const std::string claim = "The trends are the same across model families.";
  const std::string rule =
      "On the tasks that both models ran, with however many questions about a document, pairs of caches are put in order by "
      "likelihood where a 95 % interval allows it: no pair in opposite orders, and at least 5 pairs ordered in both.";
  const std::string model = model_of(evidence.results());
  if (other == nullptr) {
    return not_run(claim, rule,
                   fmt::format("These results are of one model, {}; a second one needs the same caches and tasks.", model),
                   "kvartet bench -m OTHER_MODEL ... -o OTHER && kvartet report DIR --beside OTHER");
  }
  std::set<std::string> tasks;
  std::ranges::set_intersection(tasks_of(evidence.results()), tasks_of(*other), std::inserter(tasks, tasks.end()));
  Roles theirs = compression_roles(*other);
  theirs.merge(offloading_roles(*other));
  Roles common;
  for (const auto& [role, spec] : theirs) {
    if (roles.contains(role)) common[role] = spec;
  }
  const auto here = order_of(evidence, roles, tasks);
  const auto there = order_of(Evidence(*other), common, tasks);
  int agree = 0;
  std::string opposite;
  int against = 0;
  for (const auto& [pair, order] : there) {
    const int mine = here.at(pair);
    agree += mine != 0 && mine == order ? 1 : 0;
    if (mine * order >= 0) continue;
    if (against++ == 0) opposite = fmt::format("{} and {}", pair.first, pair.second);
  }
  ClaimRow row = undecided(claim, rule, "");
  row.n = agree + against;
  if (against > 0) {
    row.result = ClaimResult::kNotReproduced;
    row.reason = fmt::format("{} in opposite orders on {} and {}, first {}; {}.",
                             counted(against, "pair of caches is", "pairs of caches are"), model, model_of(*other), opposite,
                             counted(agree, "agrees", "agree"));
  } else if (agree >= kMinimumPairs) {
    row.result = ClaimResult::kReproduced;
    row.reason = fmt::format("{} pairs of caches are in the same order on {} and {}, none in the opposite one.", agree, model,
                             model_of(*other));
  } else {
    row.reason = fmt::format("Only {} put in order on both {} and {}.",
                             counted(agree, "pair of caches is", "pairs of caches are"), model, model_of(*other));
  }
  return row;
}

}  // namespace kvartet
