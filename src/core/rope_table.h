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

// Cosines and sines of positions [0, positions()). An angle is the sum of two, of the multiple of kSpan below the position and of
// the rest, and its cosine and sine are made of theirs: two small tables stay in a near cache, where one line per position and 16
// numbers would be read at random. Angles are position times the model's frequency, without the roundings to f32 that the model's
// graph makes on the way (up to position * 6e-8 each; docs/decisions/0024). Copies share the tables.
class RopeTable {
 public:
  static constexpr int kTogether = 16;  // pairs that kernels turn at a time
  static constexpr int kSpan = 256;
  static constexpr int kPositions = kSpan * kSpan;  // that one table of multiples reaches

  // Cosines, then sines [2][padded_pairs] of the position's two parts.
  struct Turn {
    const float* multiple;
    const float* rest;
  };

  // At least so many positions. kExhausted: the arena's cap or memory.
  static Result<RopeTable> create(const RopeShape& shape, int positions, Arena& arena);
  Result<RopeTable> extended(int positions, Arena& arena) const;
  static std::size_t bytes(const RopeShape& shape, int positions);  // what create() allocates

  int positions() const { return kPositions * (static_cast<int>(tables_.size()) - 1); }
  int dims() const { return shape_.dims; }
  RopeLayout layout() const { return shape_.layout; }
  int padded_pairs() const { return padded_pairs(shape_); }  // whole multiples of kTogether: those too many do not turn
  void rotate(float* row, int position) const;               // one head's row, in place
  Turn of(int position) const {
    const auto at = static_cast<std::size_t>(position);
    return {starts_[1 + at / kPositions] + at % kPositions / kSpan * stride(), starts_[0] + at % kSpan * stride()};
  }
  // of() will be asked for it soon: the rests of chosen positions lie apart.
  void prefetch(int position) const {
    constexpr std::size_t kLine = 64 / sizeof(float);
    const float* const rest = of(position).rest;
    for (std::size_t i = 0; i < stride(); i += kLine) __builtin_prefetch(rest + i, 0, 2);
  }
  std::vector<const Buffer*> buffers() const;

 private:
  static int padded_pairs(const RopeShape& shape) { return (shape.dims / 2 + kTogether - 1) / kTogether * kTogether; }
  static std::size_t table_bytes(const RopeShape& shape);
  std::size_t stride() const { return 2 * static_cast<std::size_t>(padded_pairs()); }
  RopeShape shape_;
  std::vector<std::shared_ptr<const Buffer>> tables_;  // [kSpan][2][padded_pairs]: of the rests, then of multiples
  std::vector<const float*> starts_;                   // of the tables
};

// The rotation by one position, for a few rows and positions that need no table; angles in f32 as the model's own graph has them.
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
