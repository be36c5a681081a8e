// The choice: from a workload, limits, a machine and what was measured to one spec, the runners-up, and a reason for every
// candidate that was not taken. Pure: no files, no clock, no randomness; the same inputs give the same plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/spec.h"
#include "plan/cost_model.h"
#include "plan/quality_model.h"
#include "plan/workload.h"
#include "results/calibration.h"
#include "results/evidence.h"
#include "results/paired.h"

namespace kvartet {

enum class Prefer : std::uint8_t { kQuality, kSpeed, kMemory };
const char* prefer_name(Prefer prefer);
Result<Prefer> parse_prefer(std::string_view text);  // kUsage: unknown

// What `--max-loss` is when speed or memory is preferred and nothing was said: within it two caches count as equal in every table
// of this program.
inline constexpr double kDefaultMaxLoss = kLikelihoodMargin;  // nats per token
inline constexpr double kMostMaxLoss = 1;                     // more would bound nothing

struct PlanRequest {
  Workload workload;
  std::optional<std::size_t> memory;       // bytes of the cache over all tiers
  std::optional<std::size_t> fast_memory;  // bytes of it in RAM
  std::optional<double> max_loss;          // nats per token
  Prefer prefer = Prefer::kQuality;
};

struct PlanInputs {
  ModelCost model;
  std::string model_hash;
  std::span<const EvidenceCell> evidence;
  const Calibration* calibration = nullptr;  // null: uncalibrated
  int threads = 1;
  std::vector<CacheSpec> candidates;  // candidate_specs()
};

enum class Standing : std::uint8_t { kChosen, kRunnerUp, kDominated, kOverMemory, kOverLoss, kBreaks };
const char* standing_name(Standing standing);  // "chosen", "runner-up", "dominated", "over memory", "over loss", "breaks"

struct Candidate {
  std::string spec;
  Standing standing = Standing::kBreaks;
  std::string reason;  // one clause: "over memory: needs 12.1 MiB, ..."
  SpecFacts facts;     // these three only unless kBreaks
  CostPrediction cost;
  LossPrediction loss;
};

// How much of the evidence was of use.
struct CellCounts {
  int tasks = 0;     // of this model
  int fidelity = 0;  // of this model, on plain text
  int foreign = 0;   // of other models
  int unread = 0;    // of specs unknown to this version or model
  int paper = 0;     // in a paper's own form: left out
};

// "limit at least so much and this would be chosen": the border of the decision.
struct WhatIf {
  std::string change;  // "--memory 41984K"
  std::string spec;
  double expected_loss = 0;
};

struct Plan {
  bool feasible = false;
  std::vector<Candidate> candidates;  // chosen first (or the least violation), then runners-up, then the rest by standing
  std::string reason;                 // why the first one; if not feasible: what is violated by how much, and what would fix it
  std::vector<WhatIf> what_ifs;
  bool calibrated = false;
  CellCounts cells;

  const Candidate& first() const { return candidates.front(); }
};

// Every candidate with its cost and its loss for one workload: what no limit changes.
struct Weighed {
  std::vector<Candidate> candidates;
  std::size_t row_bytes = 0;  // of one token of the model in f16
  bool calibrated = false;
  CellCounts cells;
};
// kUsage: no prompt, no question; kExhausted: a context that is too short.
Result<Weighed> weigh(const PlanInputs& inputs, const Workload& workload);
// The choice within limits; the workload of `request` is the one that was weighed. Losses come without their evidence.
// kUsage: a limit below one row, contradictory limits. An impossible request is a Plan that is not feasible, not an error.
Result<Plan> choose(Weighed weighed, const PlanRequest& request);

// Both in one, and the first candidate's loss with its evidence. Errors as of both.
Result<Plan> make_plan(const PlanInputs& inputs, const PlanRequest& request);

// kUsage: limits that contradict each other or the model; what make_plan checks first.
Status check_request(const PlanRequest& request, const ModelShape& shape);

}  // namespace kvartet
