#include "core/rope_table.h"

#include <cmath>

#include "core/check.h"

namespace kvartet {
namespace {

// Appends the cosines and sines of one position; angles in f32 and by repeated multiplication, as the model's graph has them.
void append_angles(const RopeShape& shape, int position, std::vector<float>* cosine, std::vector<float>* sine) {
  const int pairs = shape.dims / 2;
  const float step = std::pow(static_cast<float>(shape.base), -2.0F / static_cast<float>(shape.dims));
  auto theta = static_cast<float>(position);
  for (int i = 0; i < pairs; ++i) {
    const float factor = shape.factors.empty() ? 1.0F : shape.factors[static_cast<std::size_t>(i)];
    const float angle = static_cast<float>(shape.scale) * (theta / factor);
    cosine->push_back(std::cos(angle));
    sine->push_back(std::sin(angle));
    theta *= step;
  }
}

void check_shape(const RopeShape& shape) {
  KV_CHECK(shape.dims > 0);
  KV_CHECK(shape.factors.empty() || static_cast<int>(shape.factors.size()) == shape.dims / 2);
}

// Written so that compilers turn several pairs at once.
void turn_halves(float* __restrict first, float* __restrict second, int pairs, const float* __restrict cosine,
                 const float* __restrict sine) {
  for (int i = 0; i < pairs; ++i) {
    const float a = first[i];
    const float b = second[i];
    first[i] = a * cosine[i] - b * sine[i];
    second[i] = b * cosine[i] + a * sine[i];
  }
}

void turn_neighbours(float* __restrict row, int pairs, const float* __restrict cosine, const float* __restrict sine) {
  for (int i = 0; i < pairs; ++i) {
    const float a = row[2 * i];
    const float b = row[2 * i + 1];
    row[2 * i] = a * cosine[i] - b * sine[i];
    row[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

void turn(float* row, RopeLayout layout, int pairs, const float* cosine, const float* sine) {
  if (layout == RopeLayout::kHalves) return turn_halves(row, row + pairs, pairs, cosine, sine);
  turn_neighbours(row, pairs, cosine, sine);
}

}  // namespace

RopeTable::RopeTable(const RopeShape& shape, int positions)
    : pairs_(shape.dims / 2), layout_(shape.layout), positions_(positions) {
  KV_CHECK(positions >= 0);
  check_shape(shape);
  turns_.reserve(static_cast<std::size_t>(positions) * 2 * static_cast<std::size_t>(pairs_));
  std::vector<float> cosine;
  std::vector<float> sine;
  for (int position = 0; position < positions; ++position) {
    cosine.clear();
    sine.clear();
    append_angles(shape, position, &cosine, &sine);
    turns_.insert(turns_.end(), cosine.begin(), cosine.end());
    turns_.insert(turns_.end(), sine.begin(), sine.end());
  }
}

void RopeTable::rotate(float* row, int position) const {
  KV_DCHECK(position >= 0 && position < positions_);
  const float* const cosine = turns_.data() + static_cast<std::size_t>(position) * 2 * static_cast<std::size_t>(pairs_);
  turn(row, layout_, pairs_, cosine, cosine + pairs_);
}

void RopeTable::prefetch(int position) const {
  KV_DCHECK(position >= 0 && position < positions_);
  constexpr std::size_t kLine = 64 / sizeof(float);
  const std::size_t numbers = 2 * static_cast<std::size_t>(pairs_);
  const float* const turn = turns_.data() + static_cast<std::size_t>(position) * numbers;
  for (std::size_t i = 0; i < numbers; i += kLine) __builtin_prefetch(turn + i);
}

RopeTurn::RopeTurn(const RopeShape& shape, int position) : layout_(shape.layout) {
  check_shape(shape);
  append_angles(shape, position, &cosine_, &sine_);
}

void RopeTurn::apply(float* row) const { turn(row, layout_, static_cast<int>(cosine_.size()), cosine_.data(), sine_.data()); }

}  // namespace kvartet
