// How a free-running answer is scored against its references: LongBench's metrics as compression.md 13 defines them,
// and a few plain ones for tasks of our own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

// What is cut off an answer before it is scored (a property of the data set, not of the metric).
enum class AnswerCut : std::uint8_t {
  kNone,
  kFirstLine,  // strip leading newlines only, cut at the next newline (compression.md 13.1)
};

using Texts = std::span<const std::string>;

// Score in [0, 1] of one answer. References and class names are UTF-8, as is the prediction.
using MetricFunction = double (*)(std::string_view prediction, Texts references, Texts all_classes);

// A named part of a score, in [0, 1], reported as its mean: "precision", "format_failures".
struct ScorePart {
  std::string_view name;
  double value = 0;
};
using PartsFunction = std::vector<ScorePart> (*)(std::string_view prediction, Texts references, Texts all_classes);

// kBadInput: this record or answer cannot be scored at all, and why (record readers ask with an empty prediction).
using CheckFunction = Status (*)(std::string_view prediction, Texts references, Texts all_classes);

struct Metric {
  std::string_view name;     // as --metric takes it
  std::string_view summary;  // one line for help
  MetricFunction function = nullptr;
  PartsFunction parts = nullptr;  // may be null
  CheckFunction check = nullptr;  // may be null
};

// Pseudo-metric of tasks that are judged by gold likelihood alone; not in the table.
inline constexpr std::string_view kLikelihoodMetric = "likelihood";

std::span<const Metric> metrics();
const Metric* find_metric(std::string_view name);  // nullptr: unknown

std::string cut_answer(AnswerCut cut, std::string_view answer);

// The metric's check, if it has one.
Status check_answer(std::string_view metric, std::string_view prediction, Texts references, Texts all_classes);

// cut_answer, then the metric.
double score_answer(const Metric& metric, AnswerCut cut, std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
