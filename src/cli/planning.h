// What the commands that plan share: where the planner's memory lies, how its inputs are gathered, how a plan is shown.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "plan/planner.h"
#include "results/planner_store.h"

namespace kvartet {

// KVARTET_HOME, else kvartet/ in XDG_DATA_HOME, else .local/share/kvartet in HOME; empty when none is set.
std::string planner_home();

// The planner's memory, or none with a note of why. A plan does not need it.
std::optional<PlannerStore> open_planner_store();

// Everything a plan is made of, gathered once: candidates, statistics of results folders, this machine's calibration and what
// `kvartet fidelity` found here.
struct Gathered {
  PlanInputs inputs;
  std::vector<EvidenceCell> evidence;      // what inputs.evidence views
  std::optional<Calibration> calibration;  // what inputs.calibration points to
  std::size_t folders = 0;
  std::string machine_note;  // one line: calibrated when, or why not
  void add(std::span<const EvidenceCell> cells);
  void point();  // the views follow what they view
};

// A folder that is named twice counts once. Of the model file only metadata is read, and with results the pieces that its
// fingerprint covers. kBadInput: a folder without results, or with damaged, foreign or empty ones; a model that cannot be read.
Result<std::unique_ptr<Gathered>> gather(const std::string& model_path, const std::vector<std::string>& results, int threads);

// Is `folder` one of them, however it is written?
bool is_among(const std::string& folder, const std::vector<std::string>& folders);

// The folders of KVARTET_RESULTS, separated by ':'.
std::vector<std::string> results_of_environment();

std::string explain_text(const Plan& plan, const Gathered& gathered, const PlanRequest& request, const std::string& model,
                         bool all);
nlohmann::ordered_json plan_json(const Plan& plan, const Gathered& gathered, const PlanRequest& request);

// "12 cells of this model from 1 folder, 3 of other models (neighbours at best)"
std::string statistics_text(const CellCounts& cells, std::size_t folders);
// "summary, 4096 prompt tokens, 1 answer of 512 tokens"
std::string workload_text(const Workload& workload);

}  // namespace kvartet
