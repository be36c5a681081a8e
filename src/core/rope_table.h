// Rotary position embedding as data: what a cache needs to rotate a key after it was stored unrotated (offloading.md 1.6).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/arena.h"
#include "core/status.h"

namespace kvartet {

enum class RopeLayout : unsigned char {
  kNeighbours,  // channels 2i and 2i+1 turn together
  kHalves,      // channels i and i + dims/2
};

// What sets one model's rotation apart; dims == 0: not known.
struct RopeShape {
  int dims = 0;  // channels of a head that turn; the others stay
  double base = 10000;
  double scale = 1;  // of positions
  RopeLayout layout = RopeLayout::kNeighbours;
  std::vector<float> factors = {};  // divisors of the frequencies [dims / 2]; empty: none
};

// Cosines and sines of positions [0, positions()), angles computed in f32 as the model's own graph does. Copies share them.
class RopeTable {
 public:
  static constexpr int kTogether = 16;    // pairs that kernels turn at a time
  static constexpr int kPositions = 256;  // of one allocation

  // At least so many positions. kExhausted: the arena's cap or memory.
  static Result<RopeTable> create(const RopeShape& shape, int positions, Arena& arena);
  Result<RopeTable> extended(int positions, Arena& arena) const;
  static std::size_t bytes(const RopeShape& shape, int positions);  // what create() allocates

  int positions() const { return kPositions * static_cast<int>(starts_.size()); }
  int dims() const { return shape_.dims; }
  RopeLayout layout() const { return shape_.layout; }
  int padded_pairs() const { return padded_pairs(shape_); }  // whole multiples of kTogether: those too many do not turn
  void rotate(float* row, int position) const;               // one head's row, in place
  // [2][padded_pairs]: cosines, then sines.
  const float* of(int position) const {
    const auto at = static_cast<std::size_t>(position);
    return starts_[at / kPositions] + at % kPositions * 2 * static_cast<std::size_t>(padded_pairs());
  }
  // of() will be asked for it soon: positions far apart lie far apart in memory.
  void prefetch(int position) const {
    constexpr int kLine = 64 / sizeof(float);
    const float* const turn = of(position);
    for (int i = 0; i < 2 * padded_pairs(); i += kLine) __builtin_prefetch(turn + i, 0, 2);
  }
  std::vector<const Buffer*> buffers() const;

 private:
  static int padded_pairs(const RopeShape& shape) { return (shape.dims / 2 + kTogether - 1) / kTogether * kTogether; }
  RopeShape shape_;
  std::vector<std::shared_ptr<const Buffer>> chunks_;  // [kPositions][2][padded_pairs]
  std::vector<const float*> starts_;                   // of the chunks
};

// The rotation by one position, for a few rows and positions that need no table.
class RopeTurn {
 public:
  RopeTurn(const RopeShape& shape, int position);
  void apply(float* row) const;  // one head's row, in place

 private:
  RopeLayout layout_;
  std::vector<float> cosine_;  // [pairs]
  std::vector<float> sine_;
};

}  // namespace kvartet
