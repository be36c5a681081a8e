#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "cache/spec_grammar.h"
#include "core/bytes_text.h"
#include "core/counted.h"

namespace kvartet {
namespace {

constexpr std::array<std::pair<Prefer, std::string_view>, 3> kPrefers = {
    {{Prefer::kQuality, "quality"}, {Prefer::kSpeed, "speed"}, {Prefer::kMemory, "memory"}}};

// What the user can type: rounded up, so that it suffices.
std::string typed_bytes(std::size_t bytes) {
  constexpr std::size_t kKibi = 1024;
  return fmt::format("{}K", (bytes + kKibi - 1) / kKibi);
}

std::string typed_nats(double nats) { return fmt::format("{:.4f}", nats + 0.00005); }

// The limits as one yardstick for all candidates.
class Limits {
 public:
  explicit Limits(const PlanRequest& request) : request_(request), max_loss_(request.max_loss) {
    if (!max_loss_ && request.prefer != Prefer::kQuality) max_loss_ = kDefaultMaxLoss;
  }

  // Where quality is traded away the bound must hold for the whole interval. Where quality is what is asked for, the best
  // expected loss is taken anyway, and the bound is on that: so a tighter bound never makes the choice worse.
  double bounded_loss(const Candidate& c) const { return request_.prefer == Prefer::kQuality ? c.loss.expected : c.loss.high; }
  const char* bounded_name() const {
    return request_.prefer == Prefer::kQuality ? "expected loss" : "loss, at the upper end of its interval,";
  }

  bool memory_fits(const Candidate& c) const {
    return (!request_.memory || c.cost.bytes() <= *request_.memory) &&
           (!request_.fast_memory || c.cost.fast_bytes() <= *request_.fast_memory);
  }
  bool loss_fits(const Candidate& c) const { return !max_loss_ || bounded_loss(c) <= *max_loss_; }
  bool fits(const Candidate& c) const { return memory_fits(c) && loss_fits(c); }

  // 1: just fits; more: by that factor beyond.
  double violation(const Candidate& c) const {
    double worst = 1;
    if (request_.memory) worst = std::max(worst, static_cast<double>(c.cost.bytes()) / static_cast<double>(*request_.memory));
    if (request_.fast_memory)
      worst = std::max(worst, static_cast<double>(c.cost.fast_bytes()) / static_cast<double>(*request_.fast_memory));
    if (max_loss_) worst = std::max(worst, (bounded_loss(c) + 0.001) / (*max_loss_ + 0.001));
    return worst;
  }

  std::string over_memory(const Candidate& c) const {
    if (request_.memory && c.cost.bytes() > *request_.memory) {
      return fmt::format("over memory: needs {}, {} more than --memory allows", bytes_text(c.cost.bytes()),
                         bytes_text(c.cost.bytes() - *request_.memory));
    }
    return fmt::format("over fast memory: needs {} in RAM, --fast-memory allows {}", bytes_text(c.cost.fast_bytes()),
                       bytes_text(request_.fast_memory.value_or(0)));
  }
  std::string over_loss(const Candidate& c) const {
    return fmt::format("over loss: {} is {:.4f}, allowed is {:g}{}", bounded_name(), bounded_loss(c), max_loss_.value_or(0),
                       request_.max_loss ? "" : " (default)");
  }

  const std::optional<double>& max_loss() const { return max_loss_; }
  std::optional<std::size_t> memory() const {
    if (request_.memory && request_.fast_memory) return std::min(*request_.memory, *request_.fast_memory);
    return request_.memory ? request_.memory : request_.fast_memory;
  }

