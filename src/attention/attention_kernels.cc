#include "attention/attention_kernels.h"

#include <cmath>
#include <cstring>

#include "attention/packed_queries.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/attention_kernels.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Lanes = HWY_CAPPED(float, 16);
using V = hn::Vec<Lanes>;
constexpr Lanes kTag;
constexpr std::size_t kVector = hn::MaxLanes(Lanes());
constexpr std::size_t kPanel = 2 * kVector;
constexpr std::size_t kRows = kMicroRows;
constexpr std::size_t kBlock = kPrefillBlock;
static_assert(kBlock % (2 * kPanel) == 0);

// ---- softmax

// 2^x for x <= 0, relative error below 1.5e-7; exactly 1 for 0, exactly 0 below 2^-125 and for -inf. Minimax polynomial of
// degree 5 on [-1/2, 1/2] with the constant fixed at 1 (error 9.2e-8); the integer part goes straight into the exponent.
HWY_INLINE V exp2_nonpositive(V x) {
  const hn::RebindToSigned<Lanes> di;
  const V magic = hn::Set(kTag, 12582912.0F);  // 1.5 * 2^23: adding it leaves round(x) in the low bits
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));
  V p = hn::Set(kTag, 0.001326472389F);
  p = hn::MulAdd(p, f, hn::Set(kTag, 0.009671512869F));
  p = hn::MulAdd(p, f, hn::Set(kTag, 0.055507337542F));
  p = hn::MulAdd(p, f, hn::Set(kTag, 0.240222420803F));
  p = hn::MulAdd(p, f, hn::Set(kTag, 0.693146977591F));
  p = hn::MulAdd(p, f, hn::Set(kTag, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const V power = hn::BitCast(kTag, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(kTag, -125.0F)), power);
}

template <LogitBase kBase>
HWY_INLINE V power(V difference) {
  if constexpr (kBase == LogitBase::kE) return exp2_nonpositive(hn::Mul(difference, hn::Set(kTag, kLog2E)));
  return exp2_nonpositive(difference);
}

HWY_INLINE float first_lane(V v) { return hn::GetLane(v); }

// The largest of a row's logits in [begin, end) (multiples of kPanel) and of `max`.
HWY_INLINE float row_max(const float* HWY_RESTRICT row, std::size_t begin, std::size_t end, float max) {
  V max0 = hn::Set(kTag, max);
  V max1 = max0;
  for (std::size_t c = begin; c < end; c += kPanel) {
    max0 = hn::Max(max0, hn::Load(kTag, row + c));
    max1 = hn::Max(max1, hn::Load(kTag, row + c + kVector));
  }
  return first_lane(hn::MaxOfLanes(kTag, hn::Max(max0, max1)));
}

// Replaces logits by weights; returns their sum. Lane by lane the same order whatever `begin` and `end`.
template <LogitBase kBase>
HWY_INLINE float exponentiate(float* HWY_RESTRICT row, std::size_t begin, std::size_t end, float max) {
  const V vmax = hn::Set(kTag, max);
  V sum0 = hn::Zero(kTag);
  V sum1 = hn::Zero(kTag);
  for (std::size_t c = begin; c < end; c += kPanel) {
    const V w0 = power<kBase>(hn::Sub(hn::Load(kTag, row + c), vmax));
    const V w1 = power<kBase>(hn::Sub(hn::Load(kTag, row + c + kVector), vmax));
    hn::Store(w0, kTag, row + c);
    hn::Store(w1, kTag, row + c + kVector);
    sum0 = hn::Add(sum0, w0);
    sum1 = hn::Add(sum1, w1);
  }
  return first_lane(hn::SumOfLanes(kTag, hn::Add(sum0, sum1)));
}

