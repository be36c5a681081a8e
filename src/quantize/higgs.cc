#include "quantize/higgs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/rng.h"
#include "quantize/higgs_grid_data.h"
#include "quantize/walsh_hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/higgs.cc"
#include "simd/dispatch.h"

#include "quantize/higgs_points-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lane of the largest score, the lowest index among equals.
template <class D, class DI>
HWY_INLINE std::uint8_t first_largest(D d, DI di, hn::Vec<D> best, hn::Vec<DI> index) {
  alignas(64) float values[hn::MaxLanes(D())];
  alignas(64) std::int32_t indices[hn::MaxLanes(D())];
  hn::Store(best, d, values);
  hn::Store(index, di, indices);
  std::size_t winner = 0;
  for (std::size_t i = 1; i < hn::Lanes(d); ++i) {
    if (values[i] > values[winner] || (values[i] == values[winner] && indices[i] < indices[winner])) winner = i;
  }
  return static_cast<std::uint8_t>(indices[winner]);
}

// Four blocks at a time: they share the loads of the grid and hide each other's latency.
template <int kP, int kBlocks>
HWY_INLINE void snap_blocks(const GridLanes& grid, const float* HWY_RESTRICT y, std::uint8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  using V = hn::Vec<decltype(d)>;
  using I = hn::Vec<decltype(di)>;
  V best[kBlocks];
  I where[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    best[b] = hn::Set(d, -1e38F);
    where[b] = hn::Zero(di);
  }
  I index = hn::Iota(di, 0);
  const I step = hn::Set(di, static_cast<std::int32_t>(hn::Lanes(d)));
  for (std::size_t j = 0; j < grid.padded; j += hn::Lanes(d)) {
    V score[kBlocks];
    const V offset = hn::Neg(hn::LoadU(d, grid.offset + j));
    for (int b = 0; b < kBlocks; ++b) score[b] = offset;
    for (int k = 0; k < kP; ++k) {
      const V points = hn::LoadU(d, grid.points + static_cast<std::size_t>(k) * grid.padded + j);
      for (int b = 0; b < kBlocks; ++b) score[b] = hn::MulAdd(hn::Set(d, y[b * kP + k]), points, score[b]);
    }
    for (int b = 0; b < kBlocks; ++b) {
      const auto larger = hn::Gt(score[b], best[b]);
      best[b] = hn::IfThenElse(larger, score[b], best[b]);
      where[b] = hn::IfThenElse(hn::RebindMask(di, larger), index, where[b]);
    }
    index = hn::Add(index, step);
  }
  for (int b = 0; b < kBlocks; ++b) codes[b] = first_largest(d, di, best[b], where[b]);
}

template <int kP>
HWY_INLINE void snap_all(const GridLanes& grid, const float* HWY_RESTRICT y, std::size_t count,
                         std::uint8_t* HWY_RESTRICT codes) {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) snap_blocks<kP, 4>(grid, y + i * kP, codes + i);
  for (; i < count; ++i) snap_blocks<kP, 1>(grid, y + i * kP, codes + i);
}

void snap_to_grid(const GridLanes& grid, int p, const float* y, std::size_t count, std::uint8_t* codes) {
  switch (p) {
    case 1: return snap_all<1>(grid, y, count, codes);
    case 2: return snap_all<2>(grid, y, count, codes);
    case 4: return snap_all<4>(grid, y, count, codes);
    case 8: return snap_all<8>(grid, y, count, codes);
    default: return snap_all<16>(grid, y, count, codes);
  }
}

void decode_pairs(const float* points, const std::uint8_t* codes, std::size_t n, float scale, float* x) {
  decode_points<2>(points, codes, n, scale, x);
}

