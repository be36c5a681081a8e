// What is asked about when a loss is asked for, and how far an observation of something else may be carried over to it.
// docs/plan.md states both.
#pragma once

#include <optional>
#include <string>

#include "plan/loss_prior.h"
#include "plan/spec_facts.h"
#include "plan/workload.h"

namespace kvartet {

// One stage of a cache alone, or both together, for one workload.
struct LossPart {
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
  std::string key() const;
};

LossPart part_of(const SpecFacts& facts, const Workload& workload);
LossPart eviction_alone(LossPart both);
LossPart format_alone(LossPart both);

// Of one stage, or the plain sum of both: the shape by which observations are scaled to each other.
Belief stage_prior(const LossPart& part);
// How the loss grows with fewer rows and bits, whatever the task and the way rows are chosen.
double shape_of(LossPart part);

struct ObservedPart {
  LossPart part;
  bool same_model = false;
  bool fidelity = false;  // of plain text, no task
  double prior_mean = 0;  // of the part
  double shape = 0;       // of its share of rows and its bits
};

// How an observation's figures are carried over to what is asked.
struct LossRelation {
  double scale = 1;
  double apart = 0;  // relative distance in what it is: kind, model, method, length, format
  double carry = 0;  // and in how much: share of rows, bits
  bool exact = false;
  bool same_kind = false;  // and model
  bool same_model = false;
  bool fidelity = false;

  double distance() const;
  // Observations in one bucket are equally far. Other kinds, other models and plain text mislead for one reason each, at
  // whatever length and budget they were seen: each of the three counts once.
  int bucket() const;
  static constexpr int kExactBucket = -1;
};

// None between stages that are not the same. `expected_here` and `shape_here`: the stage's prior and shape of what is asked.
std::optional<LossRelation> relation_of(const ObservedPart& seen, const LossPart& asked, double expected_here, double shape_here);

}  // namespace kvartet
