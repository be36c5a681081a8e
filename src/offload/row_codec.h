// How one row of head_dim numbers is written outside attention's tiles: rows of the slow tier and landmarks of the fast one
// (offloading.md 2). Encode and decode only; scoring without decoding is landmark_index.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/status.h"
#include "quantize/higgs.h"
#include "quantize/nvfp4.h"

namespace kvartet {

enum class RowFormat : std::uint8_t { kF32, kF16, kBf16, kFp8, kNvfp4, kHiggs4, kHiggs2, kHiggs1, kHiggs2x16 };

std::string_view row_format_name(RowFormat format);  // "f16", "higgs2"
std::span<const std::string_view> row_format_names();
RowFormat row_format_at(std::size_t index);  // of row_format_names()

class RowCodec {
 public:
  // higgs2x16 is the (2,16) grid: 2 bits as higgs2, a little coarser, but scored from registers (quantize/higgs_scan.h).
  // kUsage: NVFP4 wants multiples of 16 channels, HIGGS a power of two (its Hadamard group is the head).
  static Result<RowCodec> create(RowFormat format, int dim);

  RowFormat format() const { return format_; }
  int dim() const { return dim_; }
  std::size_t row_bytes() const { return row_bytes_; }
  const HiggsGrid* grid() const { return grid_; }  // null unless HIGGS

  // NVFP4's tensor scale, from the largest magnitude of all rows; other formats take no notice.
  void fit(float largest) { tensor_scale_ = nvfp4_tensor_scale(largest); }

  // The input is finite. f16 and bf16 must be able to hold it.
  void encode(const float* x, std::byte* row) const;
  void decode(const std::byte* row, float* x) const;

 private:
  RowCodec(RowFormat format, int dim) : format_(format), dim_(dim) {}
  RowFormat format_;
  int dim_;
  std::size_t row_bytes_ = 0;
  const HiggsGrid* grid_ = nullptr;
  float tensor_scale_ = 1;
};

}  // namespace kvartet