 private:
  const PlanRequest& request_;
  std::optional<double> max_loss_;
};

// Smaller is better, compared from left to right. Of those that are alike, as a method is `full` where the prompt is too short
// for it, the simplest; the name last, so that nothing is left to the order of the table.
using Objective = std::tuple<double, double, double, double, double, std::size_t, std::string_view>;
Objective objective(const Candidate& c, Prefer prefer) {
  const double bytes = static_cast<double>(c.cost.bytes());
  const double fast = static_cast<double>(c.cost.fast_bytes());
  const std::size_t length = c.spec.size();
  switch (prefer) {
    case Prefer::kQuality: return {c.loss.expected, c.loss.high, bytes, c.cost.total_s, fast, length, c.spec};
    case Prefer::kSpeed: return {c.cost.total_s, c.loss.expected, c.loss.high, bytes, fast, length, c.spec};
    case Prefer::kMemory: return {bytes, c.loss.expected, c.loss.high, c.cost.total_s, fast, length, c.spec};
  }
  return {};
}

// Of two that are alike in all of it the one that stands first dominates.
bool dominates(const Candidate& a, const Candidate& b) {
  return a.cost.bytes() <= b.cost.bytes() && a.cost.fast_bytes() <= b.cost.fast_bytes() && a.cost.total_s <= b.cost.total_s &&
         a.loss.expected <= b.loss.expected && a.loss.high <= b.loss.high;
}

Candidate weigh_one(const CacheSpec& spec, const CostModel& costs, QualityModel* losses, const ModelShape& shape,
                    const Workload& workload) {
  Candidate c;
  c.spec = spec.canonical;
  Result<SpecFacts> facts = spec_facts(spec, shape);
  if (!facts.ok()) {
    c.reason = "breaks on this model: " + facts.status().message();
    return c;
  }
  c.facts = std::move(*facts);
  Result<CostPrediction> cost = costs.predict(c.facts, workload);
  if (!cost.ok()) {
    c.reason = "breaks on this model: " + cost.status().message();
    return c;
  }
  c.cost = std::move(*cost);
  c.loss = losses->predict(c.facts, workload);
  c.standing = Standing::kRunnerUp;
  return c;
}

CellCounts count_cells(std::span<const EvidenceCell> evidence, const QualityModel& losses) {
  CellCounts counts = {.fidelity = losses.fidelity_cells(),
                       .foreign = losses.foreign_cells(),
                       .unread = losses.unread_cells(),
                       .paper = losses.paper_cells()};
  counts.tasks = static_cast<int>(evidence.size()) - counts.fidelity - counts.foreign - counts.unread - counts.paper;
  return counts;
}

Weighed weigh_all(const PlanInputs& inputs, const Workload& workload, QualityModel* losses) {
  const CostModel costs(inputs.model, inputs.calibration, inputs.threads);
  Weighed weighed;
  weighed.candidates.reserve(inputs.candidates.size());
  for (const CacheSpec& spec : inputs.candidates)
    weighed.candidates.push_back(weigh_one(spec, costs, losses, inputs.model.shape, workload));
  weighed.row_bytes = inputs.model.shape.f16_bytes_per_token();
  weighed.calibrated = costs.calibrated();
  weighed.cells = count_cells(inputs.evidence, *losses);
  return weighed;
}

Status check_workload(const Workload& w, const ModelShape& shape) {
  if (w.prompt_tokens < 1) return usage_error(fmt::format("--prompt-tokens {} is no prompt; give at least 1", w.prompt_tokens));
  if (w.output_tokens < 0 || w.questions < 1) {
    return usage_error(fmt::format("{} for {} make no workload; give at least 1 question",
                                   counted(w.output_tokens, "output token"), counted(w.questions, "question")));
  }
  if (std::int64_t{w.prompt_tokens} + w.answer_tokens() > shape.context) {
    if (w.answer_tokens() >= shape.context) {
      return exhausted(
          fmt::format("an answer of {} leaves no room for a prompt in the model's context of {}; ask for fewer tokens",
                      counted(w.answer_tokens(), "token"), shape.context));
    }
    return exhausted(
        fmt::format("{} prompt tokens and an answer of {} exceed the model's context of {}; the longest prompt is {}",
                    w.prompt_tokens, w.answer_tokens(), shape.context, std::max(shape.context - w.answer_tokens(), 0)));
  }
  return {};
}

Status check_limits(const PlanRequest& request, std::size_t row_bytes) {
  for (const auto& [flag, cap] : {std::pair("--memory", request.memory), std::pair("--fast-memory", request.fast_memory)}) {
    if (cap && *cap < row_bytes)
      return usage_error(fmt::format("{} of {} bytes holds no single row: one token of this model takes {} bytes in f16", flag,
                                     *cap, row_bytes));
  }
  if (request.memory && request.fast_memory && *request.fast_memory > *request.memory) {
    return usage_error(
        fmt::format("--fast-memory of {} bytes is more than --memory of {} bytes, which is over all tiers; swap or drop one",
                    *request.fast_memory, *request.memory));
  }
  if (request.max_loss && !(*request.max_loss >= 0 && *request.max_loss <= kMostMaxLoss)) {
    return usage_error(fmt::format(
        "--max-loss {} is not from 0 to {}: it is in nats per token, where 0.01 is about one percent of the probability of the "
        "reference answer; write for example 0.02",
        *request.max_loss, kMostMaxLoss));
  }
  return {};
}

class Choice {
 public:
  Choice(std::vector<Candidate> candidates, const PlanRequest& request)
      : candidates_(std::move(candidates)), request_(request), limits_(request) {}

