// What the kernels of row_places.cc know of a format; for that file, and its tests.
#pragma once

#include <cstring>

#include "core/bfloat16.h"
#include "offload/row_places.h"

namespace kvartet {

inline constexpr int kMostPlacedDim = 1024;  // a key is decoded on the stack

struct PlacesLayout {
  RowSide side;
  RowCodec codec;
  const float* points = nullptr;  // of the HIGGS grid, [256, 2]
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
  // With intrinsics, where the CPU and the head allow it: keys, and the bytes of the points' whole numbers (byte_planes).
  void (*score_by_bytes)(const TileFormat&, const ScoreArgs&) = nullptr;
  alignas(64) std::uint8_t planes[4 * 256] = {};
};

struct Higgs4Kernels {
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
};
Higgs4Kernels higgs4_kernels_avx512(int head_dim);  // null: not this CPU, or not this head

inline const PlacesLayout& layout_of(const TileFormat& format) { return *static_cast<const PlacesLayout*>(format.layout.get()); }
inline const RowPlaces& places_of(const std::byte* tile) { return *reinterpret_cast<const RowPlaces*>(tile); }

// A HIGGS row's scale, behind its codes.
inline float scale_of(const PlacesLayout& layout, const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from + layout.side.head_dim / 2, sizeof(bits));
  return float_from_bf16(bits);
}

}  // namespace kvartet
