// What a cache costs in quality: an estimate with an interval and its source, from stored results where there are any, from
// neighbouring results with wider intervals where not, from `kvartet fidelity` as a weak sign, and from the papers' findings,
// labelled so, where there is nothing.
//
// Unit: nats per token of the reference answer; 0.01 is close to one percent of its probability per token. It is the measure that
// separates caches with few samples. Score differences are carried along as evidence, in points of 100.
// docs/plan.md states the model.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/model_shape.h"
#include "plan/loss_prior.h"
#include "plan/loss_relation.h"
#include "plan/spec_facts.h"
#include "plan/workload.h"
#include "results/evidence.h"

namespace kvartet {

struct EvidenceLine {
  double weight = 0;  // share of the estimate's precision
  std::string text;   // "needle at 2048, 12 samples: 0.0020 nats lost"
};

enum class LossSource { kExact, kMeasured, kNeighbour, kPrior };  // kExact: the reference itself
const char* source_name(LossSource source);                       // "by definition", "measured here", "neighbour", "prior"

struct LossPrediction {
  double low = 0;       // 95 %
  double expected = 0;  // on average, where a loss below 0 counts as none: the less is known, the more
  double high = 0;
  double mean = 0;  // of the belief behind them; below 0: better than the reference, as far as was measured
  double sd = 0;
  LossSource source = LossSource::kPrior;
  int measured_samples = 0;            // of this spec, model, kind and context bucket
  std::vector<EvidenceLine> evidence;  // heaviest first; only QualityModel::explain tells them

  Belief belief() const { return {mean, sd}; }
};

class QualityModel {
 public:
  // `model_hash` tells this model's evidence from that of others.
  QualityModel(std::span<const EvidenceCell> cells, const std::string& model_hash, const ModelShape& shape);
  ~QualityModel();
  QualityModel(const QualityModel&) = delete;
  QualityModel& operator=(const QualityModel&) = delete;

  LossPrediction predict(const SpecFacts& facts, const Workload& workload);
  // The same with its evidence: words take longer than numbers, and only a few predictions are ever read.
  LossPrediction explain(const SpecFacts& facts, const Workload& workload);

  int foreign_cells() const { return foreign_; }    // of other models
  int unread_cells() const { return unread_; }      // of specs that this version or model does not know
  int paper_cells() const { return paper_; }        // in a paper's own form, where caches differ in more than the cache: not used
  int fidelity_cells() const { return fidelity_; }  // of this model, from plain text

 private:
  struct Cell;
  struct Group;    // cells that differ from anything asked in the same way
  struct Related;  // a group with its relation
  struct Carried;  // one cell carried over
  struct Pool;     // the cells at one distance, put together
  struct Posterior;

  static Carried carried(const Cell& cell, const LossRelation& relation, double magnitude);
  static std::string line_of(const Cell& cell, const Related& related);
  static std::vector<EvidenceLine> lines_of(const Posterior& posterior, std::string prior);

  bool place(const EvidenceCell& cell, const std::optional<SpecFacts>& facts, ObservedPart* seen);
  std::vector<Related> related(const LossPart& asked) const;
  Posterior posterior(const LossPart& part, const Belief& prior) const;
  static void set_carry_apart(Posterior* posterior);
  LossPrediction predict_stage(const LossPart& part);
  Belief sum_of_stages(const LossPart& both);
  LossPrediction predict_part(const LossPart& part);

  std::vector<Group> groups_;
  int foreign_ = 0;
  int unread_ = 0;
  int paper_ = 0;
  int fidelity_ = 0;
  std::map<std::string, LossPrediction> known_;  // by part: most candidates share their stages
};

}  // namespace kvartet
