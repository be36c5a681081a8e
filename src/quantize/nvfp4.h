// NVFP4: E2M1 codes in blocks of 16 channels with an E4M3 scale each, under one f32 scale per tensor (offloading.md 2.2).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartet {

inline constexpr int kNvfp4Block = 16;
inline constexpr std::size_t kNvfp4BlockBytes = 9;  // 8 bytes of codes (low nibble: even channel), then the scale

enum class Nvfp4Ties : std::uint8_t { kEven, kTowardZero };  // of codes: as the hardware does, or as the paper's code does

// The tensor's scale from the largest magnitude in it.
float nvfp4_tensor_scale(float largest);

void nvfp4_encode_block(const float* x, float tensor_scale, Nvfp4Ties ties, std::byte* block);
void nvfp4_decode_block(const std::byte* block, float tensor_scale, float* x);

}  // namespace kvartet
