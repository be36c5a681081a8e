// Prefill's kernels with BF16 elements: vdpbf16ps multiplies a pair of them and adds both products, twice the rate of f32.
#include "attention/attention_kernels.h"

#include <cmath>
#include <cstring>

#include "attention/packed_queries.h"
#include "core/uz.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_BF16
namespace kvartet {
namespace {

#define KVARTET_INLINE [[gnu::always_inline]] inline

constexpr std::size_t kVector = 16;
constexpr std::size_t kPanel = 64;
constexpr std::size_t kRows = kMicroRows;
constexpr std::size_t kBlock = kPrefillBlock;
constexpr std::size_t kPairBytes = 4;
constexpr std::size_t kWeightRow = kBlock * 2;  // bytes
static_assert(kBlock % kPanel == 0);

KVARTET_INLINE __mmask16 first_lanes(std::size_t count) {
  return count < kVector ? static_cast<__mmask16>((1U << count) - 1U) : static_cast<__mmask16>(0xffff);
}

KVARTET_INLINE std::size_t after(std::size_t count, std::size_t begin) { return count > begin ? count - begin : 0; }

KVARTET_INLINE __m512bh load_bf16(const std::byte* from) { return (__m512bh)_mm512_load_si512(from); }

KVARTET_INLINE __m512bh broadcast_pair(const std::byte* from) {
  int pair;
  std::memcpy(&pair, from, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

// ---- softmax

// The polynomial of attention_kernels.cc: what earlier blocks are multiplied with is applied again and again.
KVARTET_INLINE __m512 exp2_exact(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x8);  // x - round(x)
  __m512 p = _mm512_set1_ps(0.001326472389F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009671512869F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.055507337542F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240222420803F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693146977591F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, _mm512_roundscale_ps(x, 0x8));
}

// Vectors of kMicroRows rows become one that holds their maxima, or sums, in its first lanes: the same tree for every row.
struct SixVectors {
  __m512 v[kRows];
};

KVARTET_INLINE __m512 combine(bool sums, __m512 x, __m512 y) { return sums ? _mm512_add_ps(x, y) : _mm512_max_ps(x, y); }

KVARTET_INLINE __m512 halves(bool sums, __m512 x, __m512 y) {
  return combine(sums, _mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
}

KVARTET_INLINE __m512 quarters(bool sums, __m512 x, __m512 y) {
  return combine(sums, _mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}

KVARTET_INLINE __m512 reduce_rows(bool sums, const SixVectors& rows) {
  const __m512 ef = halves(sums, rows.v[4], rows.v[5]);
  const __m512 abcd = quarters(sums, halves(sums, rows.v[0], rows.v[1]), halves(sums, rows.v[2], rows.v[3]));
  const __m512 efef = quarters(sums, ef, ef);
  const __m512 two = combine(sums, _mm512_unpacklo_ps(abcd, efef), _mm512_unpackhi_ps(abcd, efef));
  const __m512 one = combine(sums, two, _mm512_permute_ps(two, 0x4e));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), one);
}

// Of a row's logits in [begin, end), multiples of kPanel.
KVARTET_INLINE __m512 lane_max(const float* row, std::size_t begin, std::size_t end) {
  __m512 max = _mm512_set1_ps(-HUGE_VALF);
  for (std::size_t c = begin; c < end; c += kPanel) {
    const __m512 max0 = _mm512_max_ps(_mm512_load_ps(row + c), _mm512_load_ps(row + c + kVector));
    const __m512 max1 = _mm512_max_ps(_mm512_load_ps(row + c + 2 * kVector), _mm512_load_ps(row + c + 3 * kVector));
    max = _mm512_max_ps(max, _mm512_max_ps(max0, max1));
  }
  return max;
}

// Eight vectors side by side, or four: each instruction finds its operands ready, and the CPU's short queue of waiting ones does
// not fill up. A row's two panels at once are a third faster than one after the other.
template <int kVectors>
struct Vectors {
  __m512 v[kVectors];
};

// How far logits lie below `max`. Beyond 200 nothing is left of a weight, and -inf becomes a number.
template <int kVectors>
KVARTET_INLINE void load_below(__m512 max, const float* logits, Vectors<kVectors>* x) {
  const __m512 most = _mm512_set1_ps(200.0F);
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) x->v[i] = _mm512_sub_ps(max, _mm512_load_ps(logits + uz(i) * kVector));
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) x->v[i] = _mm512_min_ps(x->v[i], most);
}

// x becomes f, and n is what goes off the exponents of two vectors' weights together: 2^-x = 2^f * 2^-n, n = round(x), |f| <=
// 1/2.
template <int kVectors>
KVARTET_INLINE void split(__m512i words, Vectors<kVectors>* x, Vectors<kVectors / 2>* n) {
  const __m512 magic = _mm512_set1_ps(12582912.0F);  // 1.5 * 2^23: adding it leaves round(x) in the low bits
  Vectors<kVectors> shifted;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) shifted.v[i] = _mm512_add_ps(x->v[i], magic);
#pragma GCC unroll 8
  for (int i = 0; i < kVectors / 2; ++i) {
    n->v[i] = _mm512_castsi512_ps(_mm512_slli_epi16(
        _mm512_permutex2var_epi16(_mm512_castps_si512(shifted.v[2 * i]), words, _mm512_castps_si512(shifted.v[2 * i + 1])), 7));
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) shifted.v[i] = _mm512_sub_ps(shifted.v[i], magic);
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) x->v[i] = _mm512_sub_ps(shifted.v[i], x->v[i]);
}

