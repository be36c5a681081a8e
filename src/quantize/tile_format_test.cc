// The registry, the byte formulas (compression.md 2.7, section 9) and bad input (R8, T11), for every format.
#include "quantize/tile_format.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/rng.h"

namespace kvartet {
namespace {

const FormatRequest kRequests[] = {
    {"f32"},
    {"f16"},
    {"q8_0"},
    {"q5_0"},
    {"q4_1"},
    {"q4_0"},
    {"q3_0"},
    {.name = "q4_0", .rotation = Rotation::kHadamard},
    {"fp8"},
    {"kivi", 2, 32},
    {"kivi", 3, 64},
    {"kivi", 4, 32},
    {"kivi", 8, 64},
    {.name = "turboquant", .bits = 4, .rotation = Rotation::kHadamard, .seed = 1},
    {.name = "turboquant", .bits = 2, .quarters = 2, .rotation = Rotation::kDense, .seed = 1},
};
// A number that is not the largest of its row or block comes back rounded; fp8 saturates where the others refuse.
bool keeps_constants(const TileFormat& f) { return f.bits >= 16 || f.name.starts_with("kivi") || f.name == "q4_1"; }

TileFormat format_of(const FormatRequest& request, Side side, int head_dim) {
  return make_tile_format(request, side, head_dim).value();
}

TEST(TileFormat, NamesAreTheOnesThatCanBeMade) {
  for (const std::string& name : format_names()) EXPECT_TRUE(make_tile_format({name, 4, 32}, Side::kKey, 64).ok()) << name;
  const auto unknown = make_tile_format({"f12"}, Side::kKey, 64);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), Code::kUsage);
  EXPECT_NE(unknown.status().message().find("kivi"), std::string::npos);
}

TEST(TileFormat, RefusesWhatDoesNotFit) {
  const auto code = [](const FormatRequest& r, int head_dim) {
    return make_tile_format(r, Side::kKey, head_dim).status().code();
  };
  EXPECT_EQ(code({"f16"}, 20), Code::kUsage);
  EXPECT_EQ(code({"f16"}, 0), Code::kUsage);
  EXPECT_EQ(code({"f16"}, 2048), Code::kUsage);
  EXPECT_EQ(code({"q8_0"}, 80), Code::kUsage);
  EXPECT_EQ(code({"kivi", 4, 32}, 80), Code::kUsage);
  EXPECT_EQ(code({"kivi", 4, 128}, 64), Code::kUsage);
  EXPECT_EQ(code({"kivi", 5, 32}, 64), Code::kUsage);
  EXPECT_EQ(code({"kivi", 4, 48}, 96), Code::kUsage);
  EXPECT_NE(make_tile_format({"kivi", 4, 128}, Side::kKey, 64).status().message().find("group=64"), std::string::npos);
}

TEST(TileFormat, TilesCutAttentionBlocksEvenly) {
  for (const FormatRequest& request : kRequests) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const TileFormat f = format_of(request, side, 64);
      EXPECT_EQ(kBlockRows % f.tile_rows, 0) << f.name;
      EXPECT_EQ(f.tile_rows % f.row_step, 0) << f.name;
      EXPECT_EQ(f.tile_bytes, f.live_bytes(f.tile_rows)) << f.name;
    }
  }
  EXPECT_EQ(format_of({"kivi", 4, 64}, Side::kKey, 64).row_step, 64);
  EXPECT_EQ(format_of({"kivi", 4, 64}, Side::kValue, 64).row_step, 1);
}

