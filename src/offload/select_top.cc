#include "offload/select_top.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/select_top.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x for x <= 0, relative error below 3e-7; smaller than e^-87 becomes e^-87.
template <class D>
HWY_INLINE hn::Vec<D> exp_below_one(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  x = hn::Max(x, hn::Set(d, -87.0F));
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504F)));
  const auto nf = hn::ConvertTo(d, n);
  auto r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4F), r);
  auto p = hn::Set(d, 1.0F / 720);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(n)));
}

// The maximum and the sum of e^(x - maximum).
void max_and_sum(const float* HWY_RESTRICT x, std::size_t count, float* max, float* sum) {
  const hn::CappedTag<float, 8> d;
  const std::size_t lanes = hn::Lanes(d);
  float largest = x[0];
  std::size_t i = 0;
  auto most = hn::Set(d, x[0]);
  for (; i + lanes <= count; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  largest = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  const auto offset = hn::Set(d, largest);
  auto total = hn::Zero(d);
  i = 0;
  for (; i + lanes <= count; i += lanes) total = hn::Add(total, exp_below_one(d, hn::Sub(hn::LoadU(d, x + i), offset)));
  float result = hn::GetLane(hn::SumOfLanes(d, total));
  alignas(64) float tail[hn::MaxLanes(hn::CappedTag<float, 8>())];
  for (; i < count; ++i) {
    hn::Store(exp_below_one(d, hn::Set(d, x[i] - largest)), d, tail);
    result += tail[0];
  }
  *max = largest;
  *sum = result;
}

// scores = max(scores, x - offset), or x - offset for the first query.
void keep_larger(const float* HWY_RESTRICT x, float offset, std::size_t count, int first, float* HWY_RESTRICT scores) {
  const hn::CappedTag<float, 8> d;
  const auto shift = hn::Set(d, offset);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto value = hn::Sub(hn::LoadU(d, x + i), shift);
    hn::StoreU(first != 0 ? value : hn::Max(hn::LoadU(d, scores + i), value), d, scores + i);
  }
  for (; i < count; ++i) {
    const float value = x[i] - offset;
    scores[i] = first != 0 || value > scores[i] ? value : scores[i];
  }
}

// Indices of the scores that are not below `threshold`, ascending; `found` has room for all. Most vectors hold none.
// A NaN is below nothing, so it counts: there are always enough, and what is broken shows in the output.
std::size_t not_below(const float* HWY_RESTRICT scores, std::size_t count, float threshold, std::int32_t* HWY_RESTRICT found) {
  const hn::CappedTag<float, 8> d;
  const auto limit = hn::Set(d, threshold);
  std::size_t at = 0;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto wanted = hn::Not(hn::Lt(hn::LoadU(d, scores + i), limit));
    if (hn::AllFalse(d, wanted)) continue;
    std::uint8_t lanes[8] = {};
    hn::StoreMaskBits(d, wanted, lanes);
    for (std::uint64_t bits = lanes[0]; bits != 0; bits &= bits - 1) {
      found[at++] = static_cast<std::int32_t>(i) + static_cast<std::int32_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(bits));
    }
  }
  for (; i < count; ++i) {
    if (!(scores[i] < threshold)) found[at++] = static_cast<std::int32_t>(i);
  }
  return at;
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(max_and_sum);
HWY_EXPORT(keep_larger);
HWY_EXPORT(not_below);

namespace {

// Larger score first, then lower index: as one integer, larger is better.
std::uint64_t key_of(float score, std::size_t index) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 and 0 are equal
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32) | (0xffffffffU - static_cast<std::uint32_t>(index));
}

// A score that probably somewhat more than k scores reach, from a sample of every `step`-th.
float guessed_threshold(std::span<const float> scores, std::size_t k, std::size_t step, std::vector<float>* sample) {
  sample->clear();
  for (std::size_t i = 0; i < scores.size(); i += step)
    if (!std::isnan(scores[i])) sample->push_back(scores[i]);
  const double expected = static_cast<double>(k) / static_cast<double>(step);
  const auto rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 4);
  if (rank >= sample->size()) return -INFINITY;
  std::nth_element(sample->begin(), sample->begin() + static_cast<std::ptrdiff_t>(rank), sample->end(), std::greater<>());
  return (*sample)[rank];
}

}  // namespace

void aggregate_scores(Aggregate aggregate, MatView<const float> logits, std::span<float> scores) {
  const std::size_t count = scores.size();
  KV_CHECK(logits.cols == count && logits.rows > 0);
  if (count == 0) return;
  const auto larger = SIMD_CHOOSE(keep_larger);
  const bool softmax = aggregate == Aggregate::kMaxSoftmax || aggregate == Aggregate::kSumSoftmax;
  if (logits.rows == 1) return larger(logits.row(0), 0.0F, count, 1, scores.data());  // softmax of one head keeps the order
  if (aggregate == Aggregate::kMeanQuery || aggregate == Aggregate::kSumSoftmax) std::fill(scores.begin(), scores.end(), 0.0F);
  for (std::size_t h = 0; h < logits.rows; ++h) {
    const float* const row = logits.row(h);
    float max = 0;
    float sum = 1;
    if (softmax) SIMD_CHOOSE(max_and_sum)(row, count, &max, &sum);
    const float offset = max + std::log(sum);
    switch (aggregate) {
      case Aggregate::kMaxSoftmax: larger(row, offset, count, h == 0 ? 1 : 0, scores.data()); break;
      case Aggregate::kMaxLogit: larger(row, 0.0F, count, h == 0 ? 1 : 0, scores.data()); break;
      case Aggregate::kMeanQuery:
        for (std::size_t j = 0; j < count; ++j) scores[j] += row[j] / static_cast<float>(logits.rows);
        break;
      case Aggregate::kSumSoftmax:
        for (std::size_t j = 0; j < count; ++j) scores[j] += std::exp(row[j] - offset);
        break;
    }
  }
}

void TopSelector::select(std::span<const float> scores, int k, std::vector<std::int32_t>* chosen) {
  KV_CHECK(k >= 0 && static_cast<std::size_t>(k) <= scores.size());
  chosen->clear();
  if (k == 0) return;
  const auto wanted = static_cast<std::size_t>(k);
  constexpr std::size_t kStep = 16;
  float threshold = -INFINITY;
  if (scores.size() >= 64 * kStep) threshold = guessed_threshold(scores, wanted, kStep, &sample_);
  found_.resize(std::max(found_.size(), scores.size()));
  std::size_t count = SIMD_CHOOSE(not_below)(scores.data(), scores.size(), threshold, found_.data());
  if (count < wanted) count = SIMD_CHOOSE(not_below)(scores.data(), scores.size(), -INFINITY, found_.data());  // guessed too high
  keys_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(found_[i]);
    keys_[i] = key_of(scores[index], index);
  }
  // Keys stay in the order of their indices, so that what reaches the k-th largest needs no sorting; half of them do, so that a
  // branch would be guessed wrong half the time.
  ranked_ = keys_;
  const auto kth = ranked_.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(ranked_.begin(), kth, ranked_.end(), std::greater<>());
  chosen->resize(count);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    (*chosen)[at] = found_[i];
    at += keys_[i] >= *kth ? 1 : 0;
  }
  chosen->resize(wanted);
}

}  // namespace kvartet
#endif
