#include "quantize/polar_angle_format.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "core/float16.h"
#include "quantize/polar_angle_layout.h"
#include "quantize/rotated_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/polar_angle_format.cc"
#include "simd/dispatch.h"

#include "quantize/lane_products-inl.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F8 = hn::CappedTag<float, 8>;

// Splits a coordinate by the angle of a code: first = x cos, second = x sin.
HWY_INLINE void split(F8 d, hn::Vec<F8> x, hn::VFromD<hn::RebindToUnsigned<F8>> code, const float* cosine, const float* sine,
                      hn::Vec<F8>& first, hn::Vec<F8>& second) {
  const auto index = hn::BitCast(hn::RebindToSigned<F8>(), code);
  first = hn::Mul(x, hn::GatherIndex(d, cosine, index));
  second = hn::Mul(x, hn::GatherIndex(d, sine, index));
}

// The 16 channels of block `b` of a unit, for the tokens of one vector: from the radius down the tree, in registers.
HWY_INLINE void unpack_block(F8 d, const PolarTables& tables, const std::byte* tile, const PolarUnit& unit, std::size_t b,
                             std::size_t lane, hn::Vec<F8>* HWY_RESTRICT x) {
  const hn::RebindToUnsigned<F8> du;
  const hn::Rebind<std::uint16_t, F8> du16;
  const hn::Rebind<std::uint8_t, F8> du8;
  const auto low = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(tile + unit.low_angles()) + lane);
  const auto middle =
      hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(tile + unit.middle_angles()) + lane));
  const auto high = hn::PromoteTo(du, hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(tile + unit.high_angles()) + lane));
  auto codes = low;
  if (b == 1) codes = hn::ShiftRight<14>(low);
  if (b == 2) codes = hn::Or(hn::ShiftRight<28>(low), hn::ShiftLeft<4>(middle));
  if (b == 3) codes = hn::Or(hn::ShiftRight<10>(middle), hn::ShiftLeft<6>(high));
  const auto two_bits = hn::Set(du, 3U);
  const auto code = [&](int shift) HWY_ATTR { return hn::And(hn::ShiftRightSame(codes, shift), two_bits); };
  x[0] = load_f16(d, reinterpret_cast<const std::uint16_t*>(tile + unit.radii()) + b * kPolarLanes + lane);
  for (int level = 4; level >= 2; --level) {
    const int parents = 1 << (4 - level);
    const int first_bit = level == 4 ? 12 : level == 3 ? 8 : 0;
    for (int i = parents - 1; i >= 0; --i) {
      split(d, x[i], code(first_bit + 2 * i), tables.cosine[level - 2], tables.sine[level - 2], x[2 * i], x[2 * i + 1]);
    }
  }
  const auto angles = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(tile + unit.first_angles()) + b * kPolarLanes + lane);
  for (int i = 7; i >= 0; --i) {
    const auto angle = hn::And(hn::ShiftRightSame(angles, 4 * i), hn::Set(du, 15U));
    split(d, x[i], angle, tables.first_cosine, tables.first_sine, x[2 * i], x[2 * i + 1]);
  }
}

struct ScorePolar {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const F8 d;
    const PolarTables& tables = polar_tables();
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    alignas(64) float logits[kQueries][kPolarRows];
    for (std::size_t t = begin / 8 * 8; t < end; t += hn::Lanes(d)) {
      hn::Vec<F8> sums[kQueries];
      for (int q = 0; q < kQueries; ++q) sums[q] = hn::Zero(d);
      for (std::size_t c = 0; c < head_dim; c += kPolarBlock) {
        hn::Vec<F8> x[kPolarBlock];
        unpack_block(d, tables, args.tile, PolarUnit(t, c, head_dim), c % kPolarUnitChannels / kPolarBlock, t % kPolarLanes, x);
        const float* const from = args.q + query * head_dim + c;
        for (int q = 0; q < kQueries; ++q) {
          for (std::size_t i = 0; i < kPolarBlock; ++i) {
            sums[q] = hn::MulAdd(hn::Set(d, from[static_cast<std::size_t>(q) * head_dim + i]), x[i], sums[q]);
          }
        }
      }
      for (int q = 0; q < kQueries; ++q) hn::StoreU(sums[q], d, logits[q] + t);
    }
    for (std::size_t q = 0; q < kQueries; ++q) {
      std::memcpy(args.logits + (query + q) * args.logit_stride, logits[q] + begin, (end - begin) * sizeof(float));
    }
  }
};