// Maxima first, then exponentials: the long chain of a row's horizontal maximum hides behind the other rows.
template <LogitBase kBase>
HWY_INLINE void online_softmax(const OnlineSoftmax& args) {
  const std::size_t begin = static_cast<std::size_t>(args.columns.begin) / kPanel * kPanel;
  const std::size_t end = (static_cast<std::size_t>(args.columns.end) + kPanel - 1) / kPanel * kPanel;
  const float lowest = hwy::LowestValue<float>();
  for (int r = 0; r < args.rows; ++r) {
    const float old_max = args.max[r];
    const float max = row_max(args.logits + static_cast<std::size_t>(r) * args.stride, begin, end, old_max);
    args.max[r] = max;
    args.rescale[r] = 1.0F;
    if (old_max == max) continue;
    args.rescale[r] = first_lane(power<kBase>(hn::Set(kTag, old_max - max)));
    args.sum[r] *= args.rescale[r];
  }
  for (int r = 0; r < args.rows; ++r) {
    // A row that has seen nothing yet keeps -inf; subtracting a finite number instead keeps -inf - -inf out.
    const float base = args.max[r] < lowest ? 0.0F : args.max[r];
    args.sum[r] += exponentiate<kBase>(args.logits + static_cast<std::size_t>(r) * args.stride, begin, end, base);
  }
}

void online_softmax_e(const OnlineSoftmax& args) { online_softmax<LogitBase::kE>(args); }
void online_softmax_two(const OnlineSoftmax& args) { online_softmax<LogitBase::kTwo>(args); }

template <LogitBase kBase>
HWY_INLINE void softmax_row_in_base(float* HWY_RESTRICT row, std::size_t count) {
  const std::size_t whole = count / kVector * kVector;
  const std::size_t left = count - whole;
  const float lowest = hwy::LowestValue<float>();
  alignas(64) float tail[kVector];
  for (std::size_t i = 0; i < kVector; ++i) tail[i] = i < left ? row[whole + i] : -HUGE_VALF;
  V vmax = hn::Load(kTag, tail);
  for (std::size_t c = 0; c < whole; c += kVector) vmax = hn::Max(vmax, hn::LoadU(kTag, row + c));
  const float max = first_lane(hn::MaxOfLanes(kTag, vmax));
  vmax = hn::Set(kTag, max < lowest ? 0.0F : max);
  V sum = power<kBase>(hn::Sub(hn::Load(kTag, tail), vmax));
  hn::Store(sum, kTag, tail);
  for (std::size_t c = 0; c < whole; c += kVector) {
    const V w = power<kBase>(hn::Sub(hn::LoadU(kTag, row + c), vmax));
    hn::StoreU(w, kTag, row + c);
    sum = hn::Add(sum, w);
  }
  const float total = first_lane(hn::SumOfLanes(kTag, sum));
  const V scale = hn::Set(kTag, total > 0.0F ? 1.0F / total : 0.0F);
  for (std::size_t c = 0; c < whole; c += kVector) hn::StoreU(hn::Mul(hn::LoadU(kTag, row + c), scale), kTag, row + c);
  hn::Store(hn::Mul(hn::Load(kTag, tail), scale), kTag, tail);
  for (std::size_t i = 0; i < left; ++i) row[whole + i] = tail[i];
}

void softmax_row(float* row, std::size_t count, LogitBase base) {
  if (base == LogitBase::kE) return softmax_row_in_base<LogitBase::kE>(row, count);
  softmax_row_in_base<LogitBase::kTwo>(row, count);
}

// ---- packing

void pack_keys(MatView<const float> rows, std::byte* packed) {
  float* HWY_RESTRICT block = reinterpret_cast<float*>(packed);
  for (std::size_t panel = 0; panel < kBlock / kPanel; ++panel) {
    float* HWY_RESTRICT to = block + panel * rows.cols * kPanel;
    const std::size_t first = panel * kPanel;
    if (first + kPanel > rows.rows) std::memset(to, 0, rows.cols * kPanel * sizeof(float));
    for (std::size_t t = first; t < first + kPanel && t < rows.rows; ++t) {
      const float* HWY_RESTRICT from = rows.data + t * rows.stride;
      for (std::size_t c = 0; c < rows.cols; ++c) to[c * kPanel + (t - first)] = from[c];
    }
  }
}

