// Rows of a tile as the prefill kernels read them (see attention_kernels.h).
#pragma once

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

// packed[groups][head_dim][kMicroRows] = q * log2(e) / sqrt(head_dim); rows to spare become zeros.
void pack_queries(HeadRows<const float> q, const TileRows& tile, float* packed);

}  // namespace kvartet
