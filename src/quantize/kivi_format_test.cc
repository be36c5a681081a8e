// KIVI against compression.md 2.1, 2.2 and 2.8 (T8, T13).
#include "quantize/kivi_format.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/bfloat16.h"
#include "core/float16.h"
#include "core/normals_fixture.h"
#include "core/rng.h"

namespace kvartet {
namespace {

constexpr std::size_t kRows = 128;

TileFormat make(int bits, int group, Side side, int head_dim) {
  return make_kivi_format({"kivi", bits, group}, side, head_dim).value();
}

// Encodes whole tiles of rows [rows, head_dim] and gives back what they hold; rows is a multiple of 128.
std::vector<float> round_trip(const TileFormat& f, const std::vector<float>& x) {
  const std::size_t dim = static_cast<std::size_t>(f.head_dim);
  std::vector<std::byte> tile(f.tile_bytes);
  std::vector<float> out(x.size());
  for (std::size_t row = 0; row < x.size() / dim; row += kRows) {
    EXPECT_TRUE(f.kernels.encode(f, tile.data(), 0, {x.data() + row * dim, kRows, dim}).ok());
    f.kernels.decode(f, tile.data(), 0, static_cast<int>(kRows), {out.data() + row * dim, kRows, dim});
  }
  return out;
}

double mean_squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return sum / static_cast<double>(a.size());
}

// One value row whose only group holds the spec's four numbers again and again.
std::vector<float> repeat(const std::vector<float>& four) {
  std::vector<float> row;
  for (std::size_t i = 0; i < 32; ++i) row.push_back(four[i % four.size()]);
  return row;
}

TEST(KiviFormat, ScalarCasesOf28) {
  const std::vector<float> row = repeat({-1.0F, -0.2F, 0.35F, 2.0F});
  const auto decoded = [&](int bits) {
    const TileFormat f = make(bits, 32, Side::kValue, 32);
    std::vector<std::byte> tile(f.tile_bytes);
    EXPECT_TRUE(f.kernels.encode(f, tile.data(), 5, {row.data(), 1, 32}).ok());
    std::vector<float> out(32);
    f.kernels.decode(f, tile.data(), 5, 6, {out.data(), 1, 32});
    return std::vector<float>(out.begin(), out.begin() + 4);
  };
  EXPECT_EQ(decoded(2), (std::vector<float>{-1.0F, 0.0F, 0.0F, 2.0F}));  // z = -1, s = 1, codes 0 1 1 3
  const std::vector<float> four = decoded(4);                            // s = 0.2, codes 0 4 7 15
  const float expected[] = {-1.0F, -0.2F, 0.4F, 2.0F};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(four[i], expected[i], 15 * 0.2F * 0x1p-11F);
}

// 2.1: codes 0.5 and 1.5 steps above z: half to even.
TEST(KiviFormat, HalvesGoToEven) {
  const TileFormat f = make(2, 32, Side::kValue, 32);
  const std::vector<float> row = repeat({0.0F, 0.5F, 1.5F, 3.0F});
  std::vector<std::byte> tile(f.tile_bytes);
  ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {row.data(), 1, 32}).ok());
  std::vector<float> out(32);
  f.kernels.decode(f, tile.data(), 0, 1, {out.data(), 1, 32});
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 4), (std::vector<float>{0.0F, 0.0F, 2.0F, 3.0F}));
}

// 2.1 in plain C++, for one group.
std::vector<float> reference_group(const std::vector<float>& x, int bits) {
  const float levels = static_cast<float>((1 << bits) - 1);
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float z = float_from_f16(f16_from_float(*low));
  const float s = float_from_f16(f16_from_float((*high - *low) / levels));
  std::vector<float> out;
  for (const float v : x) {
    const float code = s == 0.0F ? 0.0F : std::clamp(std::nearbyint((v - z) / s), 0.0F, levels);
    out.push_back(s * code + z);
  }
  return out;
}