void pack_values(MatView<const float> rows, std::byte* packed) {
  float* HWY_RESTRICT block = reinterpret_cast<float*>(packed);
  const std::size_t padded = (rows.cols + kVector - 1) / kVector * kVector;
  for (std::size_t first = 0; first < padded; first += kPanel) {
    const std::size_t width = padded - first < kPanel ? padded - first : kPanel;
    const std::size_t filled = rows.cols - first < width ? rows.cols - first : width;
    float* HWY_RESTRICT to = block + first * kBlock;
    for (std::size_t t = 0; t < rows.rows; ++t, to += width) {
      std::memcpy(to, rows.data + t * rows.stride + first, filled * sizeof(float));
      for (std::size_t c = filled; c < width; ++c) to[c] = 0.0F;
    }
    std::memset(to, 0, (kBlock - rows.rows) * width * sizeof(float));
  }
}

// ---- the micro tile: kMicroRows rows x one panel of sums in registers

struct Micro {
  V a0, a1, b0, b1, c0, c1, d0, d1, e0, e1, f0, f1;  // rows a..f, two vectors each
};

// One step: a panel vector pair times one scalar per row. `x` points at row a's scalar, rows lie kStride apart.
template <std::size_t kStride>
HWY_INLINE void micro_step(Micro& m, const float* HWY_RESTRICT x, V y0, V y1) {
  V s = hn::Set(kTag, x[0 * kStride]);
  m.a0 = hn::MulAdd(s, y0, m.a0);
  m.a1 = hn::MulAdd(s, y1, m.a1);
  s = hn::Set(kTag, x[1 * kStride]);
  m.b0 = hn::MulAdd(s, y0, m.b0);
  m.b1 = hn::MulAdd(s, y1, m.b1);
  s = hn::Set(kTag, x[2 * kStride]);
  m.c0 = hn::MulAdd(s, y0, m.c0);
  m.c1 = hn::MulAdd(s, y1, m.c1);
  s = hn::Set(kTag, x[3 * kStride]);
  m.d0 = hn::MulAdd(s, y0, m.d0);
  m.d1 = hn::MulAdd(s, y1, m.d1);
  s = hn::Set(kTag, x[4 * kStride]);
  m.e0 = hn::MulAdd(s, y0, m.e0);
  m.e1 = hn::MulAdd(s, y1, m.e1);
  s = hn::Set(kTag, x[5 * kStride]);
  m.f0 = hn::MulAdd(s, y0, m.f0);
  m.f1 = hn::MulAdd(s, y1, m.f1);
}

HWY_INLINE void store_pair(V v0, V v1, float* HWY_RESTRICT to) {
  hn::Store(v0, kTag, to);
  hn::Store(v1, kTag, to + kVector);
}

HWY_INLINE void micro_score(const float* HWY_RESTRICT queries, const float* HWY_RESTRICT keys, std::size_t head_dim,
                            float* HWY_RESTRICT logits) {
  const V zero = hn::Zero(kTag);
  Micro m{zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero};
  for (std::size_t c = 0; c < head_dim; ++c) {
    micro_step<1>(m, queries + c * kRows, hn::Load(kTag, keys + c * kPanel), hn::Load(kTag, keys + c * kPanel + kVector));
  }
  store_pair(m.a0, m.a1, logits + 0 * kBlock);
  store_pair(m.b0, m.b1, logits + 1 * kBlock);
  store_pair(m.c0, m.c1, logits + 2 * kBlock);
  store_pair(m.d0, m.d1, logits + 3 * kBlock);
  store_pair(m.e0, m.e1, logits + 4 * kBlock);
  store_pair(m.f0, m.f1, logits + 5 * kBlock);
}

HWY_INLINE V load_scaled(const float* HWY_RESTRICT acc, float scale) {
  return hn::Mul(hn::Load(kTag, acc), hn::Set(kTag, scale));
}

HWY_INLINE void micro_accumulate(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values, std::size_t tokens,
                                 const float* HWY_RESTRICT rescale, float* HWY_RESTRICT acc, std::size_t stride) {
  Micro m{load_scaled(acc, rescale[0]),
          load_scaled(acc + kVector, rescale[0]),
          load_scaled(acc + stride, rescale[1]),
          load_scaled(acc + stride + kVector, rescale[1]),
          load_scaled(acc + 2 * stride, rescale[2]),
          load_scaled(acc + 2 * stride + kVector, rescale[2]),
          load_scaled(acc + 3 * stride, rescale[3]),
          load_scaled(acc + 3 * stride + kVector, rescale[3]),
          load_scaled(acc + 4 * stride, rescale[4]),
          load_scaled(acc + 4 * stride + kVector, rescale[4]),
          load_scaled(acc + 5 * stride, rescale[5]),
          load_scaled(acc + 5 * stride + kVector, rescale[5])};
  for (std::size_t t = 0; t < tokens; ++t) {
    micro_step<kBlock>(m, weights + t, hn::Load(kTag, values + t * kPanel), hn::Load(kTag, values + t * kPanel + kVector));
  }
  store_pair(m.a0, m.a1, acc);
  store_pair(m.b0, m.b1, acc + stride);
  store_pair(m.c0, m.c1, acc + 2 * stride);
  store_pair(m.d0, m.d1, acc + 3 * stride);
  store_pair(m.e0, m.e1, acc + 4 * stride);
  store_pair(m.f0, m.f1, acc + 5 * stride);
}