// Section 9's table: 32 layers x 8 heads of 128 channels, keys and values. vLLM's values, a minimum and a scale per row, are
// kivi's with one group per row. The row with an f32 norm is no format of ours; it has the bytes of prod with 4 bits.
TEST(TileFormat, TableOfSection9) {
  struct Row {
    FormatRequest key;
    FormatRequest value;
    std::size_t bytes;
    double bits;
    double ratio;
  };
  const auto turboquant = [](int bits) {
    return FormatRequest{.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .seed = 1};
  };
  const auto prod = [&](int bits) {
    FormatRequest request = turboquant(bits);
    request.residual_signs = true;
    return request;
  };
  const auto both = [](const FormatRequest& f, std::size_t bytes, double bits, double ratio) {
    return Row{f, f, bytes, bits, ratio};
  };
  const Row rows[] = {both({"f16"}, 131072, 16, 1),
                      both({"q8_0"}, 69632, 8.5, 1.882),
                      both({"fp8"}, 65536, 8, 2.0),
                      {{"q8_0"}, {"q4_0"}, 53248, 6.5, 2.462},
                      {{"fp8"}, {"kivi", 4, 128}, 50176, 6.125, 2.612},
                      both({"q5_0"}, 45056, 5.5, 2.909),
                      both({"kivi", 4, 32}, 40960, 5.0, 3.2),
                      both({"q4_1"}, 40960, 5.0, 3.2),  // 7.1
                      both({"q4_0"}, 36864, 4.5, 3.556),
                      {turboquant(4), {"kivi", 4, 128}, 34304, 4.19, 3.821},
                      both(turboquant(4), 33792, 4.125, 3.879),
                      {turboquant(3), {"kivi", 3, 128}, 26112, 3.19, 5.020},
                      both(turboquant(3), 25600, 3.125, 5.12),
                      both({"kivi", 2, 32}, 24576, 3.0, 5.333)};
  for (const Row& row : rows) {
    const TileFormat keys = format_of(row.key, Side::kKey, 128);
    const TileFormat values = format_of(row.value, Side::kValue, 128);
    const std::size_t per_token = 32 * 8 * (keys.live_bytes(128) + values.live_bytes(128)) / 128;
    EXPECT_EQ(per_token, row.bytes) << keys.name << "/" << values.name;
    EXPECT_NEAR(static_cast<double>(per_token) * 8 / (32 * 8 * 256), row.bits, 3e-3) << keys.name << "/" << values.name;
    EXPECT_NEAR(131072.0 / static_cast<double>(per_token), row.ratio, 6e-4) << keys.name << "/" << values.name;
  }
  EXPECT_EQ(32 * 8 * 2 * format_of(prod(4), Side::kKey, 128).live_bytes(1), 34816U);
  EXPECT_EQ(32 * 8 * 2 * format_of(prod(3), Side::kKey, 128).live_bytes(1), 26624U);
}

// 2.7: bits per element are b + 32 / G, on either side, and so the ratio of long prompts.
TEST(TileFormat, KiviRatesOfSection27) {
  struct Row {
    int bits, group;
    double rate, ratio;
  };
  for (const Row& row : {Row{2, 32, 3.0, 5.333}, Row{2, 64, 2.5, 6.4}, Row{2, 128, 2.25, 7.111}, Row{4, 32, 5.0, 3.2},
                         Row{4, 64, 4.5, 3.556}, Row{4, 128, 4.25, 3.765}}) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const double bytes = static_cast<double>(format_of({"kivi", row.bits, row.group}, side, 128).live_bytes(128));
      EXPECT_EQ(bytes * 8 / (128 * 128), row.rate);
      EXPECT_NEAR(16 / row.rate, row.ratio, 6e-4);
    }
  }
}

// 2.7: e = D * (b / 8 + 4 / G) bytes per quantized row. Check value at D=128, b=2, G=32, R=128, L=1000.
TEST(TileFormat, KiviBytesOfSection27) {
  const TileFormat keys = format_of({"kivi", 2, 32}, Side::kKey, 128);
  const TileFormat values = format_of({"kivi", 2, 32}, Side::kValue, 128);
  const TileFormat exact = format_of({"f16"}, Side::kKey, 128);
  EXPECT_EQ(keys.live_bytes(896) + exact.live_bytes(1000 - 896), 69632U);
  EXPECT_EQ(values.live_bytes(1000 - 128) + exact.live_bytes(128), 74624U);
  for (const int bits : {2, 3, 4, 8}) {
    for (const int group : {32, 64, 128}) {
      const double e = 128.0 * (bits / 8.0 + 4.0 / group);
      EXPECT_EQ(static_cast<double>(format_of({"kivi", bits, group}, Side::kValue, 128).live_bytes(7)), 7 * e);
    }
  }
}

class BadInput : public testing::TestWithParam<std::tuple<FormatRequest, Side>> {
 protected:
  static constexpr std::size_t kDim = 64;
  BadInput()
      : format_(format_of(std::get<0>(GetParam()), std::get<1>(GetParam()), kDim)),
        rows_(static_cast<std::size_t>(format_.tile_rows)),
        tile_(format_.tile_bytes),
        x_(rows_ * kDim) {
    Rng rng(3);
    for (float& v : x_) v = static_cast<float>(rng.normal());
  }
  Status encode() { return format_.kernels.encode(format_, tile_.data(), 0, {x_.data(), rows_, kDim}); }
  std::vector<float> decode() {
    std::vector<float> out(x_.size());
    format_.kernels.decode(format_, tile_.data(), 0, format_.tile_rows, {out.data(), rows_, kDim});
    return out;
  }
  TileFormat format_;
  std::size_t rows_;
  std::vector<std::byte> tile_;
  std::vector<float> x_;
};

