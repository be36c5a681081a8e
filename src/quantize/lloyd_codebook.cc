#include "quantize/lloyd_codebook.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <span>

#include "core/check.h"
#include "quantize/lloyd_codebook_data.h"

namespace kvartet {
namespace {

constexpr int kCells = 1 << 15;
constexpr double kGaussianEnd = 8.0;  // the mass beyond is 1e-15

// Mass and first moment of the positive half of a law, as running integrals on a fine grid.
class HalfLaw {
 public:
  explicit HalfLaw(int dim) : dim_(dim), end_(dim == 0 ? kGaussianEnd : std::sqrt(dim)), cell_(end_ / kCells) {
    mass_.assign(kCells + 1, 0.0);
    moment_.assign(kCells + 1, 0.0);
    compressed_.assign(kCells + 1, 0.0);
    for (int i = 0; i < kCells; ++i) {
      const double a = i * cell_;
      const double m = a + cell_ / 2;
      const double b = a + cell_;
      const double fa = density(a);
      const double fm = density(m);
      const double fb = density(b);
      const std::size_t at = static_cast<std::size_t>(i);
      mass_[at + 1] = mass_[at] + cell_ / 6 * (fa + 4 * fm + fb);  // Simpson
      moment_[at + 1] = moment_[at] + cell_ / 6 * (a * fa + 4 * m * fm + b * fb);
      compressed_[at + 1] = compressed_[at] + cell_ * std::cbrt(fm);
    }
    const double half = 2 * mass_.back();
    for (double& x : mass_) x /= half;
    for (double& x : moment_) x /= half;
  }

  double end() const { return end_; }
  double mass(double from, double to) const { return at(mass_, to) - at(mass_, from); }
  double moment(double from, double to) const { return at(moment_, to) - at(moment_, from); }

  // Where the integral of density^(1/3) reaches `share` of its whole: levels spread so are nearly optimal when there are many.
  double compressed_quantile(double share) const {
    const double goal = share * compressed_.back();
    const auto above = std::lower_bound(compressed_.begin(), compressed_.end(), goal);
    return static_cast<double>(above - compressed_.begin()) * cell_;
  }

 private:
  double density(double s) const {
    if (dim_ == 0) return std::exp(-s * s / 2);
    const double inside = 1 - s * s / dim_;
    return inside <= 0 ? 0 : std::pow(inside, (dim_ - 3) / 2.0);
  }
  double at(const std::vector<double>& integral, double s) const {
    const double cells = std::clamp(s / cell_, 0.0, static_cast<double>(kCells));
    const std::size_t i = std::min(static_cast<std::size_t>(cells), static_cast<std::size_t>(kCells - 1));
    const double share = cells - static_cast<double>(i);
    return integral[i] + share * (integral[i + 1] - integral[i]);
  }

  int dim_;
  double end_;
  double cell_;
  std::vector<double> mass_;
  std::vector<double> moment_;
  std::vector<double> compressed_;
};

// Upper border of the cell of positive level i.
double upper_border(const std::vector<double>& positive, std::size_t i, const HalfLaw& law) {
  return i + 1 < positive.size() ? (positive[i] + positive[i + 1]) / 2 : law.end();
}

LloydCodebook mirrored(std::span<const double> positive, double distortion) {
  LloydCodebook book{.levels = {}, .distortion = distortion};
  for (std::size_t i = positive.size(); i > 0; --i) book.levels.push_back(-positive[i - 1]);
  book.levels.insert(book.levels.end(), positive.begin(), positive.end());
  return book;
}

double half_distortion(const std::vector<double>& positive, const HalfLaw& law) {
  double distortion = 1.0;  // the variance
  double lower = 0.0;
  for (std::size_t i = 0; i < positive.size(); ++i) {
    const double upper = upper_border(positive, i, law);
    const double level = positive[i];
    distortion += 2 * (level * level * law.mass(lower, upper) - 2 * level * law.moment(lower, upper));
    lower = upper;
  }
  return distortion;
}

}  // namespace

LloydCodebook lloyd_codebook(int bits, int dim) {
  KV_CHECK(bits >= 1 && bits <= 8 && (dim == 0 || dim >= 4));
  constexpr int kMostRounds = 4000;
  constexpr double kSettled = 1e-10;
  const HalfLaw law(dim);
  const std::size_t half = std::size_t{1} << (bits - 1);
  std::vector<double> positive(half);
  for (std::size_t i = 0; i < half; ++i) {
    positive[i] = law.compressed_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(half));
  }
  double moved = 1.0;
  for (int round = 0; round < kMostRounds && moved > kSettled; ++round) {
    moved = 0.0;
    double lower = 0.0;
    for (std::size_t i = 0; i < half; ++i) {
      const double upper = upper_border(positive, i, law);
      const double centroid = law.moment(lower, upper) / law.mass(lower, upper);
      moved = std::max(moved, std::abs(centroid - positive[i]));
      positive[i] = centroid;
      lower = upper;
    }
  }
  return mirrored(positive, half_distortion(positive, law));
}

const LloydCodebook& lloyd_codebook_for_rows(int bits, int dim) {
  struct Once {
    std::once_flag made;
    LloydCodebook book;
  };
  static Once kBooks[9][2];  // by bits; the limit, and the law of 32 channels
  KV_CHECK(bits >= 1 && bits <= 8 && (dim == 32 || dim >= 64));
  Once& once = kBooks[bits][dim == 32 ? 1 : 0];
  std::call_once(once.made, [&] {
    const LloydCodebookData& data = lloyd_codebook_data(bits, dim == 32);
    once.book = mirrored(data.positive, data.distortion);
  });
  return once.book;
}

double coding_distortion(const std::vector<double>& levels, int dim) {
  const std::vector<double> positive(levels.begin() + std::ssize(levels) / 2, levels.end());
  return half_distortion(positive, HalfLaw(dim));
}

}  // namespace kvartet
