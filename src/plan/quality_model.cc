#include "plan/quality_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace kvartet {
namespace {

constexpr double kPointsPerNat = 100;
constexpr double kBucketOctaves = 0.75;  // contexts closer than this share a bucket
constexpr double kFloor = 0.05;          // points: what even many samples of the same cell leave open (other texts, other seeds)

// How far, relative to the loss itself, an observation may mislead when one thing differs (docs/plan.md).
constexpr double kOtherModel = 0.7;
constexpr double kOtherKind = 0.8;
constexpr double kUnknownKind = 1.0;
constexpr double kOtherQuestion = 0.8;  // question seen before sealing or not; matters to eviction alone
constexpr double kPerOctave = 0.15;     // of context
constexpr double kOtherMethod = 0.8;
constexpr double kPerShareOctave = 0.3;
constexpr double kOtherFormat = 0.4;
constexpr double kPerBit = 0.25;
constexpr double kPerScaling = 0.5;  // of the natural logarithm of the priors' ratio: what is carried far is carried badly

constexpr double kMostScaling = 20;  // prior shapes are not trusted to carry a figure further than this

// log-linear between (effective bits, points): KIVI-4 and KIVI-2 at 5 and 3 bits, TurboQuant at 3.5 and 2.5.
constexpr std::array<std::pair<double, double>, 7> kFormatPrior = {
    {{1, 40}, {2, 15}, {3, 4}, {4.25, 1}, {5, 0.5}, {8.5, 0.05}, {16, 0.005}}};

double format_points(double bits) {
  if (bits <= kFormatPrior.front().first) return kFormatPrior.front().second;
  for (std::size_t i = 1; i < kFormatPrior.size(); ++i) {
    const auto [b0, p0] = kFormatPrior[i - 1];
    const auto [b1, p1] = kFormatPrior[i];
    if (bits <= b1) return p0 * std::pow(p1 / p0, (bits - b0) / (b1 - b0));
  }
  return kFormatPrior.back().second;
}

// Points at a quarter of the rows. By position alone whatever is far away is lost; selection has all rows to choose from, and
// still misses some where many are needed.
struct EvictionPrior {
  double by_scores;
  double by_position;
  double selected;
};
EvictionPrior eviction_points(TaskKind kind) {
  switch (kind) {
    case TaskKind::kSingleFact: return {1.5, 20, 0.1};
    case TaskKind::kExtraction: return {6, 25, 1.5};
    case TaskKind::kSummary: return {8, 10, 0.6};
    case TaskKind::kFewShot: return {0.5, 3, 0.1};
    case TaskKind::kChat: return {3, 5, 0.3};
    case TaskKind::kReasoning: return {4, 8, 0.8};
  }
  return {8, 25, 1.5};
}

double octaves(double a, double b) { return a > 0 && b > 0 ? std::abs(std::log2(a / b)) : 0; }

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

Belief prior_of_format(double key_bits, double value_bits, TaskKind kind) {
  const double demand = kind == TaskKind::kExtraction || kind == TaskKind::kReasoning ? 1.5 : 1;
  // Each side adds its own error: fine keys do not make up for coarse values. Errors in keys pass the softmax and weigh more.
  const double mean = demand * (0.6 * format_points(key_bits) + 0.4 * format_points(value_bits));
  return {mean, 2 * mean + 0.3};
}

Belief prior_of_eviction(RowChoice choice, double share, TaskKind kind, bool question_seen) {
  if (share >= 0.999) return {0, kFloor};
  const EvictionPrior points = eviction_points(kind);
  // Scores of a question that was not seen keep the wrong rows; a window of positions, or a choice at every step, does not care.
  const double unseen = question_seen || choice != RowChoice::kByScores ? 1 : 3;
  const double shape = (1 - share) / std::sqrt(share) / 1.5;
  const double at_quarter = choice == RowChoice::kByScores     ? points.by_scores
                            : choice == RowChoice::kByPosition ? points.by_position
                                                               : points.selected;
  const double mean = unseen * shape * at_quarter;
  return {mean, 2 * mean + 0.3};
}

struct QualityModel::Part {
  bool evict = false;
  bool format = false;
  RowChoice choice = RowChoice::kByScores;
  std::string evict_method;
  std::string evict_stage;
  std::string formats;
  double share = 1;
  double key_bits = 16;
  double value_bits = 16;
  std::optional<TaskKind> kind;
  int tokens = 0;
  bool question_seen = true;

