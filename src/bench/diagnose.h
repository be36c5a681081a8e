// Where a row-selecting cache loses: recall of its index, attention mass, output error, and the grid that tells selection
// loss from representation loss (offloading.md 10 and 5.7).
//
// Teacher forcing on the dense run: `full` decodes the text, and every cache under test is asked with the dense run's queries
// and fed its new rows, so that all see the same.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/fidelity.h"
#include "cache/spec.h"
#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// Mean and 5th and 95th percentile over steps, layers and query heads.
struct Spread {
  double mean = 0;
  double p5 = 0;
  double p95 = 0;
};
Spread spread_of(std::vector<float> values);

struct DiagnosisRow {
  std::string spec;
  int layers = 0;      // that select
  Spread recall;       // of the exact top set of as many rows, shared by the group
  Spread mass;         // exact attention mass on what is attended
  Spread oracle_mass;  // the same with the exact top set
  Spread mass_ratio;   // mass / oracle_mass
  // Relative error of a head's output: {exact | stored} rows x {exact top set | own selection}.
  Spread exact_oracle;
  Spread stored_oracle;    // representation loss
  Spread exact_selected;   // selection loss
  Spread stored_selected;  // what the cache really gives
  Spread key_error;        // of rows in the exact top set: ||k - stored k|| / ||k||
  double key_error_p99 = 0;
  Spread logit_error;                // |q (stored k - k)| / sqrt(d) there
  std::vector<double> layer_recall;  // mean per selecting layer
};

struct DiagnosisReport {
  int prefix_tokens = 0;
  int steps = 0;
  std::vector<DiagnosisRow> rows;  // caches that select; the others have nothing to diagnose
};

Result<DiagnosisReport> diagnose_selection(Engine& engine, std::span<const Token> text, const FidelityRequest& request,
                                           std::span<const CacheSpec> specs,
                                           const std::function<void(double share)>& progress = {});
nlohmann::json diagnosis_json(const DiagnosisReport& report);
std::string diagnosis_table(const DiagnosisReport& report);

}  // namespace kvartet
