#include "results/paired.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"

namespace kvartet {
namespace {

constexpr double kNormal975 = 1.959963984540054;

PairedInterval t_interval(std::span<const double> d, PairedInterval out) {
  if (d.size() < 2) return out;
  double squares = 0;
  for (double x : d) squares += (x - out.mean) * (x - out.mean);
  const double n = static_cast<double>(d.size());
  const double half = student_t_975(out.n - 1) * std::sqrt(squares / (n - 1) / n);
  out.low = out.mean - half;
  out.high = out.mean + half;
  out.measurable = true;
  return out;
}

PairedInterval count_interval(std::span<const double> d, PairedInterval out) {
  if (d.empty()) return out;
  const double n = static_cast<double>(d.size()) + 2;
  double sum = 0;
  double squares = 1;  // half a pair at +1 and half at -1
  for (double x : d) {
    sum += x;
    squares += x * x;
  }
  const double center = sum / n;
  const double half = kNormal975 * std::sqrt((squares / n - center * center) / n);
  out.low = std::max(-1.0, center - half);
  out.high = std::min(1.0, center + half);
  out.measurable = true;
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
  PairedInterval out;
  out.n = static_cast<int>(differences.size());
  for (double x : differences) out.mean += x / static_cast<double>(differences.size());
  return kind == ScoreKind::kCount ? count_interval(differences, out) : t_interval(differences, out);
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
  if (!interval.measurable || interval.n < kMinimumPairs) return Verdict::kNotMeasurable;
  if (interval.low >= -margin && interval.high <= margin) return Verdict::kSame;
  if (interval.low > 0) return Verdict::kBetter;
  if (interval.high < 0) return Verdict::kWorse;
  return Verdict::kNotMeasurable;
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
