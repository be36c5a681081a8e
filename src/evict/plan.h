// Which rows stay: pure functions from exported attention scores to a plan. No bytes are touched here.
#pragma once

#include <cstdint>
#include <vector>

namespace kvartet {

// For one layer: per KV head the rows kept, ascending.
struct KeepPlan {
  std::vector<std::vector<std::int32_t>> rows;  // [kv_heads]
};

}  // namespace kvartet
