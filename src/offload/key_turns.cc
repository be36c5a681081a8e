#include "offload/key_turns.h"

namespace kvartet {

KeyTurns::KeyTurns(const RopeShape& shape, int positions)
    : dims_(shape.dims),
      layout_(shape.layout),
      positions_(positions),
      padded_((shape.dims / 2 + kTogether - 1) / kTogether * kTogether) {
  const auto pairs = static_cast<std::size_t>(dims_ / 2);
  const auto padded = static_cast<std::size_t>(padded_);
  // Turned by an angle, (1, 0) becomes its cosine and its sine.
  RopeShape halves = shape;
  halves.layout = RopeLayout::kHalves;
  turns_.resize(static_cast<std::size_t>(positions) * 2 * padded);
  std::vector<float> turned(2 * pairs);
  for (int position = 0; position < positions; ++position) {
    for (std::size_t i = 0; i < pairs; ++i) {
      turned[i] = 1.0F;
      turned[pairs + i] = 0.0F;
    }
    RopeTurn(halves, position).apply(turned.data());
    float* const cosines = turns_.data() + static_cast<std::size_t>(position) * 2 * padded;
    for (std::size_t i = 0; i < padded; ++i) {
      cosines[i] = i < pairs ? turned[i] : 1.0F;
      cosines[padded + i] = i < pairs ? turned[pairs + i] : 0.0F;
    }
  }
}

void KeyTurns::turn(float* row, int position) const {
  const bool neighbours = layout_ == RopeLayout::kNeighbours;
  const float* const cosines = of(position);
  const float* const sines = cosines + padded_;
  const int pairs = dims_ / 2;
  for (int i = 0; i < pairs; ++i) {
    float& a = row[neighbours ? 2 * i : i];
    float& b = row[neighbours ? 2 * i + 1 : i + pairs];
    const float first = a * cosines[i] - b * sines[i];
    b = b * cosines[i] + a * sines[i];
    a = first;
  }
}

}  // namespace kvartet
