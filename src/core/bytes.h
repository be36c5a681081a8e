// Byte accounts: what a cache holds, counted from its buffers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvartet {

enum class Tier { kRam, kMmap, kDisk };  // later: device, remote

struct ByteAccount {
  std::size_t live = 0;       // bytes that carry rows, exactly the spec's formula
  std::size_t allocated = 0;  // live + padding (unfilled rows of tiles)
  std::size_t slow_live = 0;  // of these, in the slow tier
  std::size_t slow_allocated = 0;
  std::size_t fast_allocated() const { return allocated - slow_allocated; }
  ByteAccount& operator+=(const ByteAccount& o) {
    live += o.live;
    allocated += o.allocated;
    slow_live += o.slow_live;
    slow_allocated += o.slow_allocated;
    return *this;
  }
  bool operator==(const ByteAccount&) const = default;
};

// One named, versioned piece of a cache's state (DESIGN 4: state is enumerable).
struct StateBuffer {
  std::string name;  // "layer 3 head 1 key kivi tile 7"
  int version = 1;
  Tier tier = Tier::kRam;
  ByteAccount bytes;
  const std::byte* data = nullptr;
};

}  // namespace kvartet
