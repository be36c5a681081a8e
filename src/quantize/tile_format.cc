#include "quantize/tile_format.h"

#include <array>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "quantize/block_format.h"
#include "quantize/float_format.h"
#include "quantize/fp8_format.h"
#include "quantize/kivi_format.h"
#include "quantize/polar_angle_format.h"
#include "quantize/q8_0_format.h"
#include "quantize/qjl_format.h"
#include "quantize/turboquant_format.h"

namespace kvartet {
namespace {

// A new format is one line here and its name in format_names.
struct Registered {
  Result<TileFormat> (*make)(const FormatRequest&, Side, int head_dim);
};
constexpr Registered kFormats[] = {{make_f16_format},  {make_f32_format},        {make_q8_0_format},        {make_q5_0_format},
                                   {make_q4_1_format}, {make_q4_0_format},       {make_q3_0_format},        {make_fp8_format},
                                   {make_kivi_format}, {make_turboquant_format}, {make_polar_angle_format}, {make_qjl_format}};

// Kernels keep their scratch on the stack, at most four rows of floats.
constexpr int kMaxHeadDim = 1024;

}  // namespace

std::size_t TileFormat::live_bytes(int rows) const {
  if (row_bytes > 0) return static_cast<std::size_t>(rows) * static_cast<std::size_t>(row_bytes);
  const std::size_t elements = static_cast<std::size_t>(rows) * static_cast<std::size_t>(head_dim);
  const std::size_t codes = elements * static_cast<std::size_t>(bits) / 8;
  if (group == 0) return codes;
  return codes + elements / static_cast<std::size_t>(group) * static_cast<std::size_t>(group_bytes);
}

std::span<const std::string> format_names() {
  static const std::array<std::string, std::size(kFormats)> names = {"f16",  "f32", "q8_0", "q5_0",       "q4_1",        "q4_0",
                                                                     "q3_0", "fp8", "kivi", "turboquant", "polar-angle", "qjl"};
  return names;
}

Result<TileFormat> make_tile_format(const FormatRequest& request, Side side, int head_dim) {
  if (head_dim < 8 || head_dim > kMaxHeadDim) {
    return usage_error(fmt::format("a head dimension of {} is not supported; it must be from 8 to {}", head_dim, kMaxHeadDim));
  }
  const std::span<const std::string> names = format_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == request.name) return kFormats[i].make(request, side, head_dim);
  }
  return usage_error(fmt::format("unknown tile format '{}'; known are {}", request.name, fmt::join(names, ", ")));
}

}  // namespace kvartet
