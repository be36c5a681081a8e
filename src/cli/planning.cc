#include "cli/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/command.h"
#include "core/counted.h"
#include "core/file_system.h"
#include "model/model_facts.h"
#include "plan/candidates.h"
#include "results/fingerprint.h"

namespace kvartet {
namespace {

Result<ModelCost> model_cost(const std::string& path) {
  KV_ASSIGN(const ModelFacts facts, read_model_metadata(path));
  ModelCost cost;
  cost.shape = facts.shape;
  cost.file_bytes = facts.file_bytes;
  cost.parameters = facts.parameters;
  cost.tied_embeddings = facts.tied_embeddings;
  cost.native_attention = facts.native_attention;
  if (!facts.weight_types.empty()) cost.weight_type = facts.weight_types.front().first;
  return cost;
}

// Why none of the calibrations in the store is used, and what helps.
std::string no_calibration(std::span<const Calibration> all, const Machine& here, int threads) {
  if (all.empty()) return "not calibrated: times are typical values and may be off by a factor of three (kvartet calibrate)";
  const auto of_here = [&](const Calibration& c) { return same_machine(c.machine, here) && c.threads == threads; };
  if (const auto other = std::find_if(all.begin(), all.end(), of_here); other != all.end()) {
    return fmt::format(
        "the calibration of {} measured another way than this Kvartet does (revision {}, here {}) and was not used: times are "
        "typical values and may be off by a factor of three (kvartet calibrate --threads {})",
        other->measured, other->revision, kCalibrationRevision, threads);
  }
  const Calibration& other = all.front();
  if (same_machine(other.machine, here)) {
    return fmt::format(
        "not calibrated for {}, only for {}: times are typical values and may be off by a factor of three (kvartet calibrate "
        "--threads {})",
        counted(threads, "thread"), other.threads, threads);
  }
  return fmt::format(
      "the calibration in {} is of another machine ({}; here {}) and was not used: times may be off by a factor of three "
      "(kvartet calibrate)",
      planner_home(), machine_text(other.machine), machine_text(here));
}

// The newest calibration of this machine, measured as it is now; others that lie there are named, not used.
Status take_calibration(PlannerStore& store, int threads, Gathered* gathered) {
  const Machine here = this_machine();
  KV_ASSIGN(std::vector<Calibration> all, store.calibrations());
  for (Calibration& c : all) {
    if (!same_machine(c.machine, here) || c.threads != threads || c.revision != kCalibrationRevision) continue;
    gathered->machine_note = fmt::format("calibrated {} ({}, {})", c.measured, machine_text(here), counted(threads, "thread"));
    gathered->calibration = std::move(c);
    return {};
  }
  gathered->machine_note = no_calibration(all, here, threads);
  return {};
}

// All of what the planner knows of this machine, or nothing.
Status take_memory(PlannerStore& store, int threads, Gathered* gathered, std::vector<FidelityRecord>* texts) {
  KV_ASSIGN(*texts, store.fidelity());
  return take_calibration(store, threads, gathered);
}

void note_no_memory(const Status& why) { print_note("note: the planner works without its memory: " + why.message()); }

// Twice the same evidence would pass for twice the samples.
std::vector<std::string> each_once(const std::vector<std::string>& folders) {
  std::vector<std::string> once;
  for (const std::string& folder : folders) {
    if (is_among(folder, once))
      print_note(fmt::format("note: the results folder {} is named twice and counts once", folder));
    else
      once.push_back(folder);
  }
  return once;
}

}  // namespace

bool is_among(const std::string& folder, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& other) {
    std::error_code unknown;  // one that is not there is told of by whoever reads it
    return other == folder || std::filesystem::equivalent(other, folder, unknown);
  });
}

std::string planner_home() {
  if (const char* home = std::getenv("KVARTET_HOME"); home != nullptr && *home != 0) return home;
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != 0) return std::string(data) + "/kvartet";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0) return std::string(home) + "/.local/share/kvartet";
  return {};
}

std::optional<PlannerStore> open_planner_store() {
  const std::string home = planner_home();
  if (home.empty()) {
    print_note("note: neither KVARTET_HOME nor HOME is set, so calibrations and decisions are not kept");
    return std::nullopt;
  }
  Result<PlannerStore> store = PlannerStore::open(FileSystem::real(), home);
  if (store.ok()) return std::move(*store);
  note_no_memory(store.status());
  return std::nullopt;
}

void Gathered::add(std::span<const EvidenceCell> cells) {
  evidence.insert(evidence.end(), cells.begin(), cells.end());
  point();
}

void Gathered::point() {
  inputs.evidence = evidence;
  inputs.calibration = calibration ? &*calibration : nullptr;
}

std::vector<std::string> results_of_environment() {
  std::vector<std::string> folders;
  const char* text = std::getenv("KVARTET_RESULTS");
  if (text == nullptr) return folders;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    if (colon != 0) folders.emplace_back(rest.substr(0, colon));
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  return folders;
}

Result<std::unique_ptr<Gathered>> gather(const std::string& model_path, const std::vector<std::string>& results, int threads) {
  auto gathered = std::make_unique<Gathered>();
  KV_ASSIGN(gathered->inputs.model, model_cost(model_path));
  gathered->inputs.threads = threads;
  gathered->inputs.candidates = candidate_specs();
  std::optional<PlannerStore> store = open_planner_store();
  gathered->machine_note = "not calibrated: times are typical values and may be off by a factor of three";
  std::vector<FidelityRecord> texts;
  if (store) {
    const Status taken = take_memory(*store, threads, gathered.get(), &texts);
    if (!taken.ok()) {
      note_no_memory(taken);
      store.reset();
    }
  }
  FileSystem& files = FileSystem::real();
  const std::vector<std::string> folders = each_once(results);
  for (const std::string& folder : folders) {
    Result<std::vector<EvidenceCell>> read = store ? store->evidence(files, folder) : read_evidence(files, folder);
    KV_ASSIGN(std::vector<EvidenceCell> cells, std::move(read));
    if (cells.empty()) {
      return bad_input(fmt::format(
          "The results in {} are no help: no sample there whose answer depends on the cache (of more than one token, or "
          "to a question that was unseen) was run through 'full' and another cache; leave the folder out, or add some with "
          "'kvartet bench --kv full --kv ... -o {}'.",
          folder, folder));
    }
    gathered->add(cells);
  }
  gathered->folders = folders.size();
  for (const FidelityRecord& text : texts) gathered->evidence.push_back(fidelity_cell(text));
  if (!gathered->evidence.empty()) {
    KV_ASSIGN(gathered->inputs.model_hash, model_fingerprint(files, model_path));
  }
  gathered->point();
  return gathered;
}

}  // namespace kvartet