// 2^f by the minimax polynomial of degree 3, relative error below 7.5e-5: a fiftieth of what rounding may add.
template <int kVectors>
KVARTET_INLINE void raise_two_to(Vectors<kVectors>* f) {
  Vectors<kVectors> p;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    p.v[i] = _mm512_fmadd_ps(_mm512_set1_ps(0.055171669F), f->v[i], _mm512_set1_ps(0.242611122F));
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) p.v[i] = _mm512_fmadd_ps(p.v[i], f->v[i], _mm512_set1_ps(0.693260985F));
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) f->v[i] = _mm512_fmadd_ps(p.v[i], f->v[i], _mm512_set1_ps(0.999928074F));
}

// Logits become weights, 2^(logit - max) in BF16; returns `sums` plus the rounded ones, two to a lane. Lane by lane the same
// order whatever the columns: beyond a row's own, weights are 0.
template <int kVectors>
KVARTET_INLINE __m512 exponentiate(const float* logits, __m512 max, __m512i words, std::byte* weights) {
  Vectors<kVectors> x;
  Vectors<kVectors / 2> n;
  load_below(max, logits, &x);
  split(words, &x, &n);
  raise_two_to(&x);
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
#pragma GCC unroll 4
  for (int i = 0; i < kVectors / 2; ++i) {
    // Saturation makes those 0 of which nothing is left.
    const __m512i fraction = (__m512i)_mm512_cvtne2ps_pbh(x.v[2 * i + 1], x.v[2 * i]);
    const __m512i weight = _mm512_subs_epu16(fraction, _mm512_castps_si512(n.v[i]));
    _mm512_store_si512(weights + i * 64, weight);
    sums[i % 2] = _mm512_dpbf16_ps(sums[i % 2], (__m512bh)weight, ones);
  }
  return _mm512_add_ps(sums[0], sums[1]);
}

constexpr int kGroupsAtOnce = 4;