// The last panel of a head_dim that is an odd number of vectors.
HWY_INLINE void micro_accumulate_half(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values, std::size_t tokens,
                                      const float* HWY_RESTRICT rescale, float* HWY_RESTRICT acc, std::size_t stride) {
  for (std::size_t r = 0; r < kRows; ++r) {
    V sum = load_scaled(acc + r * stride, rescale[r]);
    for (std::size_t t = 0; t < tokens; ++t) {
      sum = hn::MulAdd(hn::Set(kTag, weights[r * kBlock + t]), hn::Load(kTag, values + t * kVector), sum);
    }
    hn::Store(sum, kTag, acc + r * stride);
  }
}

// ---- tiles: a panel stays in the first-level cache while all groups of the tile pass by

HWY_INLINE const float* floats(const std::byte* packed) { return reinterpret_cast<const float*>(packed); }

// Group g's share of fetching what comes next: without it every panel would begin with a chain of third-level cache misses.
HWY_INLINE void prefetch_share(const float* next, std::size_t floats, std::size_t g, std::size_t groups) {
  constexpr std::size_t kLine = 16;
  const std::size_t lines = floats / kLine;
  for (std::size_t line = g * lines / groups; line < (g + 1) * lines / groups; ++line) hwy::Prefetch(next + line * kLine);
}

void score_tile(const PrefillTile& tile) {
  const std::size_t head_dim = static_cast<std::size_t>(tile.head_dim);
  const std::size_t groups = static_cast<std::size_t>(tile.groups);
  const std::size_t panel_floats = kPanel * head_dim;
  for (std::size_t column = 0; column < kBlock; column += kPanel) {
    const float* const keys = floats(tile.keys) + column * head_dim;
    const float* const next = column + kPanel < kBlock ? keys + panel_floats : floats(tile.values);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t begin = static_cast<std::size_t>(tile.columns[g].begin);
      const std::size_t end = static_cast<std::size_t>(tile.columns[g].end);
      if (column >= end || column + kPanel <= begin) continue;
      if (next != nullptr) prefetch_share(next, panel_floats, g, groups);
      micro_score(floats(tile.queries) + g * head_dim * kRows, keys, head_dim, tile.logits + g * kRows * kBlock + column);
    }
  }
}

void accumulate_tile(const PrefillTile& tile) {
  const std::size_t groups = static_cast<std::size_t>(tile.groups);
  const std::size_t stride = (static_cast<std::size_t>(tile.head_dim) + kVector - 1) / kVector * kVector;
  for (std::size_t channel = 0; channel < stride; channel += kPanel) {
    const bool half = channel + kPanel > stride;
    const float* const panel = floats(tile.values) + channel * kBlock;
    const float* const next = channel + kPanel < stride ? panel + kPanel * kBlock : floats(tile.next_keys);
    const std::size_t next_floats = channel + kPanel < stride ? (stride - channel - kPanel >= kPanel ? kPanel : kVector) * kBlock
                                                              : kPanel * static_cast<std::size_t>(tile.head_dim);
    for (std::size_t g = 0; g < groups; ++g) {
      if (tile.columns[g].begin >= tile.columns[g].end) continue;
      if (next != nullptr) prefetch_share(next, next_floats, g, groups);
      const std::size_t begin = static_cast<std::size_t>(tile.columns[g].begin);
      const std::size_t tokens = static_cast<std::size_t>(tile.columns[g].end) - begin;
      const float* const weights = floats(tile.weights) + g * kRows * kBlock + begin;
      const float* const values = panel + begin * (half ? kVector : kPanel);
      const float* const rescale = tile.rescale + g * kRows;
      float* const acc = tile.acc + g * kRows * stride + channel;
      if (half) {
        micro_accumulate_half(weights, values, tokens, rescale, acc, stride);
      } else {
        micro_accumulate(weights, values, tokens, rescale, acc, stride);
      }
    }
  }
}

