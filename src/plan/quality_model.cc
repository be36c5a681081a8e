#include "plan/quality_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/counted.h"

namespace kvartet {
namespace {

constexpr double kBucketOctaves = 0.75;  // contexts closer than this share a bucket
constexpr double kFloor = 0.0005;        // nats: what even many samples of the same cell leave open (other texts, other seeds)

// How far, relative to the loss itself, an observation may mislead when one thing differs (docs/plan.md).
constexpr double kOtherModel = 0.7;
constexpr double kOtherKind = 0.8;
constexpr double kUnknownKind = 1.0;
constexpr double kOtherQuestion = 0.8;  // question seen before sealing or not; matters to eviction alone
constexpr double kOtherUnseen = 0.4;    // neither was seen, but here another question was, there none
constexpr double kPerOctave = 0.15;     // of context
constexpr double kOtherMethod = 0.8;
constexpr double kPerShareOctave = 0.3;
constexpr double kOtherFormat = 0.4;
constexpr double kPerBit = 0.25;
constexpr double kPerScaling = 0.5;  // of the natural logarithm of the priors' ratio: what is carried far is carried badly
// Divergence on plain text is the loss of that text's own tokens, which mostly follow from near ones. For coarser rows it is
// nearly what a task loses; of rows that are gone a text hardly tells.
constexpr double kFidelityOfFormat = 0.7;
constexpr double kFidelityOfEviction = 1.5;
constexpr TaskKind kKindOfText = TaskKind::kChat;  // whose demand on far rows plain text resembles most

constexpr double kMostScaling = 20;  // prior shapes are not trusted to carry a figure further than this

// Fidelity figures, and cells that say nothing, are of prompts sealed as a whole.
QuestionPosition position_of(const EvidenceCell& cell) {
  for (const QuestionPosition position : {QuestionPosition::kUnseen, QuestionPosition::kSecond}) {
    if (cell.parameters.find(fmt::format("question={}", question_position_name(position))) != std::string::npos) return position;
  }
  return QuestionPosition::kSeen;
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

struct QualityModel::Part {
  bool evict = false;
  bool format = false;
  RowChoice choice = RowChoice::kByScores;
  std::string evict_method;
  std::string evict_stage;
  std::string formats;
  std::string formats_text;  // for people
  double share = 1;
  double key_bits = 16;
  double value_bits = 16;
  std::optional<TaskKind> kind;
  int tokens = 0;
  QuestionPosition position = QuestionPosition::kSeen;

  bool question_seen() const { return position == QuestionPosition::kSeen; }
  bool drops_rows() const { return evict && share < 0.999; }  // false also for a prompt so short that every row stays
  std::string key() const {
    return evict_stage + "|" + (format ? formats : "") +
           fmt::format("|{}|{}|{}", kind ? static_cast<int>(*kind) : -1, tokens, question_position_name(position));
  }
};

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
  Part part;
  bool same_model = false;
  bool fidelity = false;  // of plain text, no task
  double prior_mean = 0;  // of the part
  double shape = 0;       // of its share of rows and its bits
  std::vector<Cell> cells;
};

struct QualityModel::Relation {
  double scale = 1;
  double apart = 0;  // relative distance in what it is: kind, model, method, length, format
  double carry = 0;  // and in how much: share of rows, bits
  bool exact = false;
  bool same_kind = false;  // and model
  bool same_model = false;
  bool fidelity = false;