// Rows' new maxima, and what was accumulated before is multiplied with; `base` gets what their logits are relative to.
KVARTET_INLINE void update_max(const OnlineSoftmax& args, std::size_t first, std::size_t begin, std::size_t end, float* base) {
  const float* const logits = args.logits + first * args.stride;
  SixVectors lanes;
#pragma GCC unroll 6
  for (std::size_t r = 0; r < kRows; ++r) lanes.v[r] = lane_max(logits + r * args.stride, begin, end);
  const __mmask16 mask = first_lanes(kRows);
  const __m512 lowest = _mm512_set1_ps(-HUGE_VALF);
  const __m512 old_max = _mm512_mask_loadu_ps(lowest, mask, args.max + first);
  const __m512 max = _mm512_max_ps(old_max, reduce_rows(false, lanes));
  const __mmask16 same = _mm512_cmp_ps_mask(old_max, max, _CMP_EQ_OQ);  // -inf - -inf would not be a number
  const __m512 rescale = _mm512_mask_mov_ps(exp2_exact(_mm512_sub_ps(old_max, max)), same, _mm512_set1_ps(1.0F));
  _mm512_mask_storeu_ps(args.max + first, mask, max);
  _mm512_mask_storeu_ps(args.rescale + first, mask, rescale);
  // A row that has seen nothing yet keeps -inf; subtracting a finite number instead keeps -inf - -inf out.
  const __mmask16 seen = _mm512_cmp_ps_mask(max, lowest, _CMP_NEQ_OQ);
  _mm512_store_ps(base, _mm512_maskz_mov_ps(seen, max));
}

template <int kVectors>
KVARTET_INLINE void weigh_rows(const OnlineSoftmax& args, std::size_t first, std::size_t column, const float* base,
                               __m512i words) {
  SixVectors sums;
  for (std::size_t r = 0; r < kRows; ++r) {
    const float* const logits = args.logits + (first + r) * args.stride + column;
    sums.v[r] =
        exponentiate<kVectors>(logits, _mm512_set1_ps(base[r]), words, args.weights + (first + r) * kWeightRow + column * 2);
  }
  const __mmask16 mask = first_lanes(kRows);
  const __m512 before =
      _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, args.sum + first), _mm512_maskz_loadu_ps(mask, args.rescale + first));
  _mm512_mask_storeu_ps(args.sum + first, mask, _mm512_add_ps(before, reduce_rows(true, sums)));
}

// Maxima first, then exponentials: the long chain of the maxima of a few groups hides behind each other.
void weigh_tile(const OnlineSoftmax& args) {
  const std::size_t begin = uz(args.columns.begin) / kPanel * kPanel;
  const std::size_t end = (uz(args.columns.end) + kPanel - 1) / kPanel * kPanel;
  alignas(64) std::uint16_t even[2 * kVector];
  for (std::size_t i = 0; i < 2 * kVector; ++i) even[i] = static_cast<std::uint16_t>(2 * i);
  const __m512i words = _mm512_load_si512(even);
  alignas(64) float base[kGroupsAtOnce][kVector];
  const std::size_t rows = uz(args.rows);
  for (std::size_t first = 0; first < rows; first += kGroupsAtOnce * kRows) {
    const std::size_t groups = rows - first < kGroupsAtOnce * kRows ? (rows - first) / kRows : kGroupsAtOnce;
    for (std::size_t g = 0; g < groups; ++g) update_max(args, first + g * kRows, begin, end, base[g]);
    for (std::size_t g = 0; g < groups; ++g) {
      if (end - begin == kBlock) {
        weigh_rows<8>(args, first + g * kRows, 0, base[g], words);
      } else {
        weigh_rows<4>(args, first + g * kRows, begin, base[g], words);
      }
    }
  }
}

// ---- packing

// Elements [at, at + 32) of a row of `count`, times `scale`, as pairs; beyond the row zeros.
KVARTET_INLINE void pairs_of_row(const float* row, std::size_t count, std::size_t at, __m512 scale, std::uint32_t* pairs) {
  const __m512 low = _mm512_maskz_loadu_ps(first_lanes(after(count, at)), row + at);
  const __m512 high = _mm512_maskz_loadu_ps(first_lanes(after(count, at + kVector)), row + at + kVector);
  _mm512_store_si512(pairs, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale)));
}

