// What `kvartet fidelity --diagnose --json` wrote, read back for the page.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

struct DiagnosedFigure {
  double mean = 0;
  double p5 = 0;
  double p95 = 0;
  std::vector<std::vector<double>> map;  // [layers][heads]; NaN: nothing is selected there
};

struct DiagnosedCache {
  std::string spec;
  std::string sweep_of;     // the cache whose budgets are swept; "": this is none of a sweep
  double budget_share = 0;  // of the prompt, in a sweep
  int selected_rows = 0;
  DiagnosedFigure recall, mass, mass_ratio, output_error;
  std::optional<DiagnosedFigure> gold;  // gold tokens attended
  double gold_by_one = 0;
  double oracle_mass = 0, aggregation_loss = 0;                    // means
  double exact_oracle = 0, stored_oracle = 0, exact_selected = 0;  // mean output errors
  double key_error = 0, key_error_p99 = 0, reuse = 0;
};

struct SelectionDiagnosis {
  std::string source;  // the file's name, for people
  int texts = 1;
  int prefix_tokens = 0;  // of the longest text
  int steps = 0;          // of all texts
  int gold_tokens = 0;
  std::vector<DiagnosedCache> caches;
};

// kBadInput: not such a file, or without a diagnosis.
Result<SelectionDiagnosis> parse_diagnosis(std::string_view text, const std::string& source);

}  // namespace kvartet