  std::string key() const {
    return evict_stage + "|" + (format ? formats : "") +
           fmt::format("|{}|{}|{}", kind ? static_cast<int>(*kind) : -1, tokens, question_seen);
  }
};

struct QualityModel::Cell {
  std::string task;
  std::string model;
  int context = 0;
  Moments nats;
  Moments score;
};

struct QualityModel::Group {
  Part part;
  bool same_model = false;
  double prior_mean = 0;  // of the part
  std::vector<Cell> cells;
};

struct QualityModel::Relation {
  double scale = 1;
  double apart = 0;  // relative distance, for buckets
  bool exact = false;
  bool same_kind = false;  // and model
};

struct QualityModel::Observation {
  double mean = 0;      // points, scaled to what is asked
  double sampling = 0;  // standard error of that
  double mislead = 0;   // sd of what the differences may do
  Relation relation;
  const Group* group = nullptr;
  const Cell* cell = nullptr;
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
    if (!entry->second) {
      ++unread_;
      continue;
    }
    if (from.nats.n < 2) continue;  // no spread, no interval
    Workload asked;
    asked.prompt_tokens = from.prompt_tokens;
    Group group;
    group.part = part_of(*entry->second, asked);
    if (group.part.evict && group.part.share >= 0.999) continue;  // it kept every row of so short a prompt: no eviction was seen
    group.part.kind = kind_of_task(from.task);
    group.part.question_seen = from.parameters.find("question=unseen") == std::string::npos;
    group.same_model = from.model_hash == model_hash;
    if (!group.same_model) ++foreign_;
    const auto [known, is_new_group] =
        group_of.try_emplace(group.part.key() + (group.same_model ? "" : "|other model"), groups_.size());
    if (is_new_group) {
      group.prior_mean = stage_prior(group.part).mean;
      groups_.push_back(std::move(group));
    }
    groups_[known->second].cells.push_back({from.task, from.model_name, from.context, from.nats, from.score});
  }
}

QualityModel::Part QualityModel::part_of(const SpecFacts& facts, const Workload& w) {
  Part part;
  part.evict = facts.evicts();
  part.format = facts.quantizes();
  part.choice = facts.selects() ? RowChoice::kSelected : facts.by_position() ? RowChoice::kByPosition : RowChoice::kByScores;
  part.evict_method = facts.evict_method;
  part.evict_stage = facts.evict_stage;
  part.formats = facts.formats();
  part.share = kept_share(facts, w.prompt_tokens);
  part.key_bits = facts.key_bits;
  part.value_bits = facts.value_bits;
  part.kind = w.kind;
  part.tokens = w.prompt_tokens;
  part.question_seen = w.question_is_seen();
  return part;
}

// Of one stage, or the plain sum of both: the shape by which cells are scaled to each other.
Belief QualityModel::stage_prior(const Part& part) {
  const TaskKind kind = part.kind.value_or(TaskKind::kSingleFact);
  Belief sum;
  double variance = 0;
  const auto add = [&](const Belief& b) {
    sum.mean += b.mean;
    variance += b.sd * b.sd;
  };
  if (part.evict) add(prior_of_eviction(part.choice, part.share, kind, part.question_seen));
  if (part.format) add(prior_of_format(part.key_bits, part.value_bits, kind));
  sum.sd = std::sqrt(variance);
  return sum;
}

std::optional<QualityModel::Relation> QualityModel::relation(const Group& group, const Part& asked, double expected_here) {
  const Part& seen = group.part;
  if (seen.evict != asked.evict || seen.format != asked.format) return std::nullopt;
  double apart2 = 0;  // squares of independent ways to mislead
  const auto differ = [&](double by) { apart2 += by * by; };
  if (!group.same_model) differ(kOtherModel);
  if (!seen.kind)
    differ(kUnknownKind);
  else if (seen.kind != asked.kind)
    differ(kOtherKind);
  const double context = octaves(seen.tokens, asked.tokens);
  if (context > kBucketOctaves) differ(kPerOctave * context);
  bool same_spec = true;
  if (asked.evict) {
    if (seen.question_seen != asked.question_seen) differ(kOtherQuestion);
    if (seen.evict_method != asked.evict_method) differ(kOtherMethod);
    if (seen.evict_stage != asked.evict_stage) {
      differ(0.1 + kPerShareOctave * octaves(seen.share, asked.share));
      same_spec = false;
    }
  }
  if (asked.format && seen.formats != asked.formats) {
    differ(kOtherFormat +
           kPerBit * std::max(std::abs(seen.key_bits - asked.key_bits), std::abs(seen.value_bits - asked.value_bits)));
    same_spec = false;
  }
  Relation r;
  r.same_kind = group.same_model && seen.kind == asked.kind;
  r.exact = same_spec && r.same_kind && context <= kBucketOctaves && (!asked.evict || seen.question_seen == asked.question_seen);
  if (!r.exact && group.prior_mean > 0) r.scale = std::clamp(expected_here / group.prior_mean, 1 / kMostScaling, kMostScaling);
  differ(kPerScaling * std::abs(std::log(r.scale)));
  r.apart = std::sqrt(apart2);
  return r;
}