// 2.1 and 2.2: keys per channel along the tokens, values per token along the channels.
TEST(KiviFormat, EqualsTheFormulaGroupByGroup) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const int group : {32, 64, 128}) {
      std::vector<float> x = normals(kRows * 128, 4);
      for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 30.0F;
      for (std::size_t i = 0; i < 128 * 128; i += 128) x[i + 3] *= 1e-7F;  // a channel with a subnormal scale
      const std::vector<float> keys = round_trip(make(bits, group, Side::kKey, 128), x);
      const std::vector<float> values = round_trip(make(bits, group, Side::kValue, 128), x);
      const std::size_t n = static_cast<std::size_t>(group);
      for (std::size_t line = 0; line < 128; ++line) {
        for (std::size_t first = 0; first < 128; first += n) {
          std::vector<float> down;
          std::vector<float> along;
          for (std::size_t i = first; i < first + n; ++i) {
            down.push_back(x[i * 128 + line]);
            along.push_back(x[line * 128 + i]);
          }
          const std::vector<float> expected_keys = reference_group(down, bits);
          const std::vector<float> expected_values = reference_group(along, bits);
          for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(keys[(first + i) * 128 + line], expected_keys[i]) << bits << " bits, group " << group;
            ASSERT_EQ(values[line * 128 + first + i], expected_values[i]) << bits << " bits, group " << group;
          }
        }
      }
    }
  }
}

// The mean range of groups of `group` neighbours.
double mean_range(const std::vector<float>& x, int group) {
  double sum = 0.0;
  for (std::size_t at = 0; at < x.size(); at += static_cast<std::size_t>(group)) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(at);
    const auto [low, high] = std::minmax_element(begin, begin + group);
    sum += static_cast<double>(*high - *low);
  }
  return sum * group / static_cast<double>(x.size());
}

TEST(KiviFormat, MeanSquaredErrorOf28) {
  struct Row {
    int group;
    double two_bits;
    double three_bits;
    double four_bits;
    double range;
  };
  for (const Row& r :
       {Row{32, 0.154, 0.0281, 0.00611, 4.14}, Row{64, 0.202, 0.0369, 0.00801, 4.69}, Row{128, 0.250, 0.0457, 0.00997, 5.19}}) {
    const std::vector<float> x = normals(kRows * 60 * 128, 5);
    EXPECT_NEAR(mean_range(x, r.group), r.range, 0.02);
    for (const auto& [bits, error] : {std::pair{2, r.two_bits}, {3, r.three_bits}, {4, r.four_bits}}) {
      EXPECT_NEAR(r.range * r.range / (12 * std::pow((1 << bits) - 1, 2)), error, 0.06 * error);  // the rule of thumb
    }
    for (const Side side : {Side::kKey, Side::kValue}) {
      EXPECT_NEAR(mean_squared_error(round_trip(make(2, r.group, side, 128), x), x), r.two_bits, 0.02 * r.two_bits);
      EXPECT_NEAR(mean_squared_error(round_trip(make(3, r.group, side, 128), x), x), r.three_bits, 0.02 * r.three_bits);
      EXPECT_NEAR(mean_squared_error(round_trip(make(4, r.group, side, 128), x), x), r.four_bits, 0.02 * r.four_bits);
    }
  }
}

// 2.8: channel 5 shifted by +20. Per channel it costs nothing; per token it ruins the group that holds it.
TEST(KiviFormat, OutlierChannelTellsTheAxis) {
  std::vector<float> x = normals(kRows * 20 * 128, 6);
  for (std::size_t i = 5; i < x.size(); i += 128) x[i] += 20.0F;
  const std::vector<float> keys = round_trip(make(2, 32, Side::kKey, 128), x);
  const std::vector<float> values = round_trip(make(2, 32, Side::kValue, 128), x);
  EXPECT_NEAR(mean_squared_error(keys, x), 0.154, 0.154 * 0.03);
  double inside = 0.0;
  double outside = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = std::pow(static_cast<double>(values[i]) - static_cast<double>(x[i]), 2);
    (i % 128 < 32 ? inside : outside) += e;
  }
  EXPECT_NEAR(inside / (static_cast<double>(x.size()) / 4.0), 4.8, 0.25);
  EXPECT_NEAR(outside / (static_cast<double>(x.size()) * 0.75), 0.154, 0.154 * 0.03);
}

