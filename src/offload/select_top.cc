#include "offload/select_top.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "offload/select_kernels.h"

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
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  float largest = x[0];
  std::size_t i = 0;
  auto most = hn::Set(d, x[0]);
  for (; i + lanes <= count; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  largest = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  const auto offset = hn::Set(d, largest);
  auto total = hn::Zero(d);
  auto odd = hn::Zero(d);
  i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    total = hn::Add(total, exp_below_one(d, hn::Sub(hn::LoadU(d, x + i), offset)));
    odd = hn::Add(odd, exp_below_one(d, hn::Sub(hn::LoadU(d, x + i + lanes), offset)));
  }
  for (; i + lanes <= count; i += lanes) total = hn::Add(total, exp_below_one(d, hn::Sub(hn::LoadU(d, x + i), offset)));
  float result = hn::GetLane(hn::SumOfLanes(d, hn::Add(total, odd)));
  alignas(64) float tail[hn::MaxLanes(hn::CappedTag<float, 16>())];
  for (; i < count; ++i) {
    hn::Store(exp_below_one(d, hn::Set(d, x[i] - largest)), d, tail);
    result += tail[0];
  }
  *max = largest;
  *sum = result;
}

// scores[j] = the largest of x[h * stride + j] - offsets[h] over kRows queries and, if there were others, of what it is.
template <std::size_t kRows>
HWY_INLINE void keep_larger_of(const float* HWY_RESTRICT x, std::size_t stride, const float* HWY_RESTRICT offsets,
                               std::size_t count, int first, float* HWY_RESTRICT scores) {
  const hn::CappedTag<float, 16> d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    auto most = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, offsets[0]));
    for (std::size_t h = 1; h < kRows; ++h)
      most = hn::Max(most, hn::Sub(hn::LoadU(d, x + h * stride + i), hn::Set(d, offsets[h])));
    hn::StoreU(first != 0 ? most : hn::Max(hn::LoadU(d, scores + i), most), d, scores + i);
  }
  for (; i < count; ++i) {
    float most = x[i] - offsets[0];
    for (std::size_t h = 1; h < kRows; ++h) {
      const float value = x[h * stride + i] - offsets[h];
      most = value > most ? value : most;
    }
    scores[i] = first != 0 || most > scores[i] ? most : scores[i];
  }
}

void keep_larger(const float* x, std::size_t stride, std::size_t rows, const float* offsets, std::size_t count, int first,
                 float* scores) {
  switch (rows) {
    case 1: return keep_larger_of<1>(x, stride, offsets, count, first, scores);
    case 2: return keep_larger_of<2>(x, stride, offsets, count, first, scores);
    case 3: return keep_larger_of<3>(x, stride, offsets, count, first, scores);
    default: return keep_larger_of<4>(x, stride, offsets, count, first, scores);
  }
}

// The key of a score.
HWY_INLINE std::int32_t key_of(float score) {
  const float even = score + 0.0F;
  std::int32_t bits = 0;
  std::memcpy(&bits, &even, sizeof(bits));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// Indices and keys of the scores that are not below `threshold`, ascending by index; room for all and a few more. A NaN is below
// nothing, so it counts: there are always enough, and what is broken shows in the output. 64 scores at a time: whether one
// vector holds any is as good as random, and would be guessed wrong that often.
std::size_t not_below(const float* HWY_RESTRICT scores, std::size_t count, float threshold, std::int32_t* HWY_RESTRICT found,
                      std::int32_t* HWY_RESTRICT keys) {
  const hn::CappedTag<float, 16> d;
  constexpr std::size_t kTogether = 64;
  const auto limit = hn::Set(d, threshold);
  std::size_t at = 0;
  std::size_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    std::uint64_t bits = 0;
    for (std::size_t j = 0; j < kTogether; j += hn::Lanes(d)) {
      std::uint8_t lanes[8] = {};
      hn::StoreMaskBits(d, hn::Not(hn::Lt(hn::LoadU(d, scores + i + j), limit)), lanes);
      bits |= (std::uint64_t{lanes[0]} | std::uint64_t{lanes[1]} << 8) << j;
    }
    for (; bits != 0; bits &= bits - 1, ++at) {
      const std::size_t here = i + hwy::Num0BitsBelowLS1Bit_Nonzero64(bits);
      found[at] = static_cast<std::int32_t>(here);
      keys[at] = key_of(scores[here]);
    }
  }
  for (; i < count; ++i) {
    if (scores[i] < threshold) continue;
    found[at] = static_cast<std::int32_t>(i);
    keys[at++] = key_of(scores[i]);
  }
  return at;
}

