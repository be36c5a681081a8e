#include "offload/higgs4_tables.h"

#include <array>
#include <cstddef>

#include "core/check.h"
#include "quantize/higgs.h"
#include "quantize/higgs_grid_data.h"

namespace kvartet {
namespace {

// Of keys the numbers are sum and difference of a point's: the first stage of the transform.
void fill_planes(const HiggsGrid& grid, Side which, std::uint8_t (*planes)[256]) {
  for (int code = 0; code < 256; ++code) {
    const float* const point = grid.point(static_cast<std::uint8_t>(code));
    const float x = point[0] * kHiggsGridUnit;
    const float y = point[1] * kHiggsGridUnit;
    const float numbers[2] = {which == Side::kKey ? x + y : x, which == Side::kKey ? x - y : y};
    for (int k = 0; k < 2; ++k) {
      const auto whole = static_cast<std::int16_t>(numbers[k]);
      KV_CHECK(static_cast<float>(whole) == numbers[k]);
      const auto bits = static_cast<std::uint16_t>(whole);
      planes[2 * k][code] = static_cast<std::uint8_t>(bits & 0xff);
      planes[2 * k + 1][code] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
}

// A vector of 64 bytes is looked up and becomes, by halves of blocks of 16 bytes, two vectors of words. With 64 channels these
// are two rows; with 256, two vectors of bytes are a row. Of keys two neighbouring words are added and subtracted: neighbours get
// two blocks of 16 pairs out of that, halves both sides of 16 pairs.
void order_keys(bool halves, std::size_t head_dim, std::uint8_t (*order)[64]) {
  const std::size_t codes = head_dim / 2;
  for (std::size_t b = 0; b < 128; ++b) {
    const std::size_t vector = b / 64;
    const std::size_t lane = b % 64 / 16 * 4 + b % 8 / 2;
    const std::size_t half = 2 * vector + b % 16 / 8;
    const std::size_t second = b % 2;
    std::size_t code = 0;
    if (codes == 32) {
      code = 32 * (half % 2) + 16 * second + lane;  // two rows
    } else {
      code = halves ? codes / 2 * second + 16 * half + lane : 32 * half + 16 * second + lane;
    }
    order[vector][b % 64] = static_cast<std::uint8_t>(code % 128);
  }
}

// Widened, a vector of words becomes the numbers of 16 codes that lie side by side, and those of the next 16.
void order_values(std::size_t head_dim, std::uint8_t (*order)[64]) {
  for (std::size_t b = 0; b < 128; ++b) {
    const std::size_t half = b / 64 * 2 + b % 16 / 8;
    const std::size_t code = 32 * half + b % 8 / 4 * 16 + b % 64 / 16 * 4 + b % 4;
    order[b / 64][b % 64] = static_cast<std::uint8_t>(head_dim == 64 ? code % 64 : code);
  }
}

Higgs4Tables make_tables(Side which, std::size_t head_dim) {
  Higgs4Tables tables;
  fill_planes(*HiggsGrid::find(2, 256).value(), which, tables.planes);
  if (which == Side::kKey) {
    order_keys(false, head_dim, tables.orders[0]);
    order_keys(true, head_dim, tables.orders[1]);
  } else {
    order_values(head_dim, tables.orders[0]);
  }
  return tables;
}

std::array<Higgs4Tables, 3> tables_of(Side which) {
  return {make_tables(which, 64), make_tables(which, 128), make_tables(which, 256)};
}

}  // namespace

const Higgs4Tables& Higgs4Tables::of(Side which, int head_dim) {
  KV_CHECK(exist(head_dim));
  static const std::array<Higgs4Tables, 3> kOfKeys = tables_of(Side::kKey);
  static const std::array<Higgs4Tables, 3> kOfValues = tables_of(Side::kValue);
  return (which == Side::kKey ? kOfKeys : kOfValues)[static_cast<std::size_t>(head_dim / 128)];
}

}  // namespace kvartet
