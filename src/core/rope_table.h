// Rotary position embedding as data: what a cache needs to rotate a key after it was stored unrotated (offloading.md 1.6).
#pragma once

#include <cstddef>
#include <vector>

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

// Sines and cosines of positions [0, positions), angles computed in f32 as the model's own graph does.
class RopeTable {
 public:
  RopeTable(const RopeShape& shape, int positions);
  int positions() const { return positions_; }
  void rotate(float* row, int position) const;  // one head's row, in place
  void prefetch(int position) const;            // rotate() will ask for it soon: positions far apart lie far apart in memory

 private:
  int pairs_;
  RopeLayout layout_;
  int positions_;
  std::vector<float> turns_;  // [positions][2][pairs]: cosines, then sines
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
