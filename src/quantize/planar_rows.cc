#include "quantize/planar_rows.h"

#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/float16.h"
#include "core/uz.h"
#include "quantize/planar_kernels.h"

namespace kvartet {
namespace {

constexpr std::size_t kSteps = 32;  // of the words that belong together
constexpr std::size_t kRows = kPlanarRows;

struct Plane {
  unsigned width = 0;
  unsigned first_bit = 0;  // of the code
  std::size_t first_word = 0;
};

// The planes of a width, in order; returns how many.
int planes_of(int bits, Plane* planes) {
  int count = 0;
  unsigned done = 0;
  for (const unsigned width : {8U, 4U, 2U, 1U}) {
    if ((static_cast<unsigned>(bits) & width) == 0) continue;
    planes[count++] = {width, done, done};
    done += width;
  }
  return count;
}

struct BitPlace {
  std::size_t word;
  unsigned shift;
};
BitPlace place_of(const Plane& plane, std::size_t step) {
  const std::size_t quad = step / 4;
  const std::size_t per_byte = 8 / plane.width;
  return {plane.first_word + quad / per_byte, static_cast<unsigned>(8 * (step % 4) + quad % per_byte * plane.width)};
}

// First of the `bits` words (32 lanes apart) that hold (row, channel).
std::size_t words_at(const CodePart& part, Side side, std::size_t row, std::size_t channel) {
  const std::size_t lane = side == Side::kKey ? row : channel;
  const std::size_t step = side == Side::kKey ? channel : row;
  const std::size_t steps = side == Side::kKey ? uz(part.channels) : kRows;
  return (lane / kPlanarLanes * (steps / kSteps) + step / kSteps) * uz(part.bits) * kPlanarLanes + lane % kPlanarLanes;
}

// A key's words are its own: 32 channels of one token.
void write_key_codes(const CodePart& part, std::uint32_t* words, std::size_t row, const std::uint8_t* codes) {
  Plane planes[4];
  const int plane_count = planes_of(part.bits, planes);
  for (std::size_t channel = 0; channel < uz(part.channels); channel += kSteps) {
    std::uint32_t* const lane = words + words_at(part, Side::kKey, row, channel);
    std::uint32_t quads[kSteps / 4];
    std::memcpy(quads, codes + channel, sizeof(quads));  // four codes in four bytes, as the words want them
    for (int p = 0; p < plane_count; ++p) {
      const std::uint32_t mask = ((1U << planes[p].width) - 1U) * 0x01010101U;
      const std::size_t per_byte = 8 / planes[p].width;
      for (std::size_t w = 0; w < planes[p].width; ++w) {
        std::uint32_t word = 0;
        for (std::size_t k = 0; k < per_byte; ++k) {
          word |= ((quads[w * per_byte + k] >> planes[p].first_bit) & mask) << (k * planes[p].width);
        }
        lane[(planes[p].first_word + w) * kPlanarLanes] = word;
      }
    }
  }
}

// A value shares its words with 31 neighbours: its bits are replaced.
void write_value_codes(const CodePart& part, std::uint32_t* words, std::size_t row, const std::uint8_t* codes) {
  Plane planes[4];
  const int plane_count = planes_of(part.bits, planes);
  for (std::size_t channel = 0; channel < uz(part.channels); channel += kPlanarLanes) {
    std::uint32_t* const group = words + words_at(part, Side::kValue, row, channel);
    for (int p = 0; p < plane_count; ++p) {
      const BitPlace place = place_of(planes[p], row % kSteps);
      const std::uint32_t mask = (1U << planes[p].width) - 1U;
      const unsigned first_bit = planes[p].first_bit;
      const unsigned shift = place.shift;
      std::uint32_t* const lanes = group + place.word * kPlanarLanes;
      for (std::size_t i = 0; i < kPlanarLanes; ++i) {
        const std::uint32_t code = (static_cast<std::uint32_t>(codes[channel + i]) >> first_bit) & mask;
        lanes[i] = (lanes[i] & ~(mask << shift)) | (code << shift);
      }
    }
  }
}

}  // namespace

std::size_t place_parts(PlanarRows* rows) {
  std::size_t at = 0;
  for (int p = 0; p < rows->part_count; ++p) {
    CodePart& part = rows->parts[p];
    KV_CHECK(part.channels % static_cast<int>(kPlanarLanes) == 0 && uz(part.channels) <= kPlanarMaxChannels);
    KV_CHECK(part.group % static_cast<int>(kSteps) == 0 && part.channels % part.group == 0);
    const std::size_t parameters = uz(part.groups()) * kRows * sizeof(std::uint16_t);
    part.codes_at = at;
    part.scales_at = part.codes_at + kRows * uz(part.channels) * uz(part.bits) / 8;
    part.minima_at = part.scales_at + parameters;
    at = part.minima_at + (part.has_minimum ? parameters : 0);
  }
  return at;
}

void write_coded_row(const CodePart& part, Side side, std::byte* tile, int row, const CodedRow& coded) {
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(tile + part.codes_at);
  if (side == Side::kKey) write_key_codes(part, words, uz(row), coded.codes);
  if (side == Side::kValue) write_value_codes(part, words, uz(row), coded.codes);
  for (std::size_t g = 0; g < uz(part.groups()); ++g) {
    reinterpret_cast<std::uint16_t*>(tile + part.scales_at)[g * kRows + uz(row)] = coded.scales[g];
    if (part.has_minimum) reinterpret_cast<std::uint16_t*>(tile + part.minima_at)[g * kRows + uz(row)] = coded.minima[g];
  }
}

unsigned planar_bits(int bits, const std::uint32_t* lane, std::size_t step) {
  Plane planes[4];
  const int plane_count = planes_of(bits, planes);
  unsigned code = 0;
  for (int p = 0; p < plane_count; ++p) {
    const BitPlace place = place_of(planes[p], step);
    code |= ((lane[place.word * kPlanarLanes] >> place.shift) & ((1U << planes[p].width) - 1U)) << planes[p].first_bit;
  }
  return code;
}

unsigned planar_code(const CodePart& part, Side side, const std::byte* tile, int row, int channel) {
  const std::uint32_t* const words = reinterpret_cast<const std::uint32_t*>(tile + part.codes_at);
  return planar_bits(part.bits, words + words_at(part, side, uz(row), uz(channel)),
                     uz(side == Side::kKey ? channel : row) % kSteps);
}

void decode_planar_part(const CodePart& part, Side side, const std::byte* tile, int row, float* out) {
  for (int c = 0; c < part.channels; ++c) {
    const std::size_t at = uz(c / part.group) * kRows + uz(row);
    const float scale = float_from_f16(reinterpret_cast<const std::uint16_t*>(tile + part.scales_at)[at]);
    out[c] = scale * part.levels.values[planar_code(part, side, tile, row, c)];
    if (part.has_minimum) out[c] += float_from_f16(reinterpret_cast<const std::uint16_t*>(tile + part.minima_at)[at]);
  }
}

void decode_planar(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  for (int row = begin; row < end; ++row) {
    for (int p = 0; p < format.planar->part_count; ++p) {
      const CodePart& part = format.planar->parts[p];
      decode_planar_part(part, format.side, tile, row, out.row(uz(row - begin)) + part.first);
    }
  }
}

CodeLevels whole_levels(int bits, float bias) {
  KV_CHECK(bits <= 5);
  CodeLevels levels;
  levels.kind = bits < 4 ? LevelKind::kTable : LevelKind::kCode;
  levels.bits = bits;
  levels.bias = bias;
  for (int code = 0; code < 1 << bits; ++code) {
    if (code < 16) levels.bytes[code] = static_cast<std::uint8_t>(code);
    levels.values[code] = static_cast<float>(code) - bias;
  }
  return levels;
}

TileFormat planar_format(std::string name, Side side, int head_dim, const PlanarRows& rows) {
  TileFormat format;
  format.name = std::move(name);
  format.side = side;
  format.head_dim = head_dim;
  format.tile_rows = kPlanarRows;
  auto owned = std::make_shared<PlanarRows>(rows);
  format.tile_bytes = place_parts(owned.get());
  format.row_bytes = static_cast<int>(format.tile_bytes / kRows);
  format.query_floats = rows.inputs == head_dim ? 0 : rows.inputs;
  format.planar = owned.get();
  format.layout = std::move(owned);
  format.kernels.decode = decode_planar;
  PlanarKernels kernels = planar_kernels_avx512(rows);
  if (kernels.score == nullptr) kernels = planar_kernels();
  if (side == Side::kKey) format.kernels.score = kernels.score;
  if (side == Side::kValue) format.kernels.accumulate = kernels.accumulate;
  return format;
}

}  // namespace kvartet