TEST_P(BadInput, NanAndInfinityAreReportedAndTheTileIsUnchanged) {
  ASSERT_TRUE(encode().ok());
  const std::vector<std::byte> before = tile_;
  const float good = x_[5 * kDim + 9];
  x_[0] += 1.0F;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    x_[5 * kDim + 9] = bad;
    const Status s = encode();
    EXPECT_EQ(s.code(), Code::kBadInput);
    EXPECT_NE(s.message().find("channel 9"), std::string::npos) << s.message();
    EXPECT_EQ(tile_, before);
  }
  x_[5 * kDim + 9] = good;
  EXPECT_TRUE(encode().ok());
  EXPECT_NE(tile_, before);
}

TEST_P(BadInput, BeyondF16IsReportedWhereAnF16MustHoldIt) {
  x_[3 * kDim + 2] = 3e7F;
  const Status s = encode();
  EXPECT_EQ(s.code(), format_.name == "f32" || format_.name == "fp8" ? Code::kOk : Code::kBadInput);
  if (!s.ok()) {
    EXPECT_NE(s.message().find("channel 2"), std::string::npos) << s.message();
  }
}

TEST_P(BadInput, ZerosAndConstantsComeBackExactly) {
  for (const float constant : {0.0F, 1.0F, -3.5F}) {
    if (!keeps_constants(format_) && constant != 0.0F) continue;
    std::fill(x_.begin(), x_.end(), constant);
    ASSERT_TRUE(encode().ok());
    EXPECT_EQ(decode(), x_);
  }
}

TEST_P(BadInput, OutliersAndSubnormalsStayWithinTheFormatsError) {
  for (std::size_t i = 0; i < x_.size(); i += 997) x_[i] = 1e4F;
  for (std::size_t i = 1; i < x_.size(); i += 131) x_[i] = 1e-40F;
  ASSERT_TRUE(encode().ok());
  const std::vector<float> out = decode();
  if (format_.name == "fp8") {  // saturates
    for (const float x : out) ASSERT_LE(std::abs(x), 448.0F);
    return;
  }
  // Half a step of a group that spans the outlier, or the rounding of the outlier itself; a rotated row, or a block whose
  // codes reach further on one side, may lose a part of the outlier.
  const float levels = format_.bits == 8 ? 127.0F : std::exp2(static_cast<float>(format_.bits)) - 1;  // of floats, 2^32 - 1
  float bound = format_.bits < 16 ? 0.505F * 1.001e4F / levels + 5.0F : 4.0F;
  if (format_.rotated != nullptr || !keeps_constants(format_)) bound *= 2.5F;
  for (std::size_t i = 0; i < x_.size(); ++i) ASSERT_LE(std::abs(out[i] - x_[i]), bound) << i;
}

INSTANTIATE_TEST_SUITE_P(T11, BadInput,
                         testing::Combine(testing::ValuesIn(kRequests), testing::Values(Side::kKey, Side::kValue)));

// The largest f16 and the first number that is not one any more.
TEST(F16Format, RoundsToNearestEvenUpToTheLimit) {
  const TileFormat f = format_of({"f16"}, Side::kValue, 8);
  std::vector<std::byte> tile(f.tile_bytes);
  std::vector<float> row = {65504.0F, -65519.9F, 1.0F + 0x1p-11F, 1.0F + 0x1.8p-10F, 0x1p-24F, 0x1p-25F, 0x1.8p-24F, 0.1F};
  ASSERT_TRUE(f.kernels.encode(f, tile.data(), 3, {row.data(), 1, 8}).ok());
  std::vector<float> out(8);
  f.kernels.decode(f, tile.data(), 3, 4, {out.data(), 1, 8});
  EXPECT_EQ(out, (std::vector<float>{65504.0F, -65504.0F, 1.0F, 1.0F + 0x1p-9F, 0x1p-24F, 0.0F, 0x1p-23F, 0x1.998p-4F}));
  row[6] = -65520.0F;
  EXPECT_EQ(f.kernels.encode(f, tile.data(), 3, {row.data(), 1, 8}).code(), Code::kBadInput);
}

TEST(F32Format, IsExact) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const TileFormat f = format_of({"f32"}, side, 8);
    std::vector<std::byte> tile(f.tile_bytes);
    const std::vector<float> row = {1e38F, -1e-38F, 0.1F, 3.0F, -0.0F, 1e-45F, 65520.0F, 7.0F};
    ASSERT_TRUE(f.kernels.encode(f, tile.data(), 63, {row.data(), 1, 8}).ok());
    std::vector<float> out(8);
    f.kernels.decode(f, tile.data(), 63, 64, {out.data(), 1, 8});
    EXPECT_EQ(out, row);
  }
}

}  // namespace
}  // namespace kvartet
