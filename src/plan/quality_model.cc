#include "plan/quality_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/counted.h"

namespace kvartet {
namespace {

constexpr double kFloor = 0.0005;  // nats: what even many samples of the same cell leave open (other texts, other seeds)

constexpr TaskKind kKindOfText = TaskKind::kChat;  // whose demand on far rows plain text resembles most

// Fidelity figures, and cells that say nothing, are of prompts sealed as a whole.
QuestionPosition position_of(const EvidenceCell& cell) {
  for (const QuestionPosition position : {QuestionPosition::kUnseen, QuestionPosition::kSecond}) {
    if (cell.parameters.find(fmt::format("question={}", question_position_name(position))) != std::string::npos) return position;
  }
  return QuestionPosition::kSeen;
}

}  // namespace

const char* source_name(LossSource source) {
  switch (source) {
    case LossSource::kExact: return "by definition";
    case LossSource::kMeasured: return "measured here";
    case LossSource::kNeighbour: return "neighbour";
    case LossSource::kPrior: return "prior";
  }
  return "";
}

struct QualityModel::Cell {
  std::string task;
  std::string model;
  int context = 0;
  int samples = 0;
  double nats = 0;                   // lost per token, mean
  double error = 0;                  // its standard error
  std::optional<double> score = {};  // lost, of 1
};

struct QualityModel::Group {
  ObservedPart seen;
  std::vector<Cell> cells;
};

struct QualityModel::Related {
  const Group* group = nullptr;
  LossRelation relation;
};

struct QualityModel::Carried {
  double mean = 0;      // nats, scaled to what is asked
  double sampling = 0;  // standard error of that
  double mislead = 0;   // sd of what the differences may do
  double weight() const { return 1 / (sampling * sampling + mislead * mislead); }
};

// Weighted sums. Cells that are equally far share their way to mislead: a pool counts once, not once per cell.
struct QualityModel::Pool {
  int n = 0;
  double weight = 0;
  double means = 0;
  double squares = 0;
  double mislead = 0;
  double sampling = 0;

  void add(const Carried& c) {
    const double w = c.weight();
    ++n;
    weight += w;
    means += w * c.mean;
    squares += w * c.mean * c.mean;
    mislead += w * c.mislead;
    sampling += w * w * c.sampling * c.sampling;
  }
  double mean() const { return means / weight; }
  double variance() const {
    const double shared = mislead / weight;
    // Tasks of one kind differ by more than their sampling errors say.
    const double between = std::max(squares / weight - mean() * mean(), 0.0);
    return sampling / (weight * weight) + shared * shared + between / n;
  }
};

struct QualityModel::Posterior {
  std::vector<Related> related;
  std::map<int, Pool> pools;  // by bucket
  double magnitude = 0;       // of the loss, as far as anything near tells
  Belief prior;
  double precision = 0;
  double weighted = 0;
  double carry = 0;  // by which all that is known was carried, the prior's level included
  int exact_samples = 0;

