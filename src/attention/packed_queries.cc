#include "attention/packed_queries.h"

#include <cmath>

#include "attention/attention_kernels.h"

namespace kvartet {

int TileRows::groups() const { return (rows() + kMicroRows - 1) / kMicroRows; }

void pack_queries(HeadRows<const float> q, const TileRows& tile, std::byte* to) {
  float* packed = reinterpret_cast<float*>(to);
  constexpr std::size_t kRows = kMicroRows;
  const float scale = kLog2E / std::sqrt(static_cast<float>(q.head_dim));
  for (int g = 0; g < tile.groups(); ++g, packed += q.head_dim * kRows) {
    for (std::size_t r = 0; r < kRows; ++r) {
      const int row = g * kMicroRows + static_cast<int>(r);
      if (row >= tile.rows()) {
        for (std::size_t c = 0; c < q.head_dim; ++c) packed[c * kRows + r] = 0.0F;
        continue;
      }
      const float* const from = q.row(static_cast<std::size_t>(tile.token(row)), static_cast<std::size_t>(tile.head(row)));
      for (std::size_t c = 0; c < q.head_dim; ++c) packed[c * kRows + r] = from[c] * scale;
    }
  }
}

}  // namespace kvartet