struct AccumulatePolar {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const F8 d;
    const PolarTables& tables = polar_tables();
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    alignas(64) float weights[kQueries][kPolarRows] = {};  // rows outside [begin, end) weigh nothing
    for (std::size_t q = 0; q < kQueries; ++q) {
      std::memcpy(weights[q] + begin, args.weights + (query + q) * args.weight_stride, (end - begin) * sizeof(float));
    }
    for (std::size_t c = 0; c < head_dim; c += kPolarBlock) {
      hn::Vec<F8> sums[kQueries][kPolarBlock];
      for (int q = 0; q < kQueries; ++q) {
        for (std::size_t i = 0; i < kPolarBlock; ++i) sums[q][i] = hn::Zero(d);
      }
      for (std::size_t t = begin / 8 * 8; t < end; t += hn::Lanes(d)) {
        hn::Vec<F8> x[kPolarBlock];
        unpack_block(d, tables, args.tile, PolarUnit(t, c, head_dim), c % kPolarUnitChannels / kPolarBlock, t % kPolarLanes, x);
        for (int q = 0; q < kQueries; ++q) {
          const auto weight = hn::LoadU(d, weights[q] + t);
          for (std::size_t i = 0; i < kPolarBlock; ++i) sums[q][i] = hn::MulAdd(weight, x[i], sums[q][i]);
        }
      }
      for (int q = 0; q < kQueries; ++q) {
        float* const out = args.out + (query + static_cast<std::size_t>(q)) * head_dim + c;
        for (std::size_t i = 0; i < kPolarBlock; ++i) out[i] += hn::GetLane(hn::SumOfLanes(d, sums[q][i]));
      }
    }
  }
};

void score_polar(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScorePolar>(format, args); }
void accumulate_polar(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<AccumulatePolar>(format, args); }

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(score_polar);
HWY_EXPORT(accumulate_polar);

const PolarTables& polar_tables() {
  // Lloyd-Max points of the laws sin(2 psi)^(2^(level - 1) - 1) of levels 2 to 4 (3.10), symmetric about pi / 4.
  constexpr double kAngles[3][4] = {
      {0.3098, 0.6340, 0.9368, 1.2610}, {0.4262, 0.6744, 0.8964, 1.1446}, {0.5242, 0.7059, 0.8649, 1.0466}};
  static const PolarTables kTables = [&] {
    PolarTables tables{};
    for (int i = 0; i < 16; ++i) {  // the first level is uniform on the circle
      tables.first_cosine[i] = static_cast<float>(std::cos((i + 0.5) * std::numbers::pi / 8));
      tables.first_sine[i] = static_cast<float>(std::sin((i + 0.5) * std::numbers::pi / 8));
    }
    for (int level = 0; level < 3; ++level) {
      for (int i = 0; i < 4; ++i) {
        tables.cosine[level][i] = static_cast<float>(std::cos(kAngles[level][i]));
        tables.sine[level][i] = static_cast<float>(std::sin(kAngles[level][i]));
        if (i < 3)
          tables.border_tangent[level][i] = static_cast<float>(std::tan((kAngles[level][i] + kAngles[level][i + 1]) / 2));
      }
    }
    return tables;
  }();
  return kTables;
}

namespace {

// The sector of 16 that (x, y) points to; the borders of a quadrant's four are at pi / 8, pi / 4 and 3 pi / 8.
unsigned sector_of(float x, float y) {
  constexpr float kTangent = 0.41421356F;  // tan(pi / 8)
  const float a = std::abs(x);
  const float b = std::abs(y);
  const unsigned within = b < a ? (b < kTangent * a ? 0U : 1U) : (a > kTangent * b ? 2U : 3U);
  if (x >= 0.0F) return y >= 0.0F ? within : 15U - within;
  return y >= 0.0F ? 7U - within : 8U + within;
}

// The code of the angle of (x, y), both at least 0.
unsigned angle_code(const PolarTables& tables, int level, float x, float y) {
  unsigned code = 0;
  for (const float tangent : tables.border_tangent[level]) code += y >= tangent * x ? 1U : 0U;
  return code;
}

struct PolarCodes {
  std::uint32_t first = 0;
  std::uint32_t others = 0;  // 14 bits
  std::uint16_t radius = 0;
};

PolarCodes code_block(const PolarTables& tables, const float* x) {
  PolarCodes codes;
  float radii[8];
  for (unsigned i = 0; i < 8; ++i) {
    codes.first |= sector_of(x[2 * i], x[2 * i + 1]) << (4 * i);
    radii[i] = std::sqrt(x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1]);
  }
  unsigned bit = 0;
  for (unsigned level = 0, pairs = 4; level < 3; ++level, pairs /= 2) {
    for (unsigned i = 0; i < pairs; ++i, bit += 2) {
      const float a = radii[2 * i];
      const float b = radii[2 * i + 1];
      codes.others |= angle_code(tables, static_cast<int>(level), a, b) << bit;
      radii[i] = std::sqrt(a * a + b * b);
    }
  }
  codes.radius = f16_from_float(radii[0]);
  return codes;
}

