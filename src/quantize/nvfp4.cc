#include "quantize/nvfp4.h"

#include <algorithm>
#include <cmath>

#include "core/float8.h"

namespace kvartet {
namespace {

constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
constexpr float kLargest = 6.0F;
constexpr float kLeastScale = 1e-8F;

std::uint8_t magnitude_code(float x, Nvfp4Ties ties) {
  std::uint8_t code = 0;
  while (code < 7) {
    const float middle = (kMagnitudes[code] + kMagnitudes[code + 1]) / 2;
    const bool tie_goes_up = ties == Nvfp4Ties::kEven && code % 2 == 1;
    if (x < middle || (x == middle && !tie_goes_up)) break;
    ++code;
  }
  return code;
}

}  // namespace

float nvfp4_tensor_scale(float largest) { return kMaxE4m3 / std::max(largest / kLargest, kLeastScale); }

void nvfp4_encode_block(const float* x, float tensor_scale, Nvfp4Ties ties, std::byte* block) {
  float largest = 0;
  for (int i = 0; i < kNvfp4Block; ++i) largest = std::max(largest, std::abs(x[i]));
  const std::uint8_t scale_code = e4m3_from_float(std::max(largest / kLargest, kLeastScale) * tensor_scale);
  const float scale = float_from_e4m3(scale_code) / tensor_scale;
  std::fill_n(block, kNvfp4Block / 2, std::byte{0});
  block[kNvfp4Block / 2] = std::byte{scale_code};
  if (scale == 0) return;  // underflow: zeros
  for (int i = 0; i < kNvfp4Block; ++i) {
    const std::uint8_t magnitude = magnitude_code(std::min(std::abs(x[i]) / scale, kLargest), ties);
    const int code = (std::signbit(x[i]) ? 8 : 0) | magnitude;
    block[i / 2] |= static_cast<std::byte>(i % 2 == 0 ? code : code << 4);
  }
}

void nvfp4_decode_block(const std::byte* block, float tensor_scale, float* x) {
  const float scale = float_from_e4m3(std::to_integer<std::uint8_t>(block[kNvfp4Block / 2])) / tensor_scale;
  for (int i = 0; i < kNvfp4Block; ++i) {
    const int code = (std::to_integer<int>(block[i / 2]) >> (i % 2 == 0 ? 0 : 4)) & 15;
    const float magnitude = kMagnitudes[code & 7] * scale;
    x[i] = (code & 8) != 0 ? -magnitude : magnitude;
  }
}

}  // namespace kvartet
