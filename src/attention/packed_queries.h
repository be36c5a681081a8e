// Rows of a tile as the prefill kernels read them (see attention_kernels.h).
#pragma once

#include <cstddef>

#include "core/matrix.h"

namespace kvartet {

// Row r is (token first_token + r / group, query head first_head + r % group): all query heads of one KV head, token by token.
struct TileRows {
  int first_token = 0;
  int tokens = 0;
  int group = 0;
  int first_head = 0;

  int rows() const { return tokens * group; }
  int groups() const;  // micro tiles; the last one may have rows to spare
  int token(int row) const { return first_token + row / group; }
  int head(int row) const { return first_head + row % group; }
};

// What AttentionKernels::pack_queries is where packed elements are f32.
void pack_queries(HeadRows<const float> q, const TileRows& tile, std::byte* packed);

}  // namespace kvartet
