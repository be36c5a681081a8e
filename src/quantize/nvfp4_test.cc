// T-NVFP4: the test block and the error of offloading.md 2.2.
#include "quantize/nvfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/rng.h"

namespace kvartet {
namespace {

std::vector<float> round_trip(const std::vector<float>& x, float tensor_scale, Nvfp4Ties ties) {
  std::byte block[kNvfp4BlockBytes];
  nvfp4_encode_block(x.data(), tensor_scale, ties, block);
  std::vector<float> back(16);
  nvfp4_decode_block(block, tensor_scale, back.data());
  return back;
}

TEST(Nvfp4, TNvfp4TestBlock) {
  const std::vector<float> x = {6, -3, 1.5, 0.5, 0.2F, 0.25, 0.26F, 0.75, 0.76F, 2.5, 2.6F, 3.5, -5, 5.1F, 0, 1};
  std::vector<float> expected = {6, -3, 1.5, 0.5, 0, 0, 0.5, 1, 1, 2, 3, 4, -4, 6, 0, 1};
  const float scale = nvfp4_tensor_scale(6);
  EXPECT_EQ(round_trip(x, scale, Nvfp4Ties::kEven), expected);
  expected[7] = 0.5;
  expected[11] = 3;
  EXPECT_EQ(round_trip(x, scale, Nvfp4Ties::kTowardZero), expected);
}

TEST(Nvfp4, TNvfp4EveryCodeIsItself) {
  const float scale = nvfp4_tensor_scale(6);
  for (int code = 0; code < 16; ++code) {
    std::byte block[kNvfp4BlockBytes] = {};
    for (int i = 0; i < 8; ++i) block[i] = static_cast<std::byte>(code | (7 << 4));  // one 6 per block keeps the scale
    std::byte again[kNvfp4BlockBytes];
    std::vector<float> x(16);
    block[8] = std::byte{0x7e};  // 448
    nvfp4_decode_block(block, scale, x.data());
    nvfp4_encode_block(x.data(), scale, Nvfp4Ties::kEven, again);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(again[i], block[i]) << code;
  }
}

TEST(Nvfp4, ErrorOnNormalNumbers) {
  Rng rng(4);
  double error = 0;
  double norm = 0;
  float largest = 0;
  std::vector<float> all(16 * 4000);
  for (float& x : all) largest = std::max(largest, std::abs(x = static_cast<float>(rng.normal())));
  for (std::size_t i = 0; i < all.size(); i += 16) {
    const std::vector<float> x(all.begin() + static_cast<std::ptrdiff_t>(i), all.begin() + static_cast<std::ptrdiff_t>(i) + 16);
    const std::vector<float> back = round_trip(x, nvfp4_tensor_scale(largest), Nvfp4Ties::kEven);
    for (std::size_t c = 0; c < 16; ++c) {
      error += (x[c] - back[c]) * static_cast<double>(x[c] - back[c]);
      norm += static_cast<double>(x[c]) * x[c];
    }
  }
  EXPECT_NEAR(error / norm, 9.0e-3, 4e-4);
}

TEST(Nvfp4, ZerosAndUnderflowGiveZeros) {
  for (const float x : round_trip(std::vector<float>(16, 0.0F), nvfp4_tensor_scale(0), Nvfp4Ties::kEven)) EXPECT_EQ(x, 0.0F);
  for (const float x : round_trip(std::vector<float>(16, 1e-7F), nvfp4_tensor_scale(1e4F), Nvfp4Ties::kEven)) EXPECT_EQ(x, 0.0F);
}

}  // namespace
}  // namespace kvartet
