#include "core/rope_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

Result<RopeTable> RopeTable::create(const RopeShape& shape, int positions, Arena& arena) {
  KV_CHECK(positions >= 0);
  check_shape(shape);
  RopeTable table;
  table.shape_ = shape;
  return table.extended(positions, arena);
}

Result<RopeTable> RopeTable::extended(int positions, Arena& arena) const {
  RopeTable longer = *this;
  const auto pairs = static_cast<std::size_t>(dims() / 2);
  const auto padded = static_cast<std::size_t>(padded_pairs());
  std::vector<float> cosine;
  std::vector<float> sine;
  while (longer.positions() < positions) {
    KV_ASSIGN(Buffer chunk, arena.allocate(bytes(shape_, kPositions)));
    auto* turn = reinterpret_cast<float*>(chunk.data());
    const int first = longer.positions();
    for (int position = first; position < first + kPositions; ++position, turn += 2 * padded) {
      cosine.clear();
      sine.clear();
      append_angles(shape_, position, &cosine, &sine);
      std::copy_n(cosine.data(), pairs, turn);
      std::fill(turn + pairs, turn + padded, 1.0F);
      std::copy_n(sine.data(), pairs, turn + padded);
    }
    longer.starts_.push_back(reinterpret_cast<const float*>(chunk.data()));
    longer.chunks_.push_back(std::make_shared<const Buffer>(std::move(chunk)));
  }
  return longer;
}

std::size_t RopeTable::bytes(const RopeShape& shape, int positions) {
  const auto chunks = static_cast<std::size_t>((positions + kPositions - 1) / kPositions);
  return chunks * kPositions * 2 * static_cast<std::size_t>(padded_pairs(shape)) * sizeof(float);
}

std::vector<const Buffer*> RopeTable::buffers() const {
  std::vector<const Buffer*> all;
  for (const auto& chunk : chunks_) all.push_back(chunk.get());
  return all;
}

void RopeTable::rotate(float* row, int position) const {
  KV_DCHECK(position >= 0 && position < positions());
  const float* const cosine = of(position);
  turn(row, layout(), dims() / 2, cosine, cosine + padded_pairs());
}

RopeTurn::RopeTurn(const RopeShape& shape, int position) : layout_(shape.layout) {
  check_shape(shape);
  append_angles(shape, position, &cosine_, &sine_);
}

void RopeTurn::apply(float* row) const { turn(row, layout_, static_cast<int>(cosine_.size()), cosine_.data(), sine_.data()); }

}  // namespace kvartet