  void decide(Plan* plan) {
    judge();
    sort();
    plan->feasible = !candidates_.empty() && candidates_.front().standing == Standing::kRunnerUp;
    if (plan->feasible) {
      mark_dominated();
      candidates_.front().standing = Standing::kChosen;
      candidates_.front().reason = plan->reason = why_chosen();
      sort();
      add_what_ifs(&plan->what_ifs);
    } else {
      move_least_violation_to_front();
      plan->reason = why_not();
    }
    plan->candidates = std::move(candidates_);
  }

 private:
  void judge() {
    for (Candidate& c : candidates_) {
      if (c.standing == Standing::kBreaks) continue;
      if (!limits_.memory_fits(c)) {
        c.standing = Standing::kOverMemory;
        c.reason = limits_.over_memory(c);
      } else if (!limits_.loss_fits(c)) {
        c.standing = Standing::kOverLoss;
        c.reason = limits_.over_loss(c);
      }
    }
  }

  // Pointers are sorted and each candidate is moved once: they are large.
  void sort() {
    std::vector<Candidate*> order;
    order.reserve(candidates_.size());
    for (Candidate& c : candidates_) order.push_back(&c);
    std::stable_sort(order.begin(), order.end(), [&](const Candidate* a, const Candidate* b) {
      if (a->standing != b->standing) return a->standing < b->standing;
      if (a->standing == Standing::kBreaks) return a->spec < b->spec;
      return objective(*a, request_.prefer) < objective(*b, request_.prefer);
    });
    std::vector<Candidate> sorted;
    sorted.reserve(order.size());
    for (Candidate* c : order) sorted.push_back(std::move(*c));
    candidates_ = std::move(sorted);
  }

  // In order of the objective: whoever dominates somebody stands before him, so one look back suffices.
  void mark_dominated() {
    std::vector<Candidate*> frontier;
    for (Candidate& c : candidates_) {
      if (c.standing != Standing::kRunnerUp) break;
      const auto by = std::find_if(frontier.begin(), frontier.end(), [&](const Candidate* f) { return dominates(*f, c); });
      if (by == frontier.end()) {
        frontier.push_back(&c);
        c.reason = behind(c, candidates_.front());
      } else {
        c.standing = Standing::kDominated;
        c.reason = fmt::format("dominated by {}: no larger, no slower, no worse", (*by)->spec);
      }
    }
  }

  std::string behind(const Candidate& c, const Candidate& chosen) const {
    switch (request_.prefer) {
      case Prefer::kQuality: return fmt::format("fits; expected loss {:.4f} more", c.loss.expected - chosen.loss.expected);
      case Prefer::kSpeed: return fmt::format("fits; {:.2f} s slower in all", c.cost.total_s - chosen.cost.total_s);
      case Prefer::kMemory:
        return fmt::format("fits; {} larger",
                           bytes_text(static_cast<double>(c.cost.bytes()) - static_cast<double>(chosen.cost.bytes())));
    }
    return {};
  }

  std::string limits_text() const {
    std::string text;
    if (request_.memory) text += fmt::format("--memory {}", bytes_text(*request_.memory));
    if (request_.fast_memory)
      text += fmt::format("{}--fast-memory {}", text.empty() ? "" : ", ", bytes_text(*request_.fast_memory));
    if (limits_.max_loss())
      text += fmt::format("{}--max-loss {:g}{}", text.empty() ? "" : ", ", *limits_.max_loss(),
                          request_.max_loss ? "" : " (default)");
    return text.empty() ? "no limit given" : text;
  }

