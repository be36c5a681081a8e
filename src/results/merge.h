// Results of several folders as one: other machines, other days, parts of a cluster job.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "results/records.h"

namespace kvartet {

struct FolderResults {
  std::string folder;
  StoredResults results;
};

struct MergedResults {
  StoredResults results;
  int repeated = 0;  // answers found in more than one folder, of which the first (or the one that did not fail) is used
};

// kUsage, naming both folders and the field: model hash, seed, parameters or version differ, a task has two metrics, or a
// sample two prompts. Tasks, samples and caches come in the order in which the folders, as given, first name them.
Result<MergedResults> merge_results(std::vector<FolderResults> parts);

}  // namespace kvartet
