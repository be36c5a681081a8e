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

#include "plan/cost_model.h"
#include "plan/quality_model.h"
#include "plan/workload.h"
#include "results/calibration.h"
#include "results/evidence.h"

namespace kvartet {

enum class Prefer : std::uint8_t { kQuality, kSpeed, kMemory };
const char* prefer_name(Prefer prefer);
Result<Prefer> parse_prefer(std::string_view text);  // kUsage: unknown

// What `--max-loss` is when speed or memory is preferred and nothing was said: the margin within which two caches count as
// equal in every table of this program (results/paired.h).
inline constexpr double kDefaultMaxLoss = 5;  // points

struct PlanRequest {
  Workload workload;
  std::optional<std::size_t> memory;       // bytes of the cache over all tiers
  std::optional<std::size_t> fast_memory;  // bytes of it in RAM
  std::optional<double> max_loss;          // points
  Prefer prefer = Prefer::kQuality;
};

struct PlanInputs {
  ModelCost model;
  std::string model_hash;
  std::span<const EvidenceCell> evidence;
  const Calibration* calibration = nullptr;  // null: uncalibrated
  int threads = 1;
  std::vector<std::string> candidates;  // candidate_specs()
};

enum class Standing : std::uint8_t { kChosen, kRunnerUp, kDominated, kOverMemory, kOverLoss, kBreaks };
const char* standing_name(Standing standing);  // "chosen", "runner-up", "dominated", "over memory", "over loss", "breaks"

struct Candidate {
  std::string spec;
  Standing standing = Standing::kBreaks;
  std::string reason;  // one clause: "over memory by 12.1 MB"
  SpecFacts facts;     // these three only unless kBreaks
  CostPrediction cost;
  LossPrediction loss;
};

// "limit at least so much and this would be chosen": the border of the decision.
struct WhatIf {
  std::string change;  // "--memory 41 MB"
  std::string spec;
  double expected_loss = 0;
};

struct Plan {
  bool feasible = false;
  std::vector<Candidate> candidates;  // chosen first (or the least violation), then runners-up, then the rest by standing
  std::string reason;                 // why the first one; if not feasible: what is violated by how much, and what would fix it
  std::vector<WhatIf> what_ifs;
  bool calibrated = false;
  int evidence_cells = 0;  // of this model
  int foreign_cells = 0;   // of other models
  int unread_cells = 0;    // of specs unknown to this version or model

  const Candidate& first() const { return candidates.front(); }
};

// kUsage: no prompt, a limit below one row, contradictory limits, a context that is too short.
// An impossible request is a Plan that is not feasible, not an error.
Result<Plan> make_plan(const PlanInputs& inputs, const PlanRequest& request);

// kUsage: limits that contradict each other or the model; what make_plan checks first.
Status check_request(const PlanRequest& request, const ModelShape& shape);

}  // namespace kvartet