  std::string why_chosen() const {
    const auto fitting = std::count_if(candidates_.begin(), candidates_.end(),
                                       [&](const Candidate& c) { return c.standing != Standing::kBreaks && limits_.fits(c); });
    const char* best = request_.prefer == Prefer::kQuality ? "the least expected loss"
                       : request_.prefer == Prefer::kSpeed ? "the least time in all"
                                                           : "the fewest bytes";
    std::string text = fmt::format("{} of the {} within the limits ({}), of {} considered", best, counted(fitting, "cache"),
                                   limits_text(), candidates_.size());
    const Candidate& c = candidates_.front();
    if (request_.prefer == Prefer::kQuality && request_.max_loss && c.loss.high > *request_.max_loss) {
      text += fmt::format("; its interval reaches {:.4f}, beyond --max-loss {:g}", c.loss.high, *request_.max_loss);
    }
    return text;
  }

  void move_least_violation_to_front() {
    const auto least = std::min_element(candidates_.begin(), candidates_.end(), [&](const Candidate& a, const Candidate& b) {
      const bool a_breaks = a.standing == Standing::kBreaks;
      const bool b_breaks = b.standing == Standing::kBreaks;
      if (a_breaks || b_breaks) return !a_breaks && b_breaks;
      return std::make_tuple(limits_.violation(a), objective(a, request_.prefer)) <
             std::make_tuple(limits_.violation(b), objective(b, request_.prefer));
    });
    if (least != candidates_.end()) std::rotate(candidates_.begin(), least, least + 1);
  }

  // The smallest limits with which somebody would fit.
  std::string why_not() const {
    const Candidate* least_memory = nullptr;  // of those within the loss
    const Candidate* least_loss = nullptr;    // of those within the memory
    for (const Candidate& c : candidates_) {
      if (c.standing == Standing::kBreaks) continue;
      if (limits_.loss_fits(c) && (least_memory == nullptr || c.cost.bytes() < least_memory->cost.bytes())) least_memory = &c;
      if (limits_.memory_fits(c) && (least_loss == nullptr || limits_.bounded_loss(c) < limits_.bounded_loss(*least_loss)))
        least_loss = &c;
    }
    if (candidates_.empty() || candidates_.front().standing == Standing::kBreaks) {
      return candidates_.empty()
                 ? "there is no cache to choose from"
                 : fmt::format("no cache can be taken: {} {}", candidates_.front().spec, candidates_.front().reason);
    }
    std::string text = fmt::format("no cache fits within {}; the nearest is {} ({})", limits_text(), candidates_.front().spec,
                                   candidates_.front().reason);
    std::string fix;
    if (least_memory != nullptr) {
      const char* flag = request_.memory ? "--memory" : "--fast-memory";
      fix = fmt::format("{} {} would allow {}", flag, typed_bytes(least_memory->cost.bytes()), least_memory->spec);
    }
    if (least_loss != nullptr) {
      fix += fmt::format("{}--max-loss {} would allow {}", fix.empty() ? "" : ", ", typed_nats(limits_.bounded_loss(*least_loss)),
                         least_loss->spec);
    }
    return text + "; " + (fix.empty() ? "only a shorter prompt would help" : fix);
  }