// A row's pairs go to to[0], to[step], ...
KVARTET_INLINE void spread_row(const float* row, std::size_t count, float scale, std::uint32_t* to, std::size_t step) {
  alignas(64) std::uint32_t pairs[kVector];
  for (std::size_t at = 0; at < count; at += 2 * kVector) {
    pairs_of_row(row, count, at, _mm512_set1_ps(scale), pairs);
    const std::size_t left = (count - at + 1) / 2;
    for (std::size_t p = 0; p < left && p < kVector; ++p) to[(at / 2 + p) * step] = pairs[p];
  }
}

void pack_bf16_queries(HeadRows<const float> q, const TileRows& tile, std::byte* packed) {
  const float scale = kLog2E / std::sqrt(static_cast<float>(q.head_dim));
  const std::size_t pairs = (q.head_dim + 1) / 2;
  auto* const to = reinterpret_cast<std::uint32_t*>(packed);
  for (int row = 0; row < tile.groups() * kMicroRows; ++row) {
    std::uint32_t* const first = to + uz(row / kMicroRows) * pairs * kRows + uz(row % kMicroRows);
    if (row < tile.rows()) {
      spread_row(q.row(uz(tile.token(row)), uz(tile.head(row))), q.head_dim, scale, first, kRows);
    } else {
      for (std::size_t p = 0; p < pairs; ++p) first[p * kRows] = 0;
    }
  }
}

void pack_keys(MatView<const float> rows, std::byte* block) {
  const std::size_t pairs = (rows.cols + 1) / 2;
  for (std::size_t first = 0; first < kBlock; first += kPanel) {
    auto* const to = reinterpret_cast<std::uint32_t*>(block) + first * pairs;
    if (first + kPanel > rows.rows) std::memset(to, 0, pairs * kPanel * kPairBytes);
    for (std::size_t t = first; t < first + kPanel && t < rows.rows; ++t) {
      spread_row(rows.data + t * rows.stride, rows.cols, 1.0F, to + (t - first), kPanel);
    }
  }
}

KVARTET_INLINE __m512 channels(MatView<const float> rows, std::size_t t, std::size_t at) {
  return t < rows.rows ? _mm512_maskz_loadu_ps(first_lanes(after(rows.cols, at)), rows.data + t * rows.stride + at)
                       : _mm512_setzero_ps();
}

void pack_values(MatView<const float> rows, std::byte* block) {
  alignas(64) std::uint16_t order[2 * kVector];  // low half of the pair: the earlier token
  for (std::size_t i = 0; i < kVector; ++i) {
    order[2 * i] = static_cast<std::uint16_t>(i);
    order[2 * i + 1] = static_cast<std::uint16_t>(kVector + i);
  }
  const __m512i interleave = _mm512_load_si512(order);
  const std::size_t padded = (rows.cols + kVector - 1) / kVector * kVector;
  for (std::size_t first = 0; first < padded; first += kPanel) {
    const std::size_t width = padded - first < kPanel ? padded - first : kPanel;
    auto* to = reinterpret_cast<std::uint32_t*>(block) + first * (kBlock / 2);
    for (std::size_t t = 0; t < kBlock; t += 2, to += width) {
      for (std::size_t c = 0; c < width; c += kVector) {
        const __m512bh two = _mm512_cvtne2ps_pbh(channels(rows, t + 1, first + c), channels(rows, t, first + c));
        _mm512_store_si512(to + c, _mm512_permutexvar_epi16(interleave, (__m512i)two));
      }
    }
  }
}

// ---- the micro tile: kMicroRows rows x one panel of sums in registers

struct Sums {  // of one row
  __m512 v0, v1, v2, v3;
};

struct Micro {
  Sums a, b, c, d, e, f;  // rows
};

