// A preset is a whole study as data: caches, tasks, lengths, samples. `kvartet bench --preset NAME` runs it.
//
// Fair form: what the paper states of a method, run by the one harness that all methods share here. Paper form, where a preset
// has one under a name of its own: the settings of the paper's own runs as far as one harness can have them (compression.md 15).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/runner/benchmark.h"
#include "cache/spec.h"
#include "core/file_system.h"
#include "core/model_shape.h"
#include "core/status.h"

namespace kvartet {

struct PresetCache {
  std::string name;  // the paper's, or ours
  // Specs; the first that fits the model is taken. "{channels_160}" is 160 of 1,024 key channels as a share of this model's.
  std::vector<std::string> alternatives;
  int most_new_tokens = 0;  // where the paper cut this method's answers shorter; 0: as the task has it
};

struct PresetTask {
  std::string task;
  std::vector<int> contexts;  // those beyond the model's are left out
  int samples = 0;
  std::string file = {};  // below --data; not there: the task is left out. Empty: needs none
};

struct Preset {
  std::string name;
  std::string summary;  // one line
  std::vector<PresetCache> caches;
  std::vector<PresetTask> tasks;
  std::string form = {};                // "paper"; empty: fair
  std::vector<std::string> notes = {};  // what of the paper's form is not here
};

const std::vector<Preset>& presets();
// kUsage, naming those there are.
Result<const Preset*> find_preset(std::string_view name);

// What a preset becomes for one model and one folder of data. `notes` say what was replaced or left out, and why.
struct PresetSpecs {
  std::vector<CacheSpec> specs;
  AnswerCaps caps;
  std::vector<std::string> notes;
};
Result<PresetSpecs> preset_specs(const Preset& preset, const ModelShape& shape);

struct PresetRequests {
  std::vector<BenchmarkRequest> requests;  // one for each task
  std::vector<std::string> notes;
};
// `wishes` comes from the command line: its tasks, contexts and samples, where given, take the place of the preset's; the
// rest of it (seed, folder of data, place of the question) holds for all. kExhausted: nothing is left to run.
Result<PresetRequests> preset_requests(const Preset& preset, const BenchmarkRequest& wishes, const ModelShape& shape,
                                       FileSystem& files);

// plan_benchmark for all of them; a task of which no prompt fits a context is left out there, with a note.
struct PresetPlan {
  std::vector<PlannedTask> tasks;
  std::vector<std::string> notes;
};
Result<PresetPlan> plan_preset(std::span<const BenchmarkRequest> requests, const Vocabulary& vocabulary, const ModelShape& shape,
                               FileSystem& files);

}  // namespace kvartet