// 2.1: |error| <= s/2 + 2^-11 * (|z| + M s).
TEST(KiviFormat, ErrorStaysBelowTheBound) {
  for (const int bits : {2, 3, 4, 8}) {
    const float levels = static_cast<float>((1 << bits) - 1);
    std::vector<float> x = normals(kRows * 32, 8);
    for (float& v : x) v += 600.0F;  // biased keys
    const std::vector<float> out = round_trip(make(bits, 32, Side::kValue, 32), x);
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto [low, high] =
          std::minmax_element(x.begin() + static_cast<long>(row * 32), x.begin() + static_cast<long>(row * 32 + 32));
      const float s = (*high - *low) / levels;
      const float bound = s / 2.0F + 0x1p-11F * (std::abs(*low) + levels * s);
      for (std::size_t c = 0; c < 32; ++c) ASSERT_LE(std::abs(out[row * 32 + c] - x[row * 32 + c]), bound * 1.001F);
    }
  }
}

// 2.8: the largest error is half a step, never more, where zero point and step are exact.
TEST(KiviFormat, LargestErrorIsHalfAStep28) {
  for (const int bits : {2, 3, 4, 8}) {
    const int levels = (1 << bits) - 1;
    Rng rng(12);
    std::vector<float> x(kRows * 32);
    for (float& v : x) v = static_cast<float>(rng.below(static_cast<std::uint64_t>(64 * levels) + 1)) / 64.0F;
    for (std::size_t i = 0; i < x.size(); i += 32) {
      x[i] = 0.0F;
      x[i + 1] = static_cast<float>(levels);
      x[i + 2] = 0.5F;
    }
    const std::vector<float> out = round_trip(make(bits, 32, Side::kValue, 32), x);
    float largest = 0.0F;
    for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(out[i] - x[i]));
    EXPECT_EQ(largest, 0.5F) << bits;
  }
}

// 2.1: zero points are f16. At a key bias of 600 they are off by up to 0.29; bf16 would be off by up to 2.3.
TEST(KiviFormat, ZeroPointsOfBiasedKeysAreF16) {
  std::vector<float> x(kRows * 64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 600.0F + 0.137F * static_cast<float>(i % 64);  // constant channels
  const std::vector<float> out = round_trip(make(2, 32, Side::kKey, 64), x);
  float largest = 0.0F;
  float in_bf16 = 0.0F;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, std::abs(out[i] - x[i]));
    in_bf16 = std::max(in_bf16, std::abs(float_from_bf16(bf16_from_float(x[i])) - x[i]));
  }
  EXPECT_LE(largest, 0.29F);
  EXPECT_GT(largest, 0.2F);
  EXPECT_GT(in_bf16, 1.5F);
  EXPECT_LE(in_bf16, 2.3F);
}

// 2.2: a key group is `group` tokens long, never shorter.
TEST(KiviFormat, KeysTakeWholeGroupsOnly) {
  const TileFormat f = make(2, 32, Side::kKey, 32);
  const std::vector<float> x = normals(32 * 32, 9);
  std::vector<std::byte> tile(f.tile_bytes);
  EXPECT_DEATH(static_cast<void>(f.kernels.encode(f, tile.data(), 0, {x.data(), 1, 32})), "row_step");
  EXPECT_DEATH(static_cast<void>(f.kernels.encode(f, tile.data(), 16, {x.data(), 32, 32})), "row_step");
}

// Any value row may be written again without touching its neighbours, although they share words.
TEST(KiviFormat, OverwritingAValueRowLeavesTheOthers) {
  for (const int bits : {2, 3, 4, 8}) {
    const TileFormat f = make(bits, 32, Side::kValue, 64);
    const std::vector<float> x = normals(kRows * 64, 10);
    const std::vector<float> other = normals(1 * 64, 11);
    std::vector<std::byte> tile(f.tile_bytes);
    std::vector<float> before(x.size());
    std::vector<float> after(x.size());
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 0, {x.data(), kRows, 64}).ok());
    f.kernels.decode(f, tile.data(), 0, static_cast<int>(kRows), {before.data(), kRows, 64});
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 77, {other.data(), 1, 64}).ok());
    f.kernels.decode(f, tile.data(), 0, static_cast<int>(kRows), {after.data(), kRows, 64});
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / 64 != 77) {
        ASSERT_EQ(before[i], after[i]);
      }
    }
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 77, {x.data() + std::size_t{77} * 64, 1, 64}).ok());
    f.kernels.decode(f, tile.data(), 0, static_cast<int>(kRows), {after.data(), kRows, 64});
    EXPECT_EQ(before, after);
  }
}

}  // namespace
}  // namespace kvartet
