// What the kernels of row_places.cc know of a format; for that file, and its tests.
#pragma once

#include <cstring>

#include "core/bfloat16.h"
#include "offload/higgs4_tables.h"
#include "offload/row_places.h"

namespace kvartet {

inline constexpr int kMostPlacedDim = 1024;  // a key is decoded on the stack

struct PlacesLayout {
  RowSide side;
  RowCodec codec;
  const float* points = nullptr;  // of the HIGGS grid, [256, 2]
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;
  void (*score_by_bytes)(const TileFormat&, const ScoreArgs&) = nullptr;  // a twin of `score`, for some tiles
  const Higgs4Tables* tables = nullptr;                                   // of the twins
};

// Chooses twins and their tables, which all formats share, if the CPU and the head allow it.
void choose_higgs4_avx512(Side which, PlacesLayout* layout);

inline const PlacesLayout& layout_of(const TileFormat& format) { return *static_cast<const PlacesLayout*>(format.layout.get()); }
inline const RowPlaces& places_of(const std::byte* tile) { return *reinterpret_cast<const RowPlaces*>(tile); }

// A HIGGS row's scale, behind its codes.
inline float scale_of(const PlacesLayout& layout, const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from + layout.side.head_dim / 2, sizeof(bits));
  return float_from_bf16(bits);
}

}  // namespace kvartet
