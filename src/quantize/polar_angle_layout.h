// Where things are in a polar-angle tile (quantize/polar_angle_format.h), and what its codes stand for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartet {

inline constexpr std::size_t kPolarRows = 128;
inline constexpr std::size_t kPolarLanes = 32;
inline constexpr std::size_t kPolarBlock = 16;         // channels with one radius
inline constexpr std::size_t kPolarUnitChannels = 64;  // whose bits lie together
inline constexpr std::size_t kPolarUnitBytes = kPolarLanes * (4 * 4 + 4 + 2 + 1 + 4 * 2);

// One unit: 64 channels of 32 tokens. The angles behind the first level take 14 bits of a block: level 2 has the bits 0 to 7,
// level 3 the bits 8 to 11, level 4 the bits 12 and 13.
struct PolarUnit {
  std::size_t at;  // bytes from the tile's beginning
  PolarUnit(std::size_t token, std::size_t channel, std::size_t head_dim)
      : at((token / kPolarLanes * (head_dim / kPolarUnitChannels) + channel / kPolarUnitChannels) * kPolarUnitBytes) {}
  std::size_t first_angles() const { return at; }                      // u32 [4][32]
  std::size_t low_angles() const { return at + 16 * kPolarLanes; }     // u32 [32]
  std::size_t middle_angles() const { return at + 20 * kPolarLanes; }  // u16 [32]
  std::size_t radii() const { return at + 22 * kPolarLanes; }          // f16 [4][32]
  std::size_t high_angles() const { return at + 30 * kPolarLanes; }    // u8 [32]
};

// Cosine and sine of every code's angle: 16 on the first level, 4 on the others. Plain data, read by the kernels.
struct PolarTables {
  float first_cosine[16];
  float first_sine[16];
  float cosine[3][4];  // levels 2, 3, 4
  float sine[3][4];
  float border_tangent[3][3];  // of the angles between neighbours
};
const PolarTables& polar_tables();

}  // namespace kvartet
