#include "cli/decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "cli/command.h"
#include "cli/planning.h"
#include "core/file_system.h"
#include "results/fingerprint.h"

namespace kvartet {
namespace {

constexpr std::array<double, 4> kCapShares = {1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16};  // of the cache in f16
constexpr std::size_t kMostLengths = 4;
constexpr double kMostLossShown = 0.3;  // nats

// The lengths that were measured, a few of them where they are many: the shortest and the longest among them.
std::vector<int> lengths_of(const StoredResults& results, int model_context) {
  std::set<int> all;
  for (const SampleRecord& sample : results.samples) {
    if (sample.key.context >= 64 && sample.key.context <= model_context) all.insert(sample.key.context);
  }
  const std::vector<int> sorted(all.begin(), all.end());
  if (sorted.size() <= kMostLengths) return sorted;
  std::vector<int> some;
  for (std::size_t i = 0; i < kMostLengths; ++i) some.push_back(sorted[i * (sorted.size() - 1) / (kMostLengths - 1)]);
  return some;
}

DecidedLoss loss_of(const LossPrediction& l) { return {.low = l.low, .expected = l.expected, .high = l.high}; }

Decision decision_of(const Plan& plan, const PlanRequest& request) {
  Decision d;
  d.kind = kind_name(request.workload.kind);
  d.prompt_tokens = request.workload.prompt_tokens;
  d.answer_tokens = request.workload.output_tokens;
  d.cap_bytes = static_cast<double>(request.memory.value_or(0));
  d.reason = plan.reason;
  if (!plan.feasible) return d;
  const Candidate& c = plan.first();
  d.spec = c.spec;
  d.bytes = static_cast<double>(c.cost.bytes());
  d.ttft_s = c.cost.ttft_s;
  d.decode_tokens_per_s = c.cost.decode_tokens_per_s();
  d.time_error = c.cost.time_error;
  d.loss = loss_of(c.loss);
  d.source = source_name(c.loss.source);
  d.samples = c.loss.measured_samples;
  if (!plan.what_ifs.empty()) {
    const WhatIf& w = plan.what_ifs.front();
    d.what_if = w.change;
    d.what_if_spec = w.spec;
    d.what_if_loss = w.expected_loss;
  }
  return d;
}

// All that fit the picture, thinned out where they lie on top of each other; none of those chosen, nor of the frontier.
DecisionPicture picture_of(const Weighed& weighed, const Workload& workload, const std::set<std::string>& chosen) {
  DecisionPicture picture;
  picture.kind = kind_name(workload.kind);
  picture.prompt_tokens = workload.prompt_tokens;
  const double f16 = static_cast<double>(weighed.row_bytes) * (workload.prompt_tokens + workload.output_tokens);
  std::vector<const Candidate*> by_size;
  for (const Candidate& c : weighed.candidates) {
    if (c.standing == Standing::kBreaks || c.cost.bytes() == 0) continue;
    if (c.loss.expected > kMostLossShown && !chosen.contains(c.spec))
      ++picture.left_out;
    else
      by_size.push_back(&c);
  }
  std::stable_sort(by_size.begin(), by_size.end(), [](const Candidate* a, const Candidate* b) {
    return std::pair(a->cost.bytes(), a->loss.expected) < std::pair(b->cost.bytes(), b->loss.expected);
  });
  std::set<std::pair<int, int>> taken;  // places, about as large as a dot
  double least_loss = 1e300;
  for (const Candidate* c : by_size) {
    DecisionPoint p = {.spec = c->spec,
                       .times_smaller = f16 / static_cast<double>(c->cost.bytes()),
                       .loss = loss_of(c->loss),
                       .chosen = chosen.contains(c->spec)};
    const bool frontier = p.loss.expected < least_loss;
    least_loss = std::min(least_loss, p.loss.expected);
    const std::pair place(static_cast<int>(std::floor(10 * std::log2(p.times_smaller))),
                          static_cast<int>(std::floor(100 * p.loss.expected)));
    if (taken.insert(place).second || frontier || p.chosen) picture.points.push_back(std::move(p));
  }
  return picture;
}

// What was measured is considered, too, with whatever settings it ran.
void add_measured(const StoredResults& results, std::vector<CacheSpec>* candidates) {
  std::set<std::string> specs;
  for (const Outcome& o : results.outcomes) specs.insert(o.spec);
  for (const std::string& text : specs) {
    Result<CacheSpec> spec = parse_spec(text);
    if (spec.ok() && std::ranges::find(*candidates, spec->canonical, &CacheSpec::canonical) == candidates->end())
      candidates->push_back(std::move(*spec));
  }
}

ShortAnswer answer_for(TaskKind kind, const std::vector<ShortAnswer>& answers) {
  const auto found = std::ranges::find_if(answers, [&](const ShortAnswer& a) {
    return std::ranges::any_of(a.tasks, [&](const std::string& task) { return kind_of_task(task) == kind; });
  });
  return found == answers.end() ? ShortAnswer() : *found;
}

std::optional<RivalChoice> rival_of(const Weighed& weighed, const std::string& spec) {
  const auto found = std::ranges::find(weighed.candidates, spec, &Candidate::spec);
  if (found == weighed.candidates.end() || found->standing == Standing::kBreaks) return std::nullopt;
  return RivalChoice{static_cast<double>(found->cost.bytes()), loss_of(found->loss), source_name(found->loss.source)};
}

Result<DecisionKind> decide_kind(const PlanInputs& inputs, TaskKind kind, const std::vector<int>& lengths,
                                 const std::vector<ShortAnswer>& answers, CellCounts* cells) {
  DecisionKind out;
  out.kind = kind_name(kind);
  out.summary = kind_summary(kind);
  out.answer = answer_for(kind, answers);
  for (const int length : lengths) {
    PlanRequest request;
    request.workload = workload_filling(kind, length);
    KV_ASSIGN(const Weighed weighed, weigh(inputs, request.workload));
    *cells = weighed.cells;  // the same for every workload
    std::set<std::string> chosen;
    for (const double share : kCapShares) {
      request.memory = static_cast<std::size_t>(share * static_cast<double>(weighed.row_bytes) * length);
      if (*request.memory < weighed.row_bytes) continue;
      KV_ASSIGN(const Plan plan, choose(weighed, request));
      Decision decision = decision_of(plan, request);
      decision.cap_share = share;
      decision.rival = rival_of(weighed, out.answer.spec);
      if (!decision.spec.empty()) chosen.insert(decision.spec);
      out.decisions.push_back(std::move(decision));
    }
    if (length == lengths.back()) out.picture = picture_of(weighed, request.workload, chosen);
  }
  return out;
}

// The file of the results' model. Empty, with a note, when it is not at hand and nobody named it.
Result<std::string> model_of(const StoredResults& results, const std::string& named, std::string* note) {
  if (results.runs.empty()) return std::string();
  const RunIdentity& identity = results.runs.front().identity;
  const std::string& name = named.empty() ? identity.model_name : named;
  const auto none = [&](const std::string& why) -> Result<std::string> {
    if (!named.empty()) return bad_input(why);
    *note = fmt::format("note: without the planner's choices: {}; -m names the model of these results", why);
    return std::string();
  };
  Result<std::string> path = resolve_model(name);
  if (!path.ok()) return none(path.status().message());
  const Result<std::string> hash = model_fingerprint(FileSystem::real(), *path);
  if (!hash.ok()) return none(hash.status().message());
  if (*hash != identity.model_hash)
    return none(
        fmt::format("{} is another model (hash {}) than that of the results (hash {})", *path, *hash, identity.model_hash));
  return path;
}

}  // namespace

Result<Decisions> decisions_of(const StoredResults& results, std::span<const ReportRow> rows, const DecisionRequest& request,
                               std::string* note) {
  Decisions out;
  KV_ASSIGN(const std::string path, model_of(results, request.model, note));
  if (path.empty()) return out;
  KV_ASSIGN(const std::unique_ptr<Gathered> gathered, gather(path, {}, resolved_threads(ModelFlags())));
  gathered->add(evidence_of(results));
  gathered->folders = request.folders.size();
  gathered->inputs.model_hash = results.runs.front().identity.model_hash;
  const std::vector<int> lengths = lengths_of(results, gathered->inputs.model.shape.context);
  if (lengths.empty()) return out;
  add_measured(results, &gathered->inputs.candidates);
  const std::vector<ShortAnswer> answers = short_answers(results, rows);
  CellCounts cells;
  for (const TaskKind kind : kTaskKinds) {
    KV_ASSIGN(DecisionKind decided, decide_kind(gathered->inputs, kind, lengths, answers, &cells));
    out.kinds.push_back(std::move(decided));
  }
  out.statistics = statistics_text(cells, gathered->folders);
  out.machine = gathered->machine_note;
  out.model = request.model.empty() ? results.runs.front().identity.model_name : request.model;
  return out;
}

}  // namespace kvartet