  double distance() const { return std::hypot(apart, carry); }
  // Groups in one bucket are equally far. Other kinds, other models and plain text mislead for one reason each, at whatever
  // length and budget they were seen: each of the three counts once.
  int bucket() const {
    constexpr double kStep = 0.2;
    constexpr int kOtherKinds = 1000;
    if (exact) return -1;
    if (same_kind) return static_cast<int>(apart / kStep);
    return kOtherKinds + (fidelity ? 1 : 0) + (same_model ? 0 : 2);
  }
};

struct QualityModel::Related {
  const Group* group = nullptr;
  Relation relation;
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
    const auto exact = pools.find(-1);
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
    group.same_model = from.model_hash == model_hash;
    group.fidelity = is_fidelity(from);
    if (!place(from, entry->second, &group)) continue;
    const std::string key = fmt::format("{}|{}|{}", group.part.key(), group.same_model, group.fidelity);
    const auto [known, is_new_group] = group_of.try_emplace(key, groups_.size());
    if (is_new_group) {
      group.prior_mean = stage_prior(group.part).mean;
      group.shape = shape_of(group.part);
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
bool QualityModel::place(const EvidenceCell& cell, const std::optional<SpecFacts>& facts, Group* group) {
  if (is_paper_form(cell)) {
    ++paper_;
    return false;
  }
  if (!facts) {
    ++unread_;
    return false;
  }
  if (!group->same_model)
    ++foreign_;
  else if (group->fidelity)
    ++fidelity_;
  if (cell.nats.n < 2) return false;  // no spread, no interval
  Workload asked;
  asked.prompt_tokens = cell.prompt_tokens;
  Part& part = group->part;
  part = part_of(*facts, asked);
  part.share = kept_share(*facts, cell.prompt_tokens, 0);  // how long the answers were, the cell does not say
  if (part.evict && !part.drops_rows()) return false;      // no eviction was seen
  part.kind = group->fidelity ? kKindOfText : kind_of_task(cell.task);
  part.position = position_of(cell);
  return true;
}

QualityModel::Part QualityModel::part_of(const SpecFacts& facts, const Workload& w) {
  Part part;
  part.evict = facts.evicts();
  part.format = facts.quantizes();
  part.choice = facts.selects() ? RowChoice::kSelected : facts.by_position() ? RowChoice::kByPosition : RowChoice::kByScores;
  part.evict_method = facts.evict_method;
  part.evict_stage = facts.evict_stage;
  part.formats = facts.formats();
  part.formats_text = facts.formats_text();
  part.share = kept_share(facts, w.prompt_tokens, w.answer_tokens());
  part.key_bits = facts.key_bits;
  part.value_bits = facts.value_bits;
  part.kind = w.kind;
  part.tokens = w.prompt_tokens;
  part.position = w.asked_position();
  return part;
}

QualityModel::Part QualityModel::eviction_alone(Part both) {
  both.format = false;
  both.key_bits = both.value_bits = 16;
  both.formats = "f16/f16";
  return both;
}

QualityModel::Part QualityModel::format_alone(Part both) {
  both.evict = false;
  both.share = 1;
  both.evict_method.clear();
  both.evict_stage.clear();
  return both;
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
  if (part.evict) add(prior_of_eviction(part.choice, part.share, kind, part.question_seen()));
  if (part.format) add(prior_of_format(part.key_bits, part.value_bits, kind));
  sum.sd = std::sqrt(variance);
  return sum;
}

// How the loss grows with fewer rows and bits, whatever the task and the way rows are chosen.
double QualityModel::shape_of(Part part) {
  part.kind = TaskKind::kSingleFact;
  part.choice = RowChoice::kByScores;
  part.position = QuestionPosition::kSeen;
  return stage_prior(part).mean;
}

std::optional<QualityModel::Relation> QualityModel::relation(const Group& group, const Part& asked, double expected_here,
                                                             double shape_here) {
  const Part& seen = group.part;
  if (seen.evict != asked.evict || seen.format != asked.format) return std::nullopt;
  double apart2 = 0;  // squares of independent ways to mislead
  double carry2 = 0;
  const auto differ = [&](double by) { apart2 += by * by; };
  const auto differ_in_size = [&](double by) { carry2 += by * by; };
  if (!group.same_model) differ(kOtherModel);
  if (group.fidelity)
    differ(asked.evict ? kFidelityOfEviction : kFidelityOfFormat);
  else if (!seen.kind)
    differ(kUnknownKind);
  else if (seen.kind != asked.kind)
    differ(kOtherKind);
  const double context = octaves(seen.tokens, asked.tokens);
  if (context > kBucketOctaves) differ(kPerOctave * context);
  bool same_spec = true;
  if (asked.evict) {
    if (seen.position != asked.position) differ(seen.question_seen() == asked.question_seen() ? kOtherUnseen : kOtherQuestion);
    if (seen.evict_method != asked.evict_method) differ(kOtherMethod);
    if (seen.evict_stage != asked.evict_stage) {
      differ_in_size(0.1 + kPerShareOctave * octaves(seen.share, asked.share));
      same_spec = false;
    }
  }
  if (asked.format && seen.formats != asked.formats) {
    differ(kOtherFormat);
    differ_in_size(kPerBit * std::max(std::abs(seen.key_bits - asked.key_bits), std::abs(seen.value_bits - asked.value_bits)));
    same_spec = false;
  }
  Relation r;
  r.same_model = group.same_model;
  r.fidelity = group.fidelity;
  r.same_kind = group.same_model && !group.fidelity && seen.kind == asked.kind;
  r.exact = same_spec && r.same_kind && context <= kBucketOctaves && (!asked.evict || seen.position == asked.position);
  if (!r.exact && group.prior_mean > 0) r.scale = std::clamp(expected_here / group.prior_mean, 1 / kMostScaling, kMostScaling);
  const double of_shape = r.exact || group.shape <= 0 || shape_here <= 0 ? 0 : std::log(shape_here / group.shape);
  differ_in_size(kPerScaling * std::abs(of_shape));
  differ(kPerScaling * std::abs(std::log(r.scale) - of_shape));
  r.apart = std::sqrt(apart2);
  r.carry = std::sqrt(carry2);
  return r;
}

std::vector<QualityModel::Related> QualityModel::related(const Part& asked) const {
  const double expected_here = stage_prior(asked).mean;
  const double shape_here = shape_of(asked);
  std::vector<Related> all;
  for (const Group& group : groups_) {
    if (const std::optional<Relation> r = relation(group, asked, expected_here, shape_here)) all.push_back({&group, *r});
  }
  return all;
}

QualityModel::Carried QualityModel::carried(const Cell& cell, const Relation& r, double magnitude) {
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

QualityModel::Posterior QualityModel::posterior(const Part& asked, const Belief& prior) const {
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
  const Group& group = *related.group;
  const Part& part = group.part;
  std::string text =
      fmt::format("{} at {}{}, {}: {:.4f} lost", c.task, c.context, group.same_model ? "" : fmt::format(" on {}", c.model),
                  group.fidelity ? counted(c.samples, "independent token of plain text", "independent tokens of plain text")
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

LossPrediction QualityModel::predict_stage(const Part& part) {
  const auto [known, is_new] = known_.try_emplace(part.key());
  if (is_new) known->second = posterior(part, stage_prior(part)).loss();
  return known->second;
}

// What a combination starts at, until it was measured itself.
Belief QualityModel::sum_of_stages(const Part& both) {
  const Belief a = predict_stage(eviction_alone(both)).belief();
  const Belief b = predict_stage(format_alone(both)).belief();
  return {a.mean + b.mean, 1.25 * std::hypot(a.sd, b.sd) + 0.001};
}

LossPrediction QualityModel::predict_part(const Part& part) {
  if (!part.evict || !part.format) return predict_stage(part);
  const std::string key = part.key();
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  LossPrediction both = posterior(part, sum_of_stages(part)).loss();
  const auto is_prior = [&](const Part& stage) { return predict_stage(stage).source == LossSource::kPrior; };
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
  const Part part = part_of(facts, workload);
  if (part.drops_rows()) return predict_part(part);
  return part.format ? predict_stage(format_alone(part)) : no_loss();
}

LossPrediction QualityModel::explain(const SpecFacts& facts, const Workload& workload) {
  LossPrediction out = predict(facts, workload);
  const Part part = part_of(facts, workload);
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
  const Part stage = evicts ? part : format_alone(part);
  const Posterior p = posterior(stage, stage_prior(stage));
  out.evidence =
      lines_of(p, fmt::format("the papers' findings (prior): {:.4f} ± {:.4f} (95 %)", p.prior.mean, 1.96 * p.prior.sd));
  return out;
}

}  // namespace kvartet