std::vector<QualityModel::Observation> QualityModel::carry_over(const Part& asked) const {
  const double expected_here = stage_prior(asked).mean;
  std::vector<Observation> all;
  all.reserve(groups_.size());
  for (const Group& group : groups_) {
    const std::optional<Relation> r = relation(group, asked, expected_here);
    if (!r) continue;
    for (const Cell& cell : group.cells) {
      all.push_back({.mean = r->scale * kPointsPerNat * cell.nats.mean,
                     .sampling = r->scale * kPointsPerNat * cell.nats.standard_error(),
                     .mislead = kFloor,
                     .relation = *r,
                     .group = &group,
                     .cell = &cell});
    }
  }
  return all;
}

// The heaviest in words, the rest as one line: a large store has hundreds of cells, and nobody reads them.
void QualityModel::describe(std::vector<Weighed>& weighed, std::vector<EvidenceLine>* lines) {
  constexpr std::size_t kLines = 12;
  const std::size_t shown = std::min(kLines, weighed.size());
  std::partial_sort(
      weighed.begin(), weighed.begin() + static_cast<std::ptrdiff_t>(shown), weighed.end(),
      [](const Weighed& a, const Weighed& b) { return std::pair(-a.first, a.second) < std::pair(-b.first, b.second); });
  for (std::size_t i = 0; i < shown; ++i) {
    const Observation& o = *weighed[i].second;
    const Cell& c = *o.cell;
    const Part& part = o.group->part;
    std::string text =
        fmt::format("{} at {}{}, {} samples: {:.2f} points lost", c.task, c.context,
                    o.group->same_model ? "" : fmt::format(" on {}", c.model), c.nats.n, kPointsPerNat * c.nats.mean);
    if (c.score.n >= 2) text += fmt::format(" (score {:+.1f} of 100)", -100 * c.score.mean);
    if (!o.relation.exact) {
      text +=
          fmt::format(", with {}{}{}", part.evict_stage, part.evict && part.format ? "+" : "", part.format ? part.formats : "");
    }
    lines->push_back({weighed[i].first, std::move(text)});
  }
  if (weighed.size() == shown) return;
  double rest = 0;
  for (std::size_t i = shown; i < weighed.size(); ++i) rest += weighed[i].first;
  lines->push_back({rest, fmt::format("{} more observations", weighed.size() - shown)});
}