struct Lanes {
  __m512bh v0, v1, v2, v3;
};

template <int kVectors>
KVARTET_INLINE Lanes load_lanes(const std::byte* from) {
  Lanes y;
  y.v0 = load_bf16(from);
  y.v1 = kVectors > 1 ? load_bf16(from + 64) : y.v0;
  y.v2 = kVectors > 2 ? load_bf16(from + 128) : y.v0;
  y.v3 = kVectors > 3 ? load_bf16(from + 192) : y.v0;
  return y;
}

template <int kVectors>
KVARTET_INLINE void multiply_row(Sums& sums, const std::byte* pair, const Lanes& y) {
  const __m512bh x = broadcast_pair(pair);
  sums.v0 = _mm512_dpbf16_ps(sums.v0, x, y.v0);
  if constexpr (kVectors > 1) sums.v1 = _mm512_dpbf16_ps(sums.v1, x, y.v1);
  if constexpr (kVectors > 2) sums.v2 = _mm512_dpbf16_ps(sums.v2, x, y.v2);
  if constexpr (kVectors > 3) sums.v3 = _mm512_dpbf16_ps(sums.v3, x, y.v3);
}

// One step: a panel's pairs times one pair per row. `x` points at row a's pair, rows lie kStride bytes apart.
template <int kVectors, std::size_t kStride>
KVARTET_INLINE void micro_step(Micro& m, const std::byte* x, const std::byte* panel) {
  const Lanes y = load_lanes<kVectors>(panel);
  multiply_row<kVectors>(m.a, x + 0 * kStride, y);
  multiply_row<kVectors>(m.b, x + 1 * kStride, y);
  multiply_row<kVectors>(m.c, x + 2 * kStride, y);
  multiply_row<kVectors>(m.d, x + 3 * kStride, y);
  multiply_row<kVectors>(m.e, x + 4 * kStride, y);
  multiply_row<kVectors>(m.f, x + 5 * kStride, y);
}

template <int kVectors>
KVARTET_INLINE Sums load_scaled(const float* acc, float scale) {
  const __m512 s = _mm512_set1_ps(scale);
  Sums sums;
  sums.v0 = _mm512_mul_ps(s, _mm512_load_ps(acc));
  sums.v1 = kVectors > 1 ? _mm512_mul_ps(s, _mm512_load_ps(acc + kVector)) : sums.v0;
  sums.v2 = kVectors > 2 ? _mm512_mul_ps(s, _mm512_load_ps(acc + 2 * kVector)) : sums.v0;
  sums.v3 = kVectors > 3 ? _mm512_mul_ps(s, _mm512_load_ps(acc + 3 * kVector)) : sums.v0;
  return sums;
}

template <int kVectors>
KVARTET_INLINE void store_row(const Sums& sums, float* to) {
  _mm512_store_ps(to, sums.v0);
  if constexpr (kVectors > 1) _mm512_store_ps(to + kVector, sums.v1);
  if constexpr (kVectors > 2) _mm512_store_ps(to + 2 * kVector, sums.v2);
  if constexpr (kVectors > 3) _mm512_store_ps(to + 3 * kVector, sums.v3);
}

template <int kVectors>
KVARTET_INLINE void store_rows(const Micro& m, float* to, std::size_t stride) {
  store_row<kVectors>(m.a, to);
  store_row<kVectors>(m.b, to + stride);
  store_row<kVectors>(m.c, to + 2 * stride);
  store_row<kVectors>(m.d, to + 3 * stride);
  store_row<kVectors>(m.e, to + 4 * stride);
  store_row<kVectors>(m.f, to + 5 * stride);
}

