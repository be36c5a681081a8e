// The report: one HTML file that needs nothing else, no network and no scripts (these only filter).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/claims.h"
#include "report/decisions.h"
#include "report/diagnosis.h"
#include "report/rows.h"
#include "report/speed_curves.h"

namespace kvartet {

struct PageRequest {
  std::vector<std::string> folders = {};  // where the results come from, for people
  std::vector<std::string> notes = {};    // caveats of the merge, beside those of report_caveats
  std::vector<StudyClaims> claims = {};   // find_claims
  Decisions decisions = {};               // of the planner; empty: no such section
  std::vector<SelectionDiagnosis> diagnoses = {};
  std::vector<SpeedCurves> speeds = {};
};

// Texts of models, tasks and samples are data: nothing in them can become markup. The rows of report_json stand in the
// page, too, as <script type="application/json" id="data">.
std::string report_page(const StoredResults& results, std::span<const ReportRow> rows, const PageRequest& request);

}  // namespace kvartet
