// Measures this machine once, so that the planner predicts times from rates of this machine: in under two minutes.
//
// Disk rates are those of one folder's file system (bench/disk_rates.h). Attention and encoding are measured on synthetic rows
// for a few head sizes, so they hold for any model; the rates of weights need a model. Caches are swept out before each round, as
// a decode step's weights sweep them.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/spec.h"
#include "core/status.h"
#include "results/calibration.h"

namespace kvartet {

// One selecting method at two budgets, which tells what the rows cost that could be chosen from what those cost that are.
struct SelectorPair {
  std::string name;
  CacheSpec few, many;  // budgets are shares of the prompt
};

struct CalibrateOptions {
  int threads = 1;
  std::vector<CacheSpec> formats;   // that keep every row: one attention and one encode rate each
  std::vector<CacheSpec> evictors;  // measured on the model
  std::vector<SelectorPair> selectors;
  std::string model_path;      // empty: no rates of weights, evictors and selectors
  std::string tier_directory;  // whose disk is measured; empty: the system's temporary folder
  double budget_s = 90;        // shapes that are not the model's are left out once this is spent
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::string_view what)> progress;
};

struct CalibrateReport {
  Calibration calibration;
  int left_out = 0;  // measurements that the budget did not allow
  std::string disk;  // how it was read, or why it was not measured
  double seconds = 0;
};

// kCancelled: interrupted; else as Engine::open and SequenceCache.
Result<CalibrateReport> calibrate(const CalibrateOptions& options);

}  // namespace kvartet