// How many keys reach `least`.
HWY_INLINE std::size_t count_reaching(const std::int32_t* HWY_RESTRICT keys, std::size_t count, std::int32_t least) {
  const hn::CappedTag<std::int32_t, 16> d;
  const auto limit = hn::Set(d, least);
  auto below = hn::Zero(d);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    below = hn::Add(below, hn::VecFromMask(d, hn::Lt(hn::LoadU(d, keys + i), limit)));
  }
  std::int64_t sum = hn::GetLane(hn::SumOfLanes(d, below));
  for (; i < count; ++i) sum -= keys[i] < least ? 1 : 0;
  return static_cast<std::size_t>(static_cast<std::int64_t>(count) + sum);
}

// The largest number that k keys reach or, as soon as one is found, a number that exactly k reach; bit by bit, because no branch
// then depends on the keys. *reach: how many do. 1 <= k <= count.
std::int32_t kth_largest(const std::int32_t* HWY_RESTRICT keys, std::size_t count, std::size_t k,
                         std::size_t* HWY_RESTRICT reach) {
  std::int32_t least = keys[0];
  std::int32_t most = keys[0];
  for (std::size_t i = 1; i < count; ++i) {
    least = keys[i] < least ? keys[i] : least;
    most = keys[i] > most ? keys[i] : most;
  }
  constexpr std::uint32_t kSign = 0x80000000U;  // unsigned numbers in the order of the signed ones
  *reach = count;
  if (least == most || count == k) return least;
  const std::uint32_t high = static_cast<std::uint32_t>(most) ^ kSign;
  const std::uint32_t differ = high ^ static_cast<std::uint32_t>(least) ^ kSign;
  std::uint32_t bit = kSign >> hwy::Num0BitsAboveMS1Bit_Nonzero32(differ);
  std::uint32_t found = high & ~(bit | (bit - 1));  // what all keys have in common, then zeros: all reach it
  for (; bit != 0; bit >>= 1) {
    const std::uint32_t next = found | bit;
    const std::size_t reaching = count_reaching(keys, count, static_cast<std::int32_t>(next ^ kSign));
    if (reaching < k) continue;
    found = next;
    *reach = reaching;
    if (reaching == k) break;
  }
  return static_cast<std::int32_t>(found ^ kSign);
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(max_and_sum);
HWY_EXPORT(keep_larger);
HWY_EXPORT(not_below);
HWY_EXPORT(kth_largest);

namespace {

SelectKernels select_kernels() {
  const SelectKernels wide = select_kernels_avx512();
  return wide.not_below != nullptr ? wide : SelectKernels{SIMD_CHOOSE(not_below), SIMD_CHOOSE(max_and_sum)};
}

std::int32_t key_of_score(float score) {
  const auto bits = std::bit_cast<std::int32_t>(score + 0.0F);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
float score_of_key(std::int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

// A score that probably somewhat more than k scores reach, from a sample of every `step`-th.
float guessed_threshold(std::span<const float> scores, std::size_t k, std::size_t step, std::vector<std::int32_t>* sample) {
  sample->resize(scores.size() / step + 1);
  std::size_t count = 0;
  for (std::size_t i = 0; i < scores.size(); i += step) {
    (*sample)[count] = key_of_score(scores[i]);
    count += std::isnan(scores[i]) ? 0 : 1;
  }
  const double expected = static_cast<double>(k) / static_cast<double>(step);
  const auto rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 4);
  if (rank >= count) return -INFINITY;
  std::size_t reach = 0;
  return score_of_key(SIMD_CHOOSE(kth_largest)(sample->data(), count, rank + 1, &reach));
}

// Of the rows that tie at `key`, the last `count`.
void drop_last_ties(std::span<const float> scores, std::int32_t key, std::size_t count, std::vector<std::int32_t>* chosen) {
  std::size_t at = chosen->size();
  for (std::size_t i = chosen->size(); i-- > 0;) {
    const std::int32_t row = (*chosen)[i];
    const bool drop = count > 0 && key_of_score(scores[static_cast<std::size_t>(row)]) == key;
    if (drop) {
      --count;
    } else {
      (*chosen)[--at] = row;
    }
  }
  chosen->erase(chosen->begin(), chosen->begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

bool SoftmaxPieces::needed(Aggregate aggregate, std::size_t queries) {
  return queries > 1 && (aggregate == Aggregate::kMaxSoftmax || aggregate == Aggregate::kSumSoftmax);
}

void SoftmaxPieces::resize(std::size_t queries, std::size_t candidates) {
  pieces_ = (candidates + kRows - 1) / kRows;
  maxima_.resize(queries * pieces_);
  sums_.resize(queries * pieces_);
}

void SoftmaxPieces::take(MatView<const float> logits, std::size_t first, std::size_t last) {
  KV_CHECK(first % kRows == 0 && last <= logits.cols && (last % kRows == 0 || last == logits.cols));
  const auto max_and_sum = select_kernels().max_and_sum;
  for (std::size_t i = first; i < last; i += kRows) {
    for (std::size_t h = 0; h < logits.rows; ++h) {
      const std::size_t piece = h * pieces_ + i / kRows;
      max_and_sum(logits.row(h) + i, std::min(kRows, last - i), &maxima_[piece], &sums_[piece]);
    }
  }
}

float SoftmaxPieces::log_sum(std::size_t query) const {
  const std::span<const float> maxima = std::span(maxima_).subspan(query * pieces_, pieces_);
  const float max = *std::max_element(maxima.begin(), maxima.end());
  float sum = 0;
  for (std::size_t i = 0; i < pieces_; ++i) sum += sums_[query * pieces_ + i] * std::exp(maxima[i] - max);
  return max + std::log(sum);
}

void aggregate_scores(Aggregate aggregate, MatView<const float> logits, std::span<float> scores) {
  SoftmaxPieces pieces;
  if (SoftmaxPieces::needed(aggregate, logits.rows) && logits.cols > 0) {
    pieces.resize(logits.rows, logits.cols);
    pieces.take(logits, 0, logits.cols);
  }
  aggregate_scores(aggregate, logits, pieces, scores);
}

void aggregate_scores(Aggregate aggregate, MatView<const float> logits, const SoftmaxPieces& pieces, std::span<float> scores) {
  const std::size_t count = scores.size();
  KV_CHECK(logits.cols == count && logits.rows > 0);
  if (count == 0) return;
  const bool divides = SoftmaxPieces::needed(aggregate, logits.rows);
  constexpr std::size_t kTogether = 4;
  if (logits.rows == 1 || aggregate == Aggregate::kMaxSoftmax || aggregate == Aggregate::kMaxLogit) {
    for (std::size_t first = 0; first < logits.rows; first += kTogether) {
      const std::size_t here = std::min(kTogether, logits.rows - first);
      float offsets[kTogether] = {};
      for (std::size_t h = 0; h < here && divides; ++h) offsets[h] = pieces.log_sum(first + h);
      SIMD_CHOOSE(keep_larger)(logits.row(first), logits.stride, here, offsets, count, first == 0 ? 1 : 0, scores.data());
    }
    return;
  }
  std::fill(scores.begin(), scores.end(), 0.0F);
  for (std::size_t h = 0; h < logits.rows; ++h) {
    const float* const row = logits.row(h);
    const float offset = divides ? pieces.log_sum(h) : 0;
    for (std::size_t j = 0; j < count; ++j) {
      scores[j] += divides ? std::exp(row[j] - offset) : row[j] / static_cast<float>(logits.rows);
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
  found_.resize(std::max(found_.size(), scores.size() + kFoundSlack));
  keys_.resize(found_.size());
  const auto find = select_kernels().not_below;
  std::size_t count = find(scores.data(), scores.size(), threshold, found_.data(), keys_.data());
  if (count < wanted) count = find(scores.data(), scores.size(), -INFINITY, found_.data(), keys_.data());  // guessed too high
  std::size_t reach = 0;
  const std::int32_t least = SIMD_CHOOSE(kth_largest)(keys_.data(), count, wanted, &reach);
  chosen->resize(count);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {  // half of them reach it: no branch
    (*chosen)[at] = found_[i];
    at += keys_[i] >= least ? 1 : 0;
  }
  chosen->resize(reach);
  if (reach > wanted) drop_last_ties(scores, least, reach - wanted, chosen);
}

}  // namespace kvartet
#endif