LossPrediction QualityModel::posterior(const Part& asked, const Belief& prior) const {
  // Observations that are equally far share their way to mislead: each distance counts once, not once per cell.
  std::vector<Observation> all = carry_over(asked);
  const Observation* nearest = nullptr;
  for (const Observation& o : all) {
    if (nearest == nullptr ||
        std::pair(!o.relation.same_kind, o.relation.apart) < std::pair(!nearest->relation.same_kind, nearest->relation.apart)) {
      nearest = &o;
    }
  }
  // Where the nearest of this kind observation is a large loss, small losses of far cells, and of the papers, are no firm
  // evidence.
  const double magnitude = std::max(prior.mean, nearest != nullptr ? std::abs(nearest->mean) : 0);
  std::map<int, std::vector<const Observation*>> buckets;
  constexpr double kStep = 0.2;
  for (Observation& o : all) {
    if (!o.relation.exact) o.mislead = o.relation.apart * std::max(std::abs(o.mean), magnitude) + kFloor;
    buckets[o.relation.exact ? -1 : static_cast<int>(o.relation.apart / kStep)].push_back(&o);
  }

  LossPrediction out;
  const double prior_sd = std::max(prior.sd, magnitude);
  double precision = 1 / (prior_sd * prior_sd);
  double weighted = prior.mean * precision;
  out.evidence.push_back({precision, fmt::format("prior: {:.2f} points ±{:.2f}", prior.mean, 1.96 * prior_sd)});
  double exact_precision = 0;
  std::vector<Weighed> weighed;
  for (const auto& [distance, observations] : buckets) {
    double p = 0;
    double mean = 0;
    double mislead = 0;
    for (const Observation* observation : observations) {
      const Observation& o = *observation;
      const double w = 1 / (o.sampling * o.sampling + o.mislead * o.mislead);
      p += w;
      mean += w * o.mean;
      mislead += w * o.mislead;
    }
    mean /= p;
    mislead /= p;
    double between = 0;  // tasks of one kind differ by more than their sampling errors say
    double sampling = 0;
    for (const Observation* observation : observations) {
      const Observation& o = *observation;
      const double w = 1 / (o.sampling * o.sampling + o.mislead * o.mislead) / p;
      between += w * (o.mean - mean) * (o.mean - mean);
      sampling += w * w * o.sampling * o.sampling;
    }
    const auto n = static_cast<double>(observations.size());
    const double variance = sampling + mislead * mislead + between / n;
    precision += 1 / variance;
    weighted += mean / variance;
    if (distance < 0) exact_precision = 1 / variance;
    for (const Observation* observation : observations) {
      const Observation& o = *observation;
      const double share = 1 / (o.sampling * o.sampling + o.mislead * o.mislead) / p;
      if (o.relation.exact) out.measured_samples += o.cell->nats.n;
      weighed.emplace_back(share / variance, observation);
    }
  }
  describe(weighed, &out.evidence);
  const double mean = weighted / precision;
  const double sd = std::sqrt(1 / precision);
  for (EvidenceLine& line : out.evidence) line.weight /= precision;
  const double prior_weight = out.evidence.front().weight;
  std::stable_sort(out.evidence.begin(), out.evidence.end(),
                   [](const EvidenceLine& a, const EvidenceLine& b) { return a.weight > b.weight; });
  // Beating the full cache is luck of the samples or of the task, and no reason to choose a cache: no credit for it.
  out.expected = std::max(mean, 0.0);
  out.low = std::min(mean - 1.96 * sd, out.expected);
  out.high = std::max(mean + 1.96 * sd, out.expected);
  if (exact_precision / precision >= 0.5)
    out.source = LossSource::kMeasured;
  else
    out.source = prior_weight >= 0.5 ? LossSource::kPrior : LossSource::kNeighbour;
  return out;
}

LossPrediction QualityModel::predict_stage(const Part& part) {
  const std::string key = part.key();
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  return known_[key] = posterior(part, stage_prior(part));
}

LossPrediction QualityModel::predict(const SpecFacts& facts, const Workload& workload) {
  const Part both = part_of(facts, workload);
  LossPrediction none;
  none.source = LossSource::kExact;
  const bool evicts = both.evict && both.share < 0.999;
  if (!evicts && !both.format) {
    none.evidence.push_back({1, both.evict ? "keeps every row of so short a prompt" : "the reference itself"});
    return none;
  }
  Part evict = both;
  evict.format = false;
  evict.key_bits = evict.value_bits = 16;
  evict.formats = "f16/f16";
  Part format = both;
  format.evict = false;
  format.share = 1;
  format.evict_method.clear();
  format.evict_stage.clear();
  if (!evicts) return predict_stage(format);
  if (!both.format) return predict_stage(evict);

  // Both: the sum of the two, until the combination itself was measured.
  const std::string key = both.key();
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  const LossPrediction a = predict_stage(evict);
  const LossPrediction b = predict_stage(format);
  const double sd_a = (a.high - a.low) / 2 / 1.96;
  const double sd_b = (b.high - b.low) / 2 / 1.96;
  const Belief added = {a.expected + b.expected, 1.25 * std::hypot(sd_a, sd_b) + 0.1};
  LossPrediction sum = posterior(both, added);
  if (sum.source == LossSource::kPrior && a.source != LossSource::kPrior && b.source != LossSource::kPrior)
    sum.source = LossSource::kNeighbour;
  for (EvidenceLine& line : sum.evidence) {
    if (!line.text.starts_with("prior")) continue;
    line.text = fmt::format("{}: {:.2f} points ({}) plus {}: {:.2f} points ({})", facts.evict_stage, a.expected,
                            source_name(a.source), facts.formats(), b.expected, source_name(b.source));
  }
  return known_[key] = sum;
}

}  // namespace kvartet