void decode_quads(const float* points, const std::uint8_t* codes, std::size_t n, float scale, float* x) {
  decode_points<4>(points, codes, n, scale, x);
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(snap_to_grid);
HWY_EXPORT(decode_pairs);
HWY_EXPORT(decode_quads);

namespace {

constexpr std::size_t kPadding = 8;  // floats of the widest vector used
constexpr int kMostGroup = 1024;
constexpr std::size_t kLeastInRegisters = 64;  // numbers that every target transforms eight vectors at a time
constexpr std::size_t kScratch = 1024 + 16;    // a group and the padding to a whole block
constexpr float kNeverNearest = 1e37F;

std::size_t size_of(int n) { return static_cast<std::size_t>(n); }

std::vector<HiggsGrid> shipped_grids() {
  std::vector<HiggsGrid> grids;
  for (const HiggsGridData& data : higgs_grid_data()) {
    std::vector<float> points(data.points.size());
    for (std::size_t i = 0; i < points.size(); ++i) points[i] = static_cast<float>(data.points[i]) / kHiggsGridUnit;
    grids.emplace_back(data.p, MatView<const float>(points.data(), points.size() / size_of(data.p), size_of(data.p)));
  }
  return grids;
}

}  // namespace

std::span<const HiggsGrid> HiggsGrid::all() {
  static const std::vector<HiggsGrid> kGrids = shipped_grids();
  return kGrids;
}

Result<const HiggsGrid*> HiggsGrid::find(int p, int n) {
  for (const HiggsGrid& grid : all()) {
    if (grid.p() == p && grid.n() == n) return &grid;
  }
  std::string known;
  for (const HiggsGrid& grid : all()) known += fmt::format("{}({},{})", known.empty() ? "" : " ", grid.p(), grid.n());
  return usage_error(fmt::format("there is no HIGGS grid of {} points in {} dimensions; there are {}", n, p, known));
}

HiggsGrid::HiggsGrid(int p, MatView<const float> points)
    : p_(p), n_(static_cast<int>(points.rows)), padded_((points.rows + kPadding - 1) / kPadding * kPadding) {
  KV_CHECK(n_ >= 1 && n_ <= 256 && points.cols == size_of(p));
  KV_CHECK(p == 1 || p == 2 || p == 4 || p == 8 || p == 16);
  lanes_.assign(size_of(p) * padded_, 0.0F);
  offset_.assign(padded_, kNeverNearest);
  for (std::size_t i = 0; i < points.rows; ++i) {
    float norm = 0;
    for (std::size_t k = 0; k < points.cols; ++k) {
      points_.push_back(points.row(i)[k]);
      lanes_[k * padded_ + i] = points.row(i)[k];
      norm += points.row(i)[k] * points.row(i)[k];
    }
    offset_[i] = norm / 2;
    radius_ = std::max(radius_, std::sqrt(norm));
  }
}

void HiggsGrid::snap(const float* y, std::size_t count, std::uint8_t* codes) const {
  SIMD_CHOOSE(snap_to_grid)(lanes(), p_, y, count, codes);
}

void HiggsGrid::decode_group(const std::uint8_t* codes, std::size_t group, float scale, float* x) const {
  if (group >= kLeastInRegisters && (p_ == 2 || p_ == 4)) {
    const auto decode = p_ == 2 ? SIMD_CHOOSE(decode_pairs) : SIMD_CHOOSE(decode_quads);
    return decode(points_.data(), codes, group, scale, x);
  }
  const std::size_t p = size_of(p_);
  for (std::size_t i = 0; i < group; ++i) x[i] = scale * point(codes[i / p])[i % p];
  hadamard_transform({x, group});
}

void hadamard_transform(std::span<float> x) {
  KV_CHECK(std::has_single_bit(x.size()));
  walsh_hadamard(x.data(), x.size());
}

HiggsCodec::HiggsCodec(const HiggsGrid* grid, int dim, int group, HiggsSigns signs, std::uint64_t seed)
    : grid_(grid),
      dim_(dim),
      group_(group),
      groups_((size_of(dim) + size_of(group) - 1) / size_of(group)),
      blocks_((size_of(group) + size_of(grid->p()) - 1) / size_of(grid->p())) {
  KV_CHECK(dim > 0 && std::has_single_bit(size_of(group)) && group <= kMostGroup);
  if (signs == HiggsSigns::kNone) return;
  const Rng rng(seed);
  for (int i = 0; i < dim; ++i) signs_.push_back((rng.at(size_of(i)) >> 63) != 0 ? -1.0F : 1.0F);
}

void HiggsCodec::encode(const float* x, std::uint8_t* codes, std::uint16_t* scales) const {
  const std::size_t group = size_of(group_);
  const std::size_t padded = std::max(group, blocks_ * size_of(grid_->p()));
  std::array<float, kScratch> y;
  for (std::size_t g = 0; g < groups_; ++g) {
    const std::size_t begin = g * group;
    const std::size_t here = std::min(group, size_of(dim_) - begin);
    double squares = 0;
    for (std::size_t i = 0; i < here; ++i) {
      y[i] = signs_.empty() ? x[begin + i] : x[begin + i] * signs_[begin + i];
      squares += static_cast<double>(y[i]) * y[i];
    }
    std::fill_n(y.begin() + static_cast<std::ptrdiff_t>(here), padded - here, 0.0F);
    const auto norm = static_cast<float>(std::sqrt(squares));
    scales[g] = bf16_from_float(norm);
    if (scales[g] == 0) {
      std::fill_n(codes + g * blocks_, blocks_, std::uint8_t{0});
      continue;
    }
    for (std::size_t i = 0; i < here; ++i) y[i] /= norm;
    hadamard_transform({y.data(), group});
    grid_->snap(y.data(), blocks_, codes + g * blocks_);
  }
}

void HiggsCodec::decode(const std::uint8_t* codes, const std::uint16_t* scales, float* x) const {
  const std::size_t group = size_of(group_);
  const std::size_t p = size_of(grid_->p());
  if (signs_.empty() && size_of(dim_) == groups_ * group && group >= p) {
    for (std::size_t g = 0; g < groups_; ++g) {
      const float scale = float_from_bf16(scales[g]) / static_cast<float>(group_);
      grid_->decode_group(codes + g * blocks_, group, scale, x + g * group);
    }
    return;
  }
  std::array<float, kScratch> y;
  for (std::size_t g = 0; g < groups_; ++g) {
    const float scale = float_from_bf16(scales[g]) / static_cast<float>(group_);
    for (std::size_t b = 0; b < blocks_; ++b) {
      const float* const point = grid_->point(codes[g * blocks_ + b]);
      for (std::size_t k = 0; k < p; ++k) y[b * p + k] = scale * point[k];
    }
    hadamard_transform({y.data(), group});
    const std::size_t begin = g * group;
    for (std::size_t i = 0; i < std::min(group, size_of(dim_) - begin); ++i) {
      x[begin + i] = signs_.empty() ? y[i] : y[i] * signs_[begin + i];
    }
  }
}

void HiggsCodec::turn_query(float* q) const {
  KV_CHECK(groups_ == 1 && dim_ == group_);
  for (std::size_t i = 0; i < signs_.size(); ++i) q[i] *= signs_[i];
  hadamard_transform({q, size_of(group_)});
  for (std::size_t i = 0; i < size_of(group_); ++i) q[i] /= static_cast<float>(group_);
}

}  // namespace kvartet
#endif
