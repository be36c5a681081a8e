#include "plan/loss_relation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvartet {
namespace {

constexpr double kBucketOctaves = 0.75;  // contexts closer than this share a bucket

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

constexpr double kMostScaling = 20;  // prior shapes are not trusted to carry a figure further than this

double octaves(double a, double b) { return a > 0 && b > 0 ? std::abs(std::log2(a / b)) : 0; }

}  // namespace

std::string LossPart::key() const {
  return evict_stage + "|" + (format ? formats : "") +
         fmt::format("|{}|{}|{}", kind ? static_cast<int>(*kind) : -1, tokens, question_position_name(position));
}

LossPart part_of(const SpecFacts& facts, const Workload& w) {
  LossPart part;
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

LossPart eviction_alone(LossPart both) {
  both.format = false;
  both.key_bits = both.value_bits = 16;
  both.formats = "f16/f16";
  return both;
}

LossPart format_alone(LossPart both) {
  both.evict = false;
  both.share = 1;
  both.evict_method.clear();
  both.evict_stage.clear();
  return both;
}

Belief stage_prior(const LossPart& part) {
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

double shape_of(LossPart part) {
  part.kind = TaskKind::kSingleFact;
  part.choice = RowChoice::kByScores;
  part.position = QuestionPosition::kSeen;
  return stage_prior(part).mean;
}

double LossRelation::distance() const { return std::hypot(apart, carry); }

int LossRelation::bucket() const {
  constexpr double kStep = 0.2;
  constexpr int kOtherKinds = 1000;
  if (exact) return kExactBucket;
  if (same_kind) return static_cast<int>(apart / kStep);
  return kOtherKinds + (fidelity ? 1 : 0) + (same_model ? 0 : 2);
}

std::optional<LossRelation> relation_of(const ObservedPart& observed, const LossPart& asked, double expected_here,
                                        double shape_here) {
  const LossPart& seen = observed.part;
  if (seen.evict != asked.evict || seen.format != asked.format) return std::nullopt;
  double apart2 = 0;  // squares of independent ways to mislead
  double carry2 = 0;
  const auto differ = [&](double by) { apart2 += by * by; };
  const auto differ_in_size = [&](double by) { carry2 += by * by; };
  if (!observed.same_model) differ(kOtherModel);
  if (observed.fidelity)
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
  LossRelation r;
  r.same_model = observed.same_model;
  r.fidelity = observed.fidelity;
  r.same_kind = observed.same_model && !observed.fidelity && seen.kind == asked.kind;
  r.exact = same_spec && r.same_kind && context <= kBucketOctaves && (!asked.evict || seen.position == asked.position);
  if (!r.exact && observed.prior_mean > 0)
    r.scale = std::clamp(expected_here / observed.prior_mean, 1 / kMostScaling, kMostScaling);
  const double of_shape = r.exact || observed.shape <= 0 || shape_here <= 0 ? 0 : std::log(shape_here / observed.shape);
  differ_in_size(kPerScaling * std::abs(of_shape));
  differ(kPerScaling * std::abs(std::log(r.scale) - of_shape));
  r.apart = std::sqrt(apart2);
  r.carry = std::sqrt(carry2);
  return r;
}

}  // namespace kvartet