  // The borders of this decision: how far each limit must move before another cache is chosen.
  void add_what_ifs(std::vector<WhatIf>* what_ifs) const {
    const Candidate& chosen = candidates_.front();
    const Candidate* more_memory = nullptr;
    const Candidate* more_loss = nullptr;
    const Candidate* less_memory = nullptr;
    for (const Candidate& c : candidates_) {
      if (c.standing == Standing::kBreaks) continue;
      const bool better = objective(c, request_.prefer) < objective(chosen, request_.prefer);
      if (better && limits_.loss_fits(c) && !limits_.memory_fits(c) &&
          (more_memory == nullptr || c.cost.bytes() < more_memory->cost.bytes()))
        more_memory = &c;
      if (better && limits_.memory_fits(c) && !limits_.loss_fits(c) &&
          (more_loss == nullptr || limits_.bounded_loss(c) < limits_.bounded_loss(*more_loss))) {
        more_loss = &c;
      }
      if (&c != &chosen && limits_.fits(c) && c.cost.bytes() < chosen.cost.bytes() &&
          (less_memory == nullptr || objective(c, request_.prefer) < objective(*less_memory, request_.prefer))) {
        less_memory = &c;
      }
    }
    if (more_memory != nullptr)
      what_ifs->push_back(
          {"--memory " + typed_bytes(more_memory->cost.bytes()) + " or more", more_memory->spec, more_memory->loss.expected});
    if (less_memory != nullptr)
      what_ifs->push_back({"--memory below " + typed_bytes(chosen.cost.bytes()), less_memory->spec, less_memory->loss.expected});
    if (more_loss != nullptr)
      what_ifs->push_back(
          {"--max-loss " + typed_nats(limits_.bounded_loss(*more_loss)) + " or more", more_loss->spec, more_loss->loss.expected});
    add_next_best(chosen, what_ifs);
  }

  // What a measurement of the chosen cache would have to find.
  void add_next_best(const Candidate& chosen, std::vector<WhatIf>* what_ifs) const {
    if (request_.prefer != Prefer::kQuality || chosen.loss.source == LossSource::kExact) return;
    const auto next = std::find_if(candidates_.begin() + 1, candidates_.end(),
                                   [](const Candidate& c) { return c.standing == Standing::kRunnerUp; });
    if (next == candidates_.end() || next->loss.expected <= chosen.loss.expected) return;
    what_ifs->push_back({fmt::format("a measured loss of {:.4f} or more", next->loss.expected), next->spec, next->loss.expected});
  }

  std::vector<Candidate> candidates_;
  const PlanRequest& request_;
  Limits limits_;
};

}  // namespace

const char* prefer_name(Prefer prefer) {
  return std::find_if(kPrefers.begin(), kPrefers.end(), [&](const auto& p) { return p.first == prefer; })->second.data();
}

Result<Prefer> parse_prefer(std::string_view text) {
  std::array<std::string_view, kPrefers.size()> names;
  for (std::size_t i = 0; i < kPrefers.size(); ++i) {
    names[i] = kPrefers[i].second;
    if (names[i] == text) return kPrefers[i].first;
  }
  return usage_error(fmt::format("--prefer {} is unknown; {}", quoted(text), choice_hint(text, names)));
}

const char* standing_name(Standing standing) {
  switch (standing) {
    case Standing::kChosen: return "chosen";
    case Standing::kRunnerUp: return "runner-up";
    case Standing::kDominated: return "dominated";
    case Standing::kOverMemory: return "over memory";
    case Standing::kOverLoss: return "over loss";
    case Standing::kBreaks: return "breaks";
  }
  return "";
}

Status check_request(const PlanRequest& request, const ModelShape& shape) {
  KV_TRY(check_workload(request.workload, shape));
  return check_limits(request, shape.f16_bytes_per_token());
}

Result<Weighed> weigh(const PlanInputs& inputs, const Workload& workload) {
  KV_TRY(check_workload(workload, inputs.model.shape));
  QualityModel losses(inputs.evidence, inputs.model_hash, inputs.model.shape);
  return weigh_all(inputs, workload, &losses);
}

Result<Plan> choose(Weighed weighed, const PlanRequest& request) {
  KV_TRY(check_limits(request, weighed.row_bytes));
  Plan plan;
  plan.calibrated = weighed.calibrated;
  plan.cells = weighed.cells;
  Choice(std::move(weighed.candidates), request).decide(&plan);
  return plan;
}

Result<Plan> make_plan(const PlanInputs& inputs, const PlanRequest& request) {
  KV_TRY(check_request(request, inputs.model.shape));
  QualityModel losses(inputs.evidence, inputs.model_hash, inputs.model.shape);
  KV_ASSIGN(Plan plan, choose(weigh_all(inputs, request.workload, &losses), request));
  if (plan.candidates.empty() || plan.first().standing == Standing::kBreaks) return plan;
  Candidate& first = plan.candidates.front();
  first.loss = losses.explain(first.facts, request.workload);
  return plan;
}

}  // namespace kvartet
