// The planner's choices for a report: for every kind of task, length and memory cap, from the same results.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "report/decisions.h"
#include "results/records.h"

namespace kvartet {

struct DecisionRequest {
  std::vector<std::string> folders;  // of the results
  std::string model;                 // as the user named it; empty: as the results name it
};

// `note` says why there are none when nobody asked for them by naming the model. kBadInput: the model named is not there, or not
// the one of the results; else as gather() and weigh().
Result<Decisions> decisions_of(const StoredResults& results, std::span<const ReportRow> rows, const DecisionRequest& request,
                               std::string* note);

}  // namespace kvartet
