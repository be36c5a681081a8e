// What a cache costs in quality: an estimate with an interval and its source, from stored results where there are any, from
// neighbouring results with wider intervals where not, and from the papers' findings, labelled so, where there is nothing.
//
// Unit: points. One point is 0.01 nats per token of the reference answer, close to one percent of its probability per token:
// the measure that separates caches with few samples. Score differences are carried along as evidence, in points of 100.
// docs/plan.md states the model.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/model_shape.h"
#include "plan/spec_facts.h"
#include "plan/workload.h"
#include "results/evidence.h"

namespace kvartet {

// A mean with the standard deviation of our knowledge of it, not of samples.
struct Belief {
  double mean = 0;
  double sd = 0;
  double low() const { return mean - 1.96 * sd; }
  double high() const { return mean + 1.96 * sd; }
};

struct EvidenceLine {
  double weight = 0;  // share of the estimate's precision
  std::string text;   // "needle at 2048, 12 samples: 0.2 points"
};

enum class LossSource { kExact, kMeasured, kNeighbour, kPrior };  // kExact: the reference itself
const char* source_name(LossSource source);                       // "by definition", "measured here", "neighbour", "prior"

struct LossPrediction {
  double low = 0;  // 95 %
  double expected = 0;
  double high = 0;
  LossSource source = LossSource::kPrior;
  int measured_samples = 0;            // of this spec, model, kind and context bucket
  std::vector<EvidenceLine> evidence;  // heaviest first
};

// The papers' findings as a number (compression.md 10, 15; offloading.md 9): a prior, never evidence.
Belief prior_of_format(double key_bits, double value_bits, TaskKind kind);
// How fewer rows come to be seen: chosen once by scores, once by position, or anew at every step from all rows.
enum class RowChoice { kByScores, kByPosition, kSelected };
Belief prior_of_eviction(RowChoice choice, double share, TaskKind kind, bool question_seen);

class QualityModel {
 public:
  // `model_hash` tells this model's evidence from that of others.
  QualityModel(std::span<const EvidenceCell> cells, const std::string& model_hash, const ModelShape& shape);
  ~QualityModel();
  QualityModel(const QualityModel&) = delete;
  QualityModel& operator=(const QualityModel&) = delete;

  LossPrediction predict(const SpecFacts& facts, const Workload& workload);
  int foreign_cells() const { return foreign_; }  // of other models
  int unread_cells() const { return unread_; }    // of specs that this version or model does not know

 private:
  struct Cell;
  struct Part;         // what is asked about: one stage alone, or both together
  struct Group;        // cells that differ from anything asked in the same way
  struct Relation;     // how a group's figures are carried over to what is asked
  struct Observation;  // one cell carried over
  using Weighed = std::pair<double, const Observation*>;

  static Part part_of(const SpecFacts& facts, const Workload& workload);
  static Belief stage_prior(const Part& part);
  static std::optional<Relation> relation(const Group& group, const Part& asked, double expected_here);
  std::vector<Observation> carry_over(const Part& asked) const;
  static void describe(std::vector<Weighed>& weighed, std::vector<EvidenceLine>* lines);
  LossPrediction posterior(const Part& part, const Belief& prior) const;
  LossPrediction predict_stage(const Part& part);

  std::vector<Group> groups_;
  int foreign_ = 0;
  int unread_ = 0;
  std::map<std::string, LossPrediction> known_;  // by part: most candidates share their stages
};

}  // namespace kvartet
