#include "results/paired.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/check.h"

namespace kvartet {
namespace {

constexpr double kNormal975 = 1.959963984540054;

// What an interval is computed from: a figure for each document, whose mean is `mean`.
struct Units {
  std::vector<double> values;
  double mean = 0;
};

void set_t_interval(const Units& units, PairedInterval& out) {
  if (units.values.size() < 2) return;
  double squares = 0;
  for (double x : units.values) squares += (x - units.mean) * (x - units.mean);
  const double n = static_cast<double>(units.values.size());
  const double half = student_t_975(out.documents - 1) * std::sqrt(squares / (n - 1) / n);
  out.low = out.mean - half;
  out.high = out.mean + half;
  out.measurable = true;
}

void set_count_interval(const Units& units, PairedInterval& out) {
  if (units.values.empty()) return;
  const double n = static_cast<double>(units.values.size()) + 2;
  double sum = 0;
  double squares = 1;  // half a pair at +1 and half at -1
  for (double x : units.values) {
    sum += x;
    squares += x * x;
  }
  const double center = sum / n;
  const double half = kNormal975 * std::sqrt((squares / n - center * center) / n);
  out.low = std::max(-1.0, center - half);
  out.high = std::min(1.0, center + half);
  out.measurable = true;
}

double mean_of(std::span<const double> values) {
  double mean = 0;
  for (double x : values) mean += x / static_cast<double>(values.size());
  return mean;
}

struct Document {
  double sum = 0;
  double pairs = 0;
};

// In the order of their first pairs.
std::vector<Document> documents_of(const PairedDifferences& differences) {
  KV_CHECK(differences.values.size() == differences.documents.size());
  std::vector<Document> out;
  std::map<int, std::size_t> place;
  for (std::size_t i = 0; i < differences.values.size(); ++i) {
    const auto [it, fresh] = place.try_emplace(differences.documents[i], out.size());
    if (fresh) out.emplace_back();
    out[it->second].sum += differences.values[i];
    out[it->second].pairs += 1;
  }
  return out;
}

// One document alone says nothing about others: its pseudo-value is the mean.
std::vector<double> pseudo_values(const std::vector<Document>& documents, double mean, std::size_t pairs) {
  std::vector<double> out;
  for (const Document& d : documents) {
    const double others = static_cast<double>(pairs) - d.pairs;
    const double weight = others > 0 ? (static_cast<double>(documents.size()) - 1) / others : 0;
    out.push_back(mean + weight * (d.sum - d.pairs * mean));
  }
  return out;
}

PairedInterval interval_of(Units units, std::size_t pairs, ScoreKind kind) {
  PairedInterval out;
  out.n = static_cast<int>(pairs);
  out.documents = static_cast<int>(units.values.size());
  out.mean = units.mean;
  if (kind == ScoreKind::kCount) {
    set_count_interval(units, out);
  } else {
    set_t_interval(units, out);
  }
  return out;
}

}  // namespace

ScoreKind score_kind(std::string_view metric) {
  constexpr std::array<std::string_view, 2> kMeasured = {"rouge", "code_sim"};
  const bool measured =
      std::any_of(kMeasured.begin(), kMeasured.end(), [&](std::string_view m) { return metric.starts_with(m); });
  return measured ? ScoreKind::kMeasurement : ScoreKind::kCount;
}

PairedInterval paired_interval(std::span<const double> differences, ScoreKind kind) {
  return interval_of({{differences.begin(), differences.end()}, mean_of(differences)}, differences.size(), kind);
}

PairedInterval paired_interval(const PairedDifferences& differences, ScoreKind kind) {
  const std::vector<Document> documents = documents_of(differences);
  const std::size_t pairs = differences.values.size();
  if (documents.size() == pairs) return paired_interval(std::span(differences.values), kind);
  const double mean = mean_of(differences.values);
  return interval_of({pseudo_values(documents, mean, pairs), mean}, pairs, kind);
}

double student_t_975(int degrees) {
  KV_CHECK(degrees >= 1);
  constexpr std::array<double, 10> kSmall = {12.706205, 4.302653, 3.182446, 2.776445, 2.570582,
                                             2.446912,  2.364624, 2.306004, 2.262157, 2.228139};
  if (degrees <= 10) return kSmall[static_cast<std::size_t>(degrees - 1)];
  // Cornish-Fisher expansion around the normal quantile: within 2e-4 from 11 degrees on.
  const double z = kNormal975;
  const double v = degrees;
  const double z2 = z * z;
  return z + z * (z2 + 1) / (4 * v) + z * ((5 * z2 + 16) * z2 + 3) / (96 * v * v) +
         z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / (384 * v * v * v);
}

Verdict verdict_of(const PairedInterval& interval, double margin) {
  if (!interval.measurable || interval.documents < kMinimumPairs) return Verdict::kNotMeasurable;
  if (interval.low >= -margin && interval.high <= margin) return Verdict::kSame;
  if (interval.low > 0) return Verdict::kBetter;
  if (interval.high < 0) return Verdict::kWorse;
  return Verdict::kNotMeasurable;
}

double score_margin(double reference) {
  constexpr double kShare = 0.1;
  return std::clamp(kShare * reference, kLeastScoreMargin, kScoreMargin);
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame: return "same";
    case Verdict::kBetter: return "better";
    case Verdict::kWorse: return "worse";
    case Verdict::kNotMeasurable: return "not measurable";
    case Verdict::kNone: return "";
  }
  return "";
}

}  // namespace kvartet
