// Where things are in a KIVI tile (quantize/kivi_format.h): words [blocks][words_per_lane][32 lanes], then scales
// [groups][params_per_group], then zeros likewise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "quantize/tile_format.h"

namespace kvartet {

inline constexpr std::size_t kKiviRows = 128;
inline constexpr std::size_t kKiviLanes = 32;  // tokens or channels of a block
inline constexpr std::size_t kKiviMaxHeadDim = 1024;

struct KiviLayout {
  explicit KiviLayout(const TileFormat& f)
      : head_dim(static_cast<std::size_t>(f.head_dim)),
        group(static_cast<std::size_t>(f.group)),
        words_per_lane((f.side == Side::kKey ? head_dim : kKiviRows) * static_cast<std::size_t>(f.bits) / 32),
        params_per_group(f.side == Side::kKey ? head_dim : kKiviRows),
        word_bytes(kKiviRows * head_dim * static_cast<std::size_t>(f.bits) / 8),
        param_bytes(kKiviRows * head_dim / group * sizeof(std::uint16_t)) {}

  template <class Byte>
  auto* words(Byte* tile, std::size_t block) const {
    return reinterpret_cast<MatchConst<Byte, std::uint32_t>*>(tile) + block * words_per_lane * kKiviLanes;
  }
  template <class Byte>
  auto* scales(Byte* tile, std::size_t group_index) const {
    return reinterpret_cast<MatchConst<Byte, std::uint16_t>*>(tile + word_bytes) + group_index * params_per_group;
  }
  template <class Byte>
  auto* zeros(Byte* tile, std::size_t group_index) const {
    return reinterpret_cast<MatchConst<Byte, std::uint16_t>*>(tile + word_bytes + param_bytes) + group_index * params_per_group;
  }

  template <class From, class To>
  using MatchConst = std::conditional_t<std::is_const_v<From>, const To, To>;

  std::size_t head_dim;
  std::size_t group;
  std::size_t words_per_lane;
  std::size_t params_per_group;
  std::size_t word_bytes;
  std::size_t param_bytes;  // of all scales; as many again of zeros
};

}  // namespace kvartet
