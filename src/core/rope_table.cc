#include "core/rope_table.h"

#include <cmath>

#include "core/check.h"

namespace kvartet {

RopeTable::RopeTable(const RopeShape& shape, int positions)
    : pairs_(shape.dims / 2), layout_(shape.layout), positions_(positions) {
  KV_CHECK(shape.dims > 0 && positions >= 0);
  KV_CHECK(shape.factors.empty() || static_cast<int>(shape.factors.size()) == pairs_);
  const float step = std::pow(static_cast<float>(shape.base), -2.0F / static_cast<float>(shape.dims));
  cosine_.reserve(static_cast<std::size_t>(positions) * static_cast<std::size_t>(pairs_));
  sine_.reserve(cosine_.capacity());
  for (int position = 0; position < positions; ++position) {
    auto theta = static_cast<float>(position);
    for (int i = 0; i < pairs_; ++i) {
      const float factor = shape.factors.empty() ? 1.0F : shape.factors[static_cast<std::size_t>(i)];
      const float angle = static_cast<float>(shape.scale) * (theta / factor);
      cosine_.push_back(std::cos(angle));
      sine_.push_back(std::sin(angle));
      theta *= step;
    }
  }
}

void RopeTable::rotate(float* row, int position) const {
  KV_DCHECK(position >= 0 && position < positions_);
  const std::size_t at = static_cast<std::size_t>(position) * static_cast<std::size_t>(pairs_);
  const bool halves = layout_ == RopeLayout::kHalves;
  for (int i = 0; i < pairs_; ++i) {
    float& a = row[halves ? i : 2 * i];
    float& b = row[halves ? i + pairs_ : 2 * i + 1];
    const float cosine = cosine_[at + static_cast<std::size_t>(i)];
    const float sine = sine_[at + static_cast<std::size_t>(i)];
    const float turned = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = turned;
  }
}

}  // namespace kvartet