  double prior_weight() const { return 1 / (prior.sd * prior.sd) / precision; }
  double exact_weight() const {
    const auto exact = pools.find(LossRelation::kExactBucket);
    return exact == pools.end() ? 0 : 1 / exact->second.variance() / precision;
  }
  LossPrediction loss() const {
    LossPrediction out;
    const double mean = weighted / precision;
    const double sd = std::hypot(std::sqrt(1 / precision), carry * std::max(std::abs(mean), magnitude));
    // Beating the full cache is luck of the samples or of the task, and no reason to choose a cache: no credit for it. And what
    // may lose much, for all that is known, is not as good as what is known to lose little.
    out.mean = mean;
    out.sd = sd;
    out.expected = above_zero(out.belief());
    out.low = std::min(mean - 1.96 * sd, out.expected);
    out.high = std::max(mean + 1.96 * sd, out.expected);
    out.measured_samples = exact_samples;
    out.source = exact_weight() >= 0.5   ? LossSource::kMeasured
                 : prior_weight() >= 0.5 ? LossSource::kPrior
                                         : LossSource::kNeighbour;
    return out;
  }
};

QualityModel::~QualityModel() = default;

QualityModel::QualityModel(std::span<const EvidenceCell> cells, const std::string& model_hash, const ModelShape& shape) {
  std::map<std::string, std::optional<SpecFacts>> parsed;
  std::map<std::string, std::size_t> group_of;
  for (const EvidenceCell& from : cells) {
    const auto [entry, is_new] = parsed.try_emplace(from.spec);
    if (is_new) {
      Result<SpecFacts> facts = spec_facts(from.spec, shape);
      if (facts.ok()) entry->second = std::move(*facts);
    }
    Group group;
    ObservedPart& seen = group.seen;
    seen.same_model = from.model_hash == model_hash;
    seen.fidelity = is_fidelity(from);
    if (!place(from, entry->second, &seen)) continue;
    const std::string key = fmt::format("{}|{}|{}", seen.part.key(), seen.same_model, seen.fidelity);
    const auto [known, is_new_group] = group_of.try_emplace(key, groups_.size());
    if (is_new_group) {
      seen.prior_mean = stage_prior(seen.part).mean;
      seen.shape = shape_of(seen.part);
      groups_.push_back(std::move(group));
    }
    Cell cell = {.task = from.task, .model = from.model_name, .context = from.context, .samples = from.nats.n};
    cell.nats = from.nats.mean;
    cell.error = from.nats.standard_error();
    if (from.score.n >= 2) cell.score = from.score.mean;
    groups_[known->second].cells.push_back(std::move(cell));
  }
}

// False: the cell says nothing about a loss, or nothing that may be used.
bool QualityModel::place(const EvidenceCell& cell, const std::optional<SpecFacts>& facts, ObservedPart* seen) {
  if (is_paper_form(cell)) {
    ++paper_;
    return false;
  }
  if (!facts) {
    ++unread_;
    return false;
  }
  if (!seen->same_model)
    ++foreign_;
  else if (seen->fidelity)
    ++fidelity_;
  if (cell.nats.n < 2) return false;  // no spread, no interval
  Workload asked;
  asked.prompt_tokens = cell.prompt_tokens;
  LossPart& part = seen->part;
  part = part_of(*facts, asked);
  part.share = kept_share(*facts, cell.prompt_tokens, 0);  // how long the answers were, the cell does not say
  if (part.evict && !part.drops_rows()) return false;      // no eviction was seen
  part.kind = seen->fidelity ? kKindOfText : kind_of_task(cell.task);
  part.position = position_of(cell);
  return true;
}

std::vector<QualityModel::Related> QualityModel::related(const LossPart& asked) const {
  const double expected_here = stage_prior(asked).mean;
  const double shape_here = shape_of(asked);
  std::vector<Related> all;
  for (const Group& group : groups_) {
    if (const std::optional<LossRelation> r = relation_of(group.seen, asked, expected_here, shape_here))
      all.push_back({&group, *r});
  }
  return all;
}

QualityModel::Carried QualityModel::carried(const Cell& cell, const LossRelation& r, double magnitude) {
  const double mean = r.scale * cell.nats;
  const double mislead = r.exact ? 0 : r.apart * std::max(std::abs(mean), magnitude);
  return {mean, r.scale * cell.error, mislead + kFloor};
}

// What was measured moves the level; the way from there to other shares and bits is the same for all that was measured at them,
// and for the prior's level. So the nearest one's way is no reason to believe one of them less, but makes the result less sure;
// what lies further away counts less by the rest.
void QualityModel::set_carry_apart(Posterior* posterior) {
  double least = std::numeric_limits<double>::infinity();
  for (const Related& r : posterior->related) least = std::min(least, r.relation.carry);
  if (posterior->related.empty()) return;
  posterior->carry = least;
  for (Related& r : posterior->related) {
    const double beyond = r.relation.carry * r.relation.carry - least * least;
    r.relation.apart = std::hypot(r.relation.apart, std::sqrt(std::max(beyond, 0.0)));
  }
}

QualityModel::Posterior QualityModel::posterior(const LossPart& asked, const Belief& prior) const {
  Posterior out;
  out.related = related(asked);
  const auto distance = [](const Related& r) { return std::pair(!r.relation.same_kind, r.relation.distance()); };
  const auto nearest = std::min_element(out.related.begin(), out.related.end(),
                                        [&](const Related& a, const Related& b) { return distance(a) < distance(b); });
  // Where the nearest observation of this kind is a large loss, small losses of far cells, and of the papers, are no firm
  // evidence.
  out.magnitude = std::abs(prior.mean);
  if (nearest != out.related.end()) {
    const double lost = nearest->relation.scale * nearest->group->cells.front().nats;
    out.magnitude = std::max(out.magnitude, std::abs(lost));
  }
  out.prior = {prior.mean, std::max(prior.sd, out.magnitude)};
  set_carry_apart(&out);
  for (const Related& r : out.related) {
    Pool& pool = out.pools[r.relation.bucket()];
    for (const Cell& cell : r.group->cells) {
      pool.add(carried(cell, r.relation, out.magnitude));
      if (r.relation.exact) out.exact_samples += cell.samples;
    }
  }
  out.precision = 1 / (out.prior.sd * out.prior.sd);
  out.weighted = out.prior.mean * out.precision;
  for (const auto& [bucket, pool] : out.pools) {
    const double variance = pool.variance();
    out.precision += 1 / variance;
    out.weighted += pool.mean() / variance;
  }
  return out;
}

std::string QualityModel::line_of(const Cell& c, const Related& related) {
  const ObservedPart& seen = related.group->seen;
  const LossPart& part = seen.part;
  std::string text =
      fmt::format("{} at {}{}, {}: {:.4f} lost", c.task, c.context, seen.same_model ? "" : fmt::format(" on {}", c.model),
                  seen.fidelity ? counted(c.samples, "independent token of plain text", "independent tokens of plain text")
                                : counted(c.samples, "sample"),
                  c.nats);
  if (c.score) text += fmt::format(" (score changed by {:+.1f} of 100)", -100 * *c.score);
  if (!related.relation.exact) {
    text += fmt::format(", through {}{}{}", part.evict_stage, part.evict && part.format ? "+" : "",
                        part.format ? part.formats_text : "");
  }
  return text;
}

// The heaviest in words, the rest as one line: a large store has hundreds of cells, and nobody reads them.
std::vector<EvidenceLine> QualityModel::lines_of(const Posterior& p, std::string prior) {
  struct Weighed {
    double weight = 0;
    const Cell* cell = nullptr;
    const Related* related = nullptr;
  };
  constexpr std::size_t kLines = 12;
  std::vector<Weighed> weighed;
  for (const Related& r : p.related) {
    const Pool& pool = p.pools.at(r.relation.bucket());
    const double of_pool = 1 / pool.variance() / pool.weight / p.precision;
    for (const Cell& cell : r.group->cells)
      weighed.push_back({of_pool * carried(cell, r.relation, p.magnitude).weight(), &cell, &r});
  }
  std::stable_sort(weighed.begin(), weighed.end(), [](const Weighed& a, const Weighed& b) { return a.weight > b.weight; });
  std::vector<EvidenceLine> lines = {{p.prior_weight(), std::move(prior)}};
  double rest = 0;
  for (std::size_t i = 0; i < weighed.size(); ++i) {
    const Weighed& w = weighed[i];
    if (i < kLines)
      lines.push_back({w.weight, line_of(*w.cell, *w.related)});
    else
      rest += w.weight;
  }
  if (weighed.size() > kLines) lines.push_back({rest, counted(weighed.size() - kLines, "more observation")});
  std::stable_sort(lines.begin(), lines.end(), [](const EvidenceLine& a, const EvidenceLine& b) { return a.weight > b.weight; });
  return lines;
}

LossPrediction QualityModel::predict_stage(const LossPart& part) {
  const auto [known, is_new] = known_.try_emplace(part.key());
  if (is_new) known->second = posterior(part, stage_prior(part)).loss();
  return known->second;
}

// What a combination starts at, until it was measured itself.
Belief QualityModel::sum_of_stages(const LossPart& both) {
  const Belief a = predict_stage(eviction_alone(both)).belief();
  const Belief b = predict_stage(format_alone(both)).belief();
  return {a.mean + b.mean, 1.25 * std::hypot(a.sd, b.sd) + 0.001};
}

LossPrediction QualityModel::predict_part(const LossPart& part) {
  if (!part.evict || !part.format) return predict_stage(part);
  const std::string key = part.key();
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  LossPrediction both = posterior(part, sum_of_stages(part)).loss();
  const auto is_prior = [&](const LossPart& stage) { return predict_stage(stage).source == LossSource::kPrior; };
  if (both.source == LossSource::kPrior && !is_prior(eviction_alone(part)) && !is_prior(format_alone(part)))
    both.source = LossSource::kNeighbour;
  return known_[key] = both;
}

namespace {

LossPrediction no_loss() {
  LossPrediction none;
  none.source = LossSource::kExact;
  return none;
}

}  // namespace

LossPrediction QualityModel::predict(const SpecFacts& facts, const Workload& workload) {
  const LossPart part = part_of(facts, workload);
  if (part.drops_rows()) return predict_part(part);
  return part.format ? predict_stage(format_alone(part)) : no_loss();
}

LossPrediction QualityModel::explain(const SpecFacts& facts, const Workload& workload) {
  LossPrediction out = predict(facts, workload);
  const LossPart part = part_of(facts, workload);
  const bool evicts = part.drops_rows();
  if (!evicts && !part.format) {
    out.evidence.push_back({1, part.evict ? "keeps every row of so short a prompt" : "the reference itself"});
    return out;
  }
  if (evicts && part.format) {
    const Posterior p = posterior(part, sum_of_stages(part));
    const LossPrediction a = predict_stage(eviction_alone(part));
    const LossPrediction b = predict_stage(format_alone(part));
    out.evidence =
        lines_of(p, fmt::format("the sum of its parts: {} loses {:.4f} ({}), {} {:.4f} ({})", facts.evict_stage, a.expected,
                                source_name(a.source), facts.formats_text(), b.expected, source_name(b.source)));
    return out;
  }
  const LossPart stage = evicts ? part : format_alone(part);
  const Posterior p = posterior(stage, stage_prior(stage));
  out.evidence =
      lines_of(p, fmt::format("the papers' findings (prior): {:.4f} ± {:.4f} (95 %)", p.prior.mean, 1.96 * p.prior.sd));
  return out;
}

}  // namespace kvartet
