// Where a row-selecting cache loses: recall of its index, attention mass, output error, and the grid that tells selection
// loss from representation loss (offloading.md 10 and 5.7).
//
// Teacher forcing on the dense run: `full` decodes the text, and every cache under test is asked with the dense run's queries
// and fed its new rows, so that all see the same.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/fidelity.h"
#include "bench/sample_grid.h"
#include "cache/spec.h"
#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// A figure as a whole, and by layer and by query head: [layers], [heads], and means [layers * heads], NaN where nothing is
// selected.
struct GridFigure {
  Spread all;
  std::vector<Spread> by_layer;  // zeros where nothing is selected
  std::vector<Spread> by_head;
  std::vector<double> map;
};

// A figure of whole layers: one sample per layer and step.
struct LayerFigure {
  Spread all;
  std::vector<Spread> by_layer;  // zeros where nothing is selected
};

struct DiagnosisRow {
  std::string spec;
  std::string sweep_of;     // the spec as it was asked for, if this is it at another budget
  double budget_share = 0;  // of the prompt, where sweep_of says so
  std::vector<int> layers;  // that select
  int selected_rows = 0;    // per selection and step, in the first of them
  int kept_rows = 0;        // of the prompt, always
  GridFigure recall;        // of the exact top set of as many rows, shared by the group
  GridFigure mass;          // exact attention mass on what is attended
  GridFigure mass_ratio;    // mass / the exact top set's
  GridFigure output_error;  // relative, of a head: what the cache really gives
  GridFigure gold_recall;   // of the gold positions, attended by this head; empty if they are not known
  Spread own_recall;        // of each query head's own exact top set
  Spread oracle_mass;       // mass with the exact top set
  Spread own_mass;          // mass with each query head's own
  Spread aggregation_loss;  // own_mass - oracle_mass
  double kept_mass = 0, selected_mass = 0, generated_mass = 0;  // parts of mass, means
  // Relative error of a head's output: {exact | stored} rows x {exact top set | own selection}; the fourth is output_error.
  Spread exact_oracle;
  Spread stored_oracle;   // representation loss
  Spread exact_selected;  // selection loss
  // The same behind the layer's output matrix, all heads together: ||Wo (o~ - o)|| / ||Wo o||.
  LayerFigure projected_exact_oracle, projected_stored_oracle, projected_exact_selected, projected_error;
  Spread key_error;  // of rows in the exact top set: ||k - stored k|| / ||k||
  double key_error_p99 = 0, key_error_max = 0;
  Spread value_error;
  double value_error_p99 = 0, value_error_max = 0;
  Spread logit_error;  // |q (stored k - k)| / sqrt(d) there
  double logit_error_max = 0;
  // Of the gold positions, per step and layer: attended by at least one head, and by at least half of them.
  Spread gold_by_one, gold_by_half;
  Spread reuse;               // of a selection, selected in the step before, too
  double bytes_per_step = 0;  // that came from the slow tier
};

struct DiagnosisReport {
  int texts = 0;
  int prefix_tokens = 0;           // the longest
  int steps = 0;                   // of all texts
  int layers = 0;                  // of the model
  int heads = 0;                   // query heads of a layer
  int gold_tokens = 0;             // of all texts
  std::vector<DiagnosisRow> rows;  // caches that select; the others have nothing to diagnose
};

struct DiagnosisOptions {
  bool sweep = false;  // every cache also at the budgets of budget_sweep()
};

// The cache at budgets of 1/1024, 1/512, ... 1/4 of the prompt (5.6), with what these shares are. Empty for a cache that does not
// select.
struct SweptSpec {
  CacheSpec spec;
  double share = 0;
};
std::vector<SweptSpec> budget_sweep(const CacheSpec& spec);

// Each compared token of each text is a step. Errors as compare_texts.
Result<DiagnosisReport> diagnose_selection(Engine& engine, std::span<const ComparedText> texts, std::span<const CacheSpec> specs,
                                           const DiagnosisOptions& options = {},
                                           const std::function<void(double share)>& progress = {});
nlohmann::json diagnosis_json(const DiagnosisReport& report);
std::string diagnosis_table(const DiagnosisReport& report);

}  // namespace kvartet
