// Rows of small codes with a scale per row or per block of channels: the layout shared by turboquant, qjl and the q4/q5 block
// types, which differ in what a code stands for and in how it is chosen.
//
// A row has one or two parts, runs of channels with codes of their own width. A tile of 128 rows holds, part after part,
//   codes  u32: keys   [128 / 32 tokens][channels / 32][bits][32 tokens]       (a lane is a token, a step is a channel)
//               values [channels / 32][128 / 32 tokens][bits][32 channels]     (a lane is a channel, a step is a token)
//   scales f16 [channels / group][128 rows], then minima likewise if the part has them.
// So both kernels read their codes from the first byte to the last.
//
// The 32 steps of a lane take `bits` words. A width is cut in planes of 4, 2 and 1 bits (8 stays whole), lowest bits first,
// and a plane of w bits has w words: step s lies in byte s % 4, at bit (s / 4) % (8 / w) * w, of word s / 4 / (8 / w). One
// shift and one mask so give the codes of four steps in four bytes, ready for a byte table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quantize/tile_format.h"

namespace kvartet {

inline constexpr int kPlanarRows = 128;
inline constexpr std::size_t kPlanarLanes = 32;
inline constexpr std::size_t kPlanarMaxChannels = 1024;  // of a part

// How a kernel gets from a code to its level.
enum class LevelKind : std::uint8_t {
  kTable,  // up to 4 bits: bytes[code] - bias
  kCode,   // 4 or 5 bits: code - bias
  kWide,   // 5 bits and more: the 16-bit number in low_bytes and high_bytes
};

// x ~ scale * values[code] + minimum, where values[code] = unit * (bytes[code] - bias), unit * (code - bias) or
// unit * int16(high_bytes[code], low_bytes[code]). Plain data: kernels read it.
struct CodeLevels {
  LevelKind kind = LevelKind::kTable;
  int bits = 0;
  std::uint8_t bytes[16] = {};
  std::uint8_t low_bytes[256] = {};
  std::uint8_t high_bytes[256] = {};
  float bias = 0;
  float unit = 1;
  float values[256] = {};
  float borders[255] = {};  // between neighbours, where codes are chosen by nearest level
};

struct CodePart {
  int first = 0;     // its first channel in the (prepared) query or in the output
  int channels = 0;  // a multiple of 32
  int bits = 0;
  int group = 0;  // channels that share a scale: 32, or all of them
  bool has_minimum = false;
  CodeLevels levels;
  std::size_t codes_at = 0;  // bytes from the tile's beginning
  std::size_t scales_at = 0;
  std::size_t minima_at = 0;

  int groups() const { return channels / group; }
};

struct PlanarRows {
  CodePart parts[2];
  int part_count = 0;
  int inputs = 0;  // floats of a prepared query
};

// Completes the offsets of the parts and returns the tile's size.
std::size_t place_parts(PlanarRows* rows);

// One row of a part: codes [channels], scales and minima [groups] as f16.
struct CodedRow {
  const std::uint8_t* codes = nullptr;
  const std::uint16_t* scales = nullptr;
  const std::uint16_t* minima = nullptr;  // null without minima
};
void write_coded_row(const CodePart& part, Side side, std::byte* tile, int row, const CodedRow& coded);

// The code of a step, 0 to 31, in the words that hold it; `lane` is the lane's first word, the others lie 32 apart.
unsigned planar_bits(int bits, const std::uint32_t* lane, std::size_t step);
unsigned planar_code(const CodePart& part, Side side, const std::byte* tile, int row, int channel);
// What a row of a part decodes to: out [channels].
void decode_planar_part(const CodePart& part, Side side, const std::byte* tile, int row, float* out);
// TileKernels::decode for formats whose parts are runs of the row's own channels.
void decode_planar(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out);

// Levels that are the codes themselves, off by `bias`; up to 5 bits.
CodeLevels whole_levels(int bits, float bias);

// Fills in name, sizes and the score or accumulate kernel of a format made of `rows`.
TileFormat planar_format(std::string name, Side side, int head_dim, const PlanarRows& rows);

}  // namespace kvartet
