// The planner's memory of this machine: calibrations, statistics of results stores, fidelity on plain text, and decisions with
// what became of them.
//
// One SQLite file beside no results in particular (docs/plan.md): results belong to a folder, these belong to a machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "results/calibration.h"
#include "results/evidence.h"
#include "results/sqlite.h"

namespace kvartet {

inline constexpr const char* kPlannerFile = "planner.sqlite";

// A decision of `--kv auto`, its prediction, and what happened. What was not predicted or did not happen is absent.
struct PlanRecord {
  std::int64_t id = 0;  // given by the store
  std::string decided;  // UTC
  std::string model;
  std::string kind;
  std::string kind_source;  // "given", or why it was guessed
  int prompt_tokens = 0;
  std::string limits;  // "memory=200M,prefer=quality"
  std::string spec;
  std::string reason;
  bool calibrated = false;
  double loss_low = 0, loss_expected = 0, loss_high = 0;  // nats per token
  double predicted_bytes = 0, predicted_ttft_s = 0, predicted_decode_tokens_per_s = 0;
  std::optional<double> actual_bytes, actual_ttft_s, actual_decode_tokens_per_s, actual_loss;
};

class PlannerStore {
 public:
  // Opens or makes `directory`. kIo: it cannot be written; kBadInput: its file is something else or damaged.
  static Result<PlannerStore> open(FileSystem& files, const std::string& directory);

  // Replaces an earlier one of the same machine and threads.
  Status save(const Calibration& calibration);
  Result<std::vector<Calibration>> calibrations();  // newest first. kBadInput: damaged

  // Statistics of the results in `directory`, recomputed only when its file changed (size or time of change).
  // kBadInput: no results there, or foreign or damaged ones.
  Result<std::vector<EvidenceCell>> evidence(FileSystem& files, const std::string& directory);

  // Runs of `kvartet fidelity`; one of the same model, text, cache and lengths is replaced.
  Status keep(std::span<const FidelityRecord> records);
  Result<std::vector<FidelityRecord>> fidelity();  // kBadInput: damaged

  Result<std::int64_t> add(const PlanRecord& plan);
  Status finish(std::int64_t id, const PlanRecord& what_happened);  // the actual_ fields
  Result<std::vector<PlanRecord>> plans();                          // kBadInput: damaged

 private:
  explicit PlannerStore(Database database) : database_(std::move(database)) {}
  Result<std::vector<EvidenceCell>> remembered(const std::string& store);
  Status remember(const std::string& store, const std::string& stamp, const std::vector<EvidenceCell>& cells);
  Database database_;
};

// Statistics of the results in `directory` without remembering them. Errors as above.
Result<std::vector<EvidenceCell>> read_evidence(FileSystem& files, const std::string& directory);

}  // namespace kvartet