KVARTET_INLINE void micro_score(const std::byte* queries, const std::byte* keys, std::size_t pairs, float* logits) {
  const __m512 zero = _mm512_setzero_ps();
  const Sums none{zero, zero, zero, zero};
  Micro m{none, none, none, none, none, none};
  for (std::size_t p = 0; p < pairs; ++p) {
    micro_step<4, kPairBytes>(m, queries + p * kRows * kPairBytes, keys + p * kPanel * kPairBytes);
  }
  store_rows<4>(m, logits, kBlock);
}

template <int kVectors>
KVARTET_INLINE void micro_accumulate(const std::byte* weights, const std::byte* values, std::size_t pairs, const float* rescale,
                                     float* acc, std::size_t stride) {
  Micro m{load_scaled<kVectors>(acc, rescale[0]),
          load_scaled<kVectors>(acc + stride, rescale[1]),
          load_scaled<kVectors>(acc + 2 * stride, rescale[2]),
          load_scaled<kVectors>(acc + 3 * stride, rescale[3]),
          load_scaled<kVectors>(acc + 4 * stride, rescale[4]),
          load_scaled<kVectors>(acc + 5 * stride, rescale[5])};
  for (std::size_t p = 0; p < pairs; ++p) {
    micro_step<kVectors, kWeightRow>(m, weights + p * kPairBytes, values + p * kVectors * kVector * kPairBytes);
  }
  store_rows<kVectors>(m, acc, stride);
}

// ---- tiles: a panel stays in the first-level cache while all groups of the tile pass by

// Group g's share of fetching what comes next.
KVARTET_INLINE void prefetch_share(const std::byte* next, std::size_t bytes, std::size_t g, std::size_t groups) {
  constexpr std::size_t kLine = 64;
  const std::size_t lines = bytes / kLine;
  for (std::size_t line = g * lines / groups; line < (g + 1) * lines / groups; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(next + line * kLine), _MM_HINT_T0);
  }
}

void score_tile(const PrefillTile& tile) {
  const std::size_t pairs = (uz(tile.head_dim) + 1) / 2;
  const std::size_t groups = uz(tile.groups);
  const std::size_t panel_bytes = pairs * kPanel * kPairBytes;
  for (std::size_t column = 0; column < kBlock; column += kPanel) {
    const std::byte* const keys = tile.keys + column / kPanel * panel_bytes;
    const std::byte* const next = column + kPanel < kBlock ? keys + panel_bytes : tile.values;
    for (std::size_t g = 0; g < groups; ++g) {
      if (column >= uz(tile.columns[g].end) || column + kPanel <= uz(tile.columns[g].begin)) continue;
      if (next != nullptr) prefetch_share(next, panel_bytes, g, groups);
      micro_score(tile.queries + g * pairs * kRows * kPairBytes, keys, pairs, tile.logits + g * kRows * kBlock + column);
    }
  }
}

KVARTET_INLINE void accumulate_group(std::size_t vectors, const std::byte* weights, const std::byte* values, std::size_t pairs,
                                     const float* rescale, float* acc, std::size_t stride) {
  if (vectors == 4) return micro_accumulate<4>(weights, values, pairs, rescale, acc, stride);
  if (vectors == 3) return micro_accumulate<3>(weights, values, pairs, rescale, acc, stride);
  if (vectors == 2) return micro_accumulate<2>(weights, values, pairs, rescale, acc, stride);
  micro_accumulate<1>(weights, values, pairs, rescale, acc, stride);
}

