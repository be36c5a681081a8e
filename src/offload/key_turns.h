// Cosines and sines of many positions, as kernels turn a whole head with them.
#pragma once

#include <cstddef>
#include <vector>

#include "core/rope_table.h"

namespace kvartet {

// Of positions [0, positions).
class KeyTurns {
 public:
  static constexpr int kTogether = 16;  // pairs that kernels turn at a time

  KeyTurns(const RopeShape& shape, int positions);
  int positions() const { return positions_; }
  int dims() const { return dims_; }
  RopeLayout layout() const { return layout_; }
  int padded_pairs() const { return padded_; }  // whole multiples of kTogether: those too many do not turn
  void turn(float* row, int position) const;    // one head's row, in place
  // [2][padded_pairs]: cosines, then sines.
  const float* of(int position) const {
    return turns_.data() + static_cast<std::size_t>(position) * 2 * static_cast<std::size_t>(padded_);
  }

 private:
  int dims_;
  RopeLayout layout_;
  int positions_;
  int padded_;
  std::vector<float> turns_;
};

}  // namespace kvartet
