#include "offload/row_codec.h"

#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "core/bfloat16.h"
#include "core/float16.h"
#include "core/float8.h"
#include "core/uz.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"f32",    "f16",    "bf16",   "fp8",      "nvfp4",
                                                    "higgs4", "higgs2", "higgs1", "higgs2x16"};

int points_dims(RowFormat format) {
  switch (format) {
    case RowFormat::kHiggs4:
    case RowFormat::kHiggs2x16: return 2;
    case RowFormat::kHiggs2: return 4;
    case RowFormat::kHiggs1: return 8;
    default: return 0;
  }
}

void put16(std::byte* row, std::size_t at, std::uint16_t bits) { std::memcpy(row + 2 * at, &bits, sizeof(bits)); }
std::uint16_t get16(const std::byte* row, std::size_t at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, row + 2 * at, sizeof(bits));
  return bits;
}

}  // namespace

std::string_view row_format_name(RowFormat format) { return kNames[static_cast<std::size_t>(format)]; }
std::span<const std::string_view> row_format_names() { return kNames; }
RowFormat row_format_at(std::size_t index) { return static_cast<RowFormat>(index); }

Result<RowCodec> RowCodec::create(RowFormat format, int dim) {
  RowCodec codec(format, dim);
  switch (format) {
    case RowFormat::kF32: codec.row_bytes_ = 4 * uz(dim); break;
    case RowFormat::kF16:
    case RowFormat::kBf16: codec.row_bytes_ = 2 * uz(dim); break;
    case RowFormat::kFp8: codec.row_bytes_ = uz(dim); break;
    case RowFormat::kNvfp4:
      if (dim % kNvfp4Block != 0)
        return usage_error(fmt::format("nvfp4 needs a head dimension that is a multiple of 16, this model has {}; use fp8", dim));
      codec.row_bytes_ = uz(dim / kNvfp4Block) * kNvfp4BlockBytes;
      break;
    default: {
      if (dim < 8 || !std::has_single_bit(uz(dim)))
        return usage_error(fmt::format("{} needs a head dimension that is a power of two, this model has {}; use fp8",
                                       row_format_name(format), dim));
      const bool nibbles = format == RowFormat::kHiggs2x16;
      KV_ASSIGN(codec.grid_, HiggsGrid::find(points_dims(format), nibbles ? 16 : 256));
      codec.row_bytes_ = uz(dim / codec.grid_->p()) / (nibbles ? 2 : 1) + 2;
    }
  }
  return codec;
}

void RowCodec::encode(const float* x, std::byte* row) const {
  switch (format_) {
    case RowFormat::kF32: std::memcpy(row, x, row_bytes_); return;
    case RowFormat::kF16:
      for (std::size_t i = 0; i < uz(dim_); ++i) put16(row, i, f16_from_float(x[i]));
      return;
    case RowFormat::kBf16:
      for (std::size_t i = 0; i < uz(dim_); ++i) put16(row, i, bf16_from_float(x[i]));
      return;
    case RowFormat::kFp8:
      for (std::size_t i = 0; i < uz(dim_); ++i) row[i] = std::byte{e4m3_from_float(x[i])};
      return;
    case RowFormat::kNvfp4:
      for (std::size_t b = 0; b < uz(dim_ / kNvfp4Block); ++b)
        nvfp4_encode_block(x + b * uz(kNvfp4Block), tensor_scale_, Nvfp4Ties::kEven, row + b * kNvfp4BlockBytes);
      return;
    case RowFormat::kHiggs2x16: {
      std::array<std::uint8_t, 512> codes;
      std::uint16_t scale = 0;
      HiggsCodec(grid_, dim_, dim_).encode(x, codes.data(), &scale);
      for (std::size_t i = 0; i < uz(dim_ / 4); ++i) row[i] = static_cast<std::byte>(codes[2 * i] | (codes[2 * i + 1] << 4));
      std::memcpy(row + row_bytes_ - 2, &scale, sizeof(scale));
      return;
    }
    default: {
      std::uint16_t scale = 0;
      HiggsCodec(grid_, dim_, dim_).encode(x, reinterpret_cast<std::uint8_t*>(row), &scale);
      std::memcpy(row + row_bytes_ - 2, &scale, sizeof(scale));
    }
  }
}

void RowCodec::decode(const std::byte* row, float* x) const {
  switch (format_) {
    case RowFormat::kF32: std::memcpy(x, row, row_bytes_); return;
    case RowFormat::kF16:
      for (std::size_t i = 0; i < uz(dim_); ++i) x[i] = float_from_f16(get16(row, i));
      return;
    case RowFormat::kBf16:
      for (std::size_t i = 0; i < uz(dim_); ++i) x[i] = float_from_bf16(get16(row, i));
      return;
    case RowFormat::kFp8:
      for (std::size_t i = 0; i < uz(dim_); ++i) x[i] = float_from_e4m3(std::to_integer<std::uint8_t>(row[i]));
      return;
    case RowFormat::kNvfp4:
      for (std::size_t b = 0; b < uz(dim_ / kNvfp4Block); ++b)
        nvfp4_decode_block(row + b * kNvfp4BlockBytes, tensor_scale_, x + b * uz(kNvfp4Block));
      return;
    case RowFormat::kHiggs2x16: {
      std::array<std::uint8_t, 512> codes;
      std::uint16_t scale = 0;
      for (std::size_t i = 0; i < uz(dim_ / 4); ++i) {
        codes[2 * i] = std::to_integer<std::uint8_t>(row[i]) & 15U;
        codes[2 * i + 1] = static_cast<std::uint8_t>(std::to_integer<std::uint8_t>(row[i]) >> 4);
      }
      std::memcpy(&scale, row + row_bytes_ - 2, sizeof(scale));
      HiggsCodec(grid_, dim_, dim_).decode(codes.data(), &scale, x);
      return;
    }
    default: {
      std::uint16_t scale = 0;
      std::memcpy(&scale, row + row_bytes_ - 2, sizeof(scale));
      grid_->decode_group(reinterpret_cast<const std::uint8_t*>(row), uz(dim_), float_from_bf16(scale) / static_cast<float>(dim_),
                          x);
    }
  }
}

}  // namespace kvartet
