// Paired comparison of one cache with `full` on the same samples: interval and verdict.
//
// Method (docs/formats/results.md states it for readers). Differences d_i = cache_i - full_i of samples both completed.
// - Measurements (log-likelihood, graded similarity such as ROUGE): Student's t interval of the mean difference.
// - Counts of right answers (a score of few values, most differences exactly 0): a t or bootstrap interval would collapse
//   to a point when no sample differs, however few there are. So one pseudo-sample each side: half a pair at +1, half at
//   -1 and one at 0, then the normal interval (Agresti and Min 2005, "Simple improved confidence intervals for comparing
//   matched proportions"; for scores of 0 and 1 it is exactly theirs).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvartet {

enum class ScoreKind : std::uint8_t {
  kCount,        // share of right answers, words or classes
  kMeasurement,  // graded, practically continuous
};

// By the metric's name; unknown names count as kCount, the careful choice.
ScoreKind score_kind(std::string_view metric);

struct PairedInterval {
  int n = 0;
  int documents = 0;  // that the pairs are about: what an interval rests on
  double mean = 0;    // of the differences
  double low = 0;     // 95 %
  double high = 0;
  bool measurable = false;  // false: too few documents for any interval (kMeasurement: 2, kCount: 1)
};

// Differences of pairs, and the document that each pair is about (any numbers: equal ones are the same document).
struct PairedDifferences {
  std::vector<double> values;
  std::vector<int> documents;

  void add(double difference, int document) {
    values.push_back(difference);
    documents.push_back(document);
  }
};

// Several questions about one document are not independent, so documents are the units: each enters by its jackknife
// pseudo-value m + (G - 1) (S - n m) / (N - n) (m mean of all N differences, S sum of this document's n, G documents), which for
// documents of equally many questions is the mean of its own. Over them the interval is as above, with G for the number of
// pairs. For measurements this is the jackknife cluster-robust variance with G - 1 degrees of freedom, which holds for few and
// unequal clusters (MacKinnon, Nielsen and Webb 2023, "Cluster-robust inference: A guide to empirical practice"). With one pair
// for each document the differences themselves are the units.
PairedInterval paired_interval(const PairedDifferences& differences, ScoreKind kind);

// Every pair is about a document of its own.
PairedInterval paired_interval(std::span<const double> differences, ScoreKind kind);

// The 0.975 quantile of Student's t with `degrees` >= 1 degrees of freedom.
double student_t_975(int degrees);

enum class Verdict : std::uint8_t { kSame, kBetter, kWorse, kNotMeasurable, kNone };

// kSame: the whole interval lies within +-margin (equivalence, not absence of proof). Otherwise kBetter or kWorse when
// it excludes 0. Otherwise, or with pairs of fewer than kMinimumPairs documents, n does not suffice: a handful of equal outputs
// has no spread, and its interval would be a point.
inline constexpr int kMinimumPairs = 5;
Verdict verdict_of(const PairedInterval& interval, double margin);

const char* verdict_name(Verdict verdict);  // "same", "better", "worse", "not measurable", ""

// The q-quantile, 0 <= q <= 1, linear between the two nearest values; 0 when there is none.
double quantile(std::vector<double> values, double q);
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

inline constexpr double kScoreMargin = 0.05;  // of a score in [0, 1]: 5 of 100 points, and never more
inline constexpr double kLeastScoreMargin = 0.005;
inline constexpr double kLikelihoodMargin = 0.05;  // nats per token

// The margin of a score whose reference scores `reference`, both in [0, 1]: a tenth of it, between the two above. A summary of
// ROUGE-L 0.18 must not lose 0.05 and count as the same (docs/decisions/0013).
double score_margin(double reference);

}  // namespace kvartet