template <class T>
T* lanes_at(std::byte* tile, std::size_t at) {
  return reinterpret_cast<T*>(tile + at);
}

Status encode(const TileFormat&, std::byte* tile, int begin, MatView<const float> rows) {
  const PolarTables& tables = polar_tables();
  for (std::size_t r = 0; r < rows.rows; ++r) {
    const std::size_t row = static_cast<std::size_t>(begin) + r;
    const std::size_t lane = row % kPolarLanes;
    for (std::size_t c = 0; c < rows.cols; c += kPolarUnitChannels) {
      const PolarUnit unit(row, c, rows.cols);
      std::uint64_t others = 0;
      for (std::size_t b = 0; b < 4; ++b) {
        const PolarCodes codes = code_block(tables, rows.row(r) + c + b * kPolarBlock);
        lanes_at<std::uint32_t>(tile, unit.first_angles())[b * kPolarLanes + lane] = codes.first;
        lanes_at<std::uint16_t>(tile, unit.radii())[b * kPolarLanes + lane] = codes.radius;
        others |= static_cast<std::uint64_t>(codes.others) << (14 * b);
      }
      lanes_at<std::uint32_t>(tile, unit.low_angles())[lane] = static_cast<std::uint32_t>(others);
      lanes_at<std::uint16_t>(tile, unit.middle_angles())[lane] = static_cast<std::uint16_t>(others >> 32);
      lanes_at<std::uint8_t>(tile, unit.high_angles())[lane] = static_cast<std::uint8_t>(others >> 48);
    }
  }
  return {};
}

void decode_block(const PolarTables& tables, const PolarCodes& codes, float* x) {
  x[0] = float_from_f16(codes.radius);
  for (int level = 2, pairs = 1, bit = 12; level >= 0; --level, pairs *= 2) {
    for (int i = pairs - 1; i >= 0; --i) {
      const unsigned code = codes.others >> (bit + 2 * i) & 3U;
      const float radius = x[i];
      x[2 * i] = radius * tables.cosine[level][code];
      x[2 * i + 1] = radius * tables.sine[level][code];
    }
    bit -= 4 * pairs;
  }
  for (int i = 7; i >= 0; --i) {
    const unsigned code = codes.first >> (4 * i) & 15U;
    const float radius = x[i];
    x[2 * i] = radius * tables.first_cosine[code];
    x[2 * i + 1] = radius * tables.first_sine[code];
  }
}

template <class T>
T number_at(const std::byte* tile, std::size_t at, std::size_t index) {
  return reinterpret_cast<const T*>(tile + at)[index];
}

void decode(const TileFormat&, const std::byte* tile, int begin, int end, MatView<float> out) {
  for (std::size_t row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
    const std::size_t lane = row % kPolarLanes;
    for (std::size_t c = 0; c < out.cols; c += kPolarBlock) {
      const PolarUnit unit(row, c, out.cols);
      const std::size_t b = c % kPolarUnitChannels / kPolarBlock;
      const std::uint64_t others = number_at<std::uint32_t>(tile, unit.low_angles(), lane) |
                                   static_cast<std::uint64_t>(number_at<std::uint16_t>(tile, unit.middle_angles(), lane)) << 32 |
                                   static_cast<std::uint64_t>(number_at<std::uint8_t>(tile, unit.high_angles(), lane)) << 48;
      const PolarCodes codes{number_at<std::uint32_t>(tile, unit.first_angles(), b * kPolarLanes + lane),
                             static_cast<std::uint32_t>(others >> (14 * b)) & 0x3fffU,
                             number_at<std::uint16_t>(tile, unit.radii(), b * kPolarLanes + lane)};
      decode_block(polar_tables(), codes, out.row(row - static_cast<std::size_t>(begin)) + c);
    }
  }
}

}  // namespace

Result<TileFormat> make_polar_angle_format(const FormatRequest& request, Side side, int head_dim) {
  if (head_dim % static_cast<int>(kPolarUnitChannels) != 0) {
    return usage_error(fmt::format("polar-angle needs a head dimension that is a multiple of 64, this model has {}; use {}",
                                   head_dim, head_dim % 32 == 0 ? "turboquant" : "full"));
  }
  TileFormat format;
  format.name = "polar-angle";
  format.side = side;
  format.head_dim = head_dim;
  format.tile_rows = static_cast<int>(kPolarRows);
  format.bits = 3;
  format.row_bytes = head_dim * 31 / 64;
  format.tile_bytes = format.live_bytes(format.tile_rows);
  format.kernels.encode = encode;
  format.kernels.decode = decode;
  format.kernels.score = SIMD_CHOOSE(score_polar);
  format.kernels.accumulate = SIMD_CHOOSE(accumulate_polar);
  return with_rotation(std::move(format), {request.rotation, {head_dim, 0}, 1, {}}, request.seed);
}

}  // namespace kvartet
#endif
