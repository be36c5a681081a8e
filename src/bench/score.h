// Scores prediction files in LongBench's form (docs/formats/predictions.md), ours or anybody's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/json_lines.h"
#include "bench/tasks/task.h"
#include "core/status.h"

namespace kvartet {

// LongBench-E reports by the records' `length`, which counts words, not tokens.
struct ScoreBucket {
  std::string name;  // "0-4k", "4-8k", "8k+"
  int n = 0;
  double score = 0;  // 0 when n is 0
};

// "format_failures": 12.5; as the score, 100 * mean over the lines scored.
struct ScorePartMean {
  std::string name;
  double percent = 0;
};

struct ScoreReport {
  std::string task;
  std::string metric;
  int n = 0;                         // lines scored
  double score = 0;                  // 100 * mean over them, rounded to 2 decimals; 0 when n is 0
  std::vector<ScoreBucket> buckets;  // three, over the lines that have a length
  std::vector<ScorePartMean> parts;  // of metrics that have parts
  std::vector<SkippedLine> skipped;  // lines not scored, each with its reason; the score leaves them out
};

// kUsage: the task is judged by likelihood only; kBadInput: the file holds no lines at all. Bad lines are no error here.
Result<ScoreReport> score_predictions(const Task& task, std::string_view text, std::string_view file_name);

// 100 * total / n, rounded to two decimals as Python's round() does.
double percent_score(double total, int n);

}  // namespace kvartet