// ---- column sums

void sum_columns(const ColumnRows& args) {
  const hn::RebindToSigned<Lanes> di;
  for (std::size_t column = 0; column < kBlock; column += 2 * kPanel) {
    auto s0 = hn::Zero(di), s1 = s0, s2 = s0, s3 = s0;
    for (int r = args.first; r < args.rows; r += args.step) {
      const V scale = hn::Set(kTag, args.scale[r]);
      const float* HWY_RESTRICT row = floats(args.weights) + static_cast<std::size_t>(r) * kBlock + column;
      s0 = hn::Add(s0, hn::NearestInt(hn::Mul(hn::Load(kTag, row), scale)));
      s1 = hn::Add(s1, hn::NearestInt(hn::Mul(hn::Load(kTag, row + kVector), scale)));
      s2 = hn::Add(s2, hn::NearestInt(hn::Mul(hn::Load(kTag, row + 2 * kVector), scale)));
      s3 = hn::Add(s3, hn::NearestInt(hn::Mul(hn::Load(kTag, row + 3 * kVector), scale)));
    }
    auto* HWY_RESTRICT to = reinterpret_cast<std::int32_t*>(args.sums + column);
    hn::Store(s0, di, to);
    hn::Store(s1, di, to + kVector);
    hn::Store(s2, di, to + 2 * kVector);
    hn::Store(s3, di, to + 3 * kVector);
  }
}

void describe(AttentionKernels* kernels) {
  kernels->panel = static_cast<int>(kPanel);
  kernels->vector = static_cast<int>(kVector);
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(online_softmax_e);
HWY_EXPORT(online_softmax_two);
HWY_EXPORT(softmax_row);
HWY_EXPORT(pack_keys);
HWY_EXPORT(pack_values);
HWY_EXPORT(score_tile);
HWY_EXPORT(accumulate_tile);
HWY_EXPORT(sum_columns);
HWY_EXPORT(describe);

AttentionKernels attention_kernels(Precision precision) {
  AttentionKernels kernels;
  SIMD_CHOOSE(describe)(&kernels);
  kernels.online_softmax_e = SIMD_CHOOSE(online_softmax_e);
  kernels.online_softmax_two = SIMD_CHOOSE(online_softmax_two);
  kernels.softmax_row = SIMD_CHOOSE(softmax_row);
  kernels.pack_queries = pack_queries;
  kernels.pack_keys = SIMD_CHOOSE(pack_keys);
  kernels.pack_values = SIMD_CHOOSE(pack_values);
  kernels.score_tile = SIMD_CHOOSE(score_tile);
  kernels.weigh_tile = kernels.online_softmax_two;
  kernels.accumulate_tile = SIMD_CHOOSE(accumulate_tile);
  kernels.sum_columns = SIMD_CHOOSE(sum_columns);
  if (precision == Precision::kNative) use_bf16_prefill(&kernels);
  return kernels;
}

namespace {

std::size_t round_up(std::size_t count, std::size_t multiple) { return (count + multiple - 1) / multiple * multiple; }

}  // namespace

std::size_t AttentionKernels::acc_stride(int head_dim) const {
  return round_up(static_cast<std::size_t>(head_dim), static_cast<std::size_t>(vector));
}

std::size_t AttentionKernels::query_group_bytes(int head_dim) const {
  return kMicroRows * round_up(static_cast<std::size_t>(head_dim), sizeof(float) / element) * element;
}

std::size_t AttentionKernels::key_block_bytes(int head_dim) const {
  return kPrefillBlock * round_up(static_cast<std::size_t>(head_dim), sizeof(float) / element) * element;
}

std::size_t AttentionKernels::value_block_bytes(int head_dim) const { return kPrefillBlock * acc_stride(head_dim) * element; }

}  // namespace kvartet
#endif