void accumulate_tile(const PrefillTile& tile) {
  const std::size_t groups = uz(tile.groups);
  const std::size_t stride = (uz(tile.head_dim) + kVector - 1) / kVector * kVector;
  const std::size_t key_bytes = (uz(tile.head_dim) + 1) / 2 * kPanel * kPairBytes;
  for (std::size_t channel = 0; channel < stride; channel += kPanel) {
    const std::size_t width = stride - channel < kPanel ? stride - channel : kPanel;
    const std::byte* const panel = tile.values + channel * kBlock * 2;
    const std::size_t left = after(stride, channel + kPanel);
    const std::byte* const next = left > 0 ? panel + width * kBlock * 2 : tile.next_keys;
    const std::size_t next_bytes = left == 0 ? key_bytes : (left < kPanel ? left : kPanel) * kBlock * 2;
    for (std::size_t g = 0; g < groups; ++g) {
      if (tile.columns[g].begin >= tile.columns[g].end) continue;
      if (next != nullptr) prefetch_share(next, next_bytes, g, groups);
      // Whole pairs: the softmax covered whole panels, and weights beyond a row's columns are 0.
      const std::size_t first = uz(tile.columns[g].begin) / 2;
      const std::size_t pairs = (uz(tile.columns[g].end) + 1) / 2 - first;
      accumulate_group(width / kVector, tile.weights + g * kRows * kWeightRow + first * kPairBytes,
                       panel + first * width * kPairBytes, pairs, tile.rescale + g * kRows,
                       tile.acc + g * kRows * stride + channel, stride);
    }
  }
}

// ---- column sums

struct EvenAndOdd {
  __m512i even, odd;
};

// Columns 2i and 2i + 1 of 32 weights, times `scale`, in whole numbers.
KVARTET_INLINE void add_rounded(const std::byte* weights, __m512 scale, EvenAndOdd* sums) {
  const __m512i both = _mm512_load_si512(weights);
  const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  sums->even = _mm512_add_epi32(sums->even, _mm512_cvtps_epi32(_mm512_mul_ps(even, scale)));
  sums->odd = _mm512_add_epi32(sums->odd, _mm512_cvtps_epi32(_mm512_mul_ps(odd, scale)));
}

KVARTET_INLINE void store_interleaved(const EvenAndOdd& sums, std::uint32_t* to) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_store_si512(to, _mm512_permutex2var_epi32(sums.even, low, sums.odd));
  _mm512_store_si512(to + kVector, _mm512_permutex2var_epi32(sums.even, high, sums.odd));
}

void sum_columns(const ColumnRows& args) {
  constexpr int kRowsAhead = 24;
  const __m512i zero = _mm512_setzero_si512();
  EvenAndOdd s0{zero, zero}, s1 = s0, s2 = s0, s3 = s0;
  for (int r = args.first; r < args.rows; r += args.step) {
    const __m512 scale = _mm512_set1_ps(args.scale[r]);
    const std::byte* const row = args.weights + uz(r) * kWeightRow;
    // A tile's kept weights come from the third-level cache, and one head's rows are no stream that the CPU would recognize.
    const int ahead = r + kRowsAhead * args.step;
    if (ahead < args.rows) prefetch_share(args.weights + uz(ahead) * kWeightRow, kWeightRow, 0, 1);
    add_rounded(row, scale, &s0);
    add_rounded(row + 64, scale, &s1);
    add_rounded(row + 128, scale, &s2);
    add_rounded(row + 192, scale, &s3);
  }
  static_assert(kBlock == 8 * kVector);
  store_interleaved(s0, args.sums);
  store_interleaved(s1, args.sums + 2 * kVector);
  store_interleaved(s2, args.sums + 4 * kVector);
  store_interleaved(s3, args.sums + 6 * kVector);
}

#undef KVARTET_INLINE

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

void use_bf16_prefill([[maybe_unused]] AttentionKernels* kernels) {
#if KVARTET_HAS_AVX512
  if (!uses_extension(SimdExtension::kBf16)) return;
  kernels->panel = static_cast<int>(kPanel);
  kernels->vector = static_cast<int>(kVector);
  kernels->element = 2;
  kernels->pack_queries = pack_bf16_queries;
  kernels->pack_keys = pack_keys;
  kernels->pack_values = pack_values;
  kernels->score_tile = score_tile;
  kernels->weigh_tile = weigh_tile;
  kernels->accumulate_tile = accumulate_tile;
  kernels->sum_columns = sum_columns;
#endif
}

}  // namespace kvartet
