#include "core/rope_table.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/check.h"

namespace kvartet {
namespace {

// From one pair's frequency to the next one's, as the model's graph has it.
float frequency_step(const RopeShape& shape) {
  return std::pow(static_cast<float>(shape.base), -2.0F / static_cast<float>(shape.dims));
}

// Appends the cosines and sines of one position; angles in f32 and by repeated multiplication, as the model's graph has them.
void append_angles(const RopeShape& shape, int position, std::vector<float>* cosine, std::vector<float>* sine) {
  const int pairs = shape.dims / 2;
  const float step = frequency_step(shape);
  auto theta = static_cast<float>(position);
  for (int i = 0; i < pairs; ++i) {
    const float factor = shape.factors.empty() ? 1.0F : shape.factors[static_cast<std::size_t>(i)];
    const float angle = static_cast<float>(shape.scale) * (theta / factor);
    cosine->push_back(std::cos(angle));
    sine->push_back(std::sin(angle));
    theta *= step;
  }
}

// [pairs], radians per position.
std::vector<double> frequencies(const RopeShape& shape) {
  std::vector<double> all;
  const double step = frequency_step(shape);
  double frequency = shape.scale;
  for (int i = 0; i < shape.dims / 2; ++i) {
    all.push_back(frequency / (shape.factors.empty() ? 1.0F : shape.factors[static_cast<std::size_t>(i)]));
    frequency *= step;
  }
  return all;
}

// Of positions first, first + step, ...: cosines, then sines; pairs without a frequency do not turn.
void fill_table(std::span<const double> frequencies, double first, double step, std::size_t padded, float* table) {
  for (int i = 0; i < RopeTable::kSpan; ++i, table += 2 * padded) {
    const double position = first + step * i;
    for (std::size_t pair = 0; pair < padded; ++pair) {
      const double angle = pair < frequencies.size() ? position * frequencies[pair] : 0;
      table[pair] = static_cast<float>(std::cos(angle));
      table[padded + pair] = static_cast<float>(std::sin(angle));
    }
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

// `count` of a row's `pairs` from pair `first` on.
void turn(float* row, RopeLayout layout, int pairs, int first, int count, const float* cosine, const float* sine) {
  if (layout == RopeLayout::kHalves) return turn_halves(row + first, row + pairs + first, count, cosine, sine);
  turn_neighbours(row + 2 * first, count, cosine, sine);
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
  const std::vector<double> of_pairs = frequencies(shape_);
  while (longer.tables_.empty() || longer.positions() < positions) {
    KV_ASSIGN(Buffer table, arena.allocate(table_bytes(shape_)));
    auto* const numbers = reinterpret_cast<float*>(table.data());
    const bool rests = longer.tables_.empty();
    const double first = rests ? 0 : longer.positions();
    fill_table(of_pairs, first, rests ? 1 : kSpan, static_cast<std::size_t>(padded_pairs()), numbers);
    longer.starts_.push_back(numbers);
    longer.tables_.push_back(std::make_shared<const Buffer>(std::move(table)));
  }
  return longer;
}

std::size_t RopeTable::table_bytes(const RopeShape& shape) {
  return kSpan * 2 * static_cast<std::size_t>(padded_pairs(shape)) * sizeof(float);
}

std::size_t RopeTable::bytes(const RopeShape& shape, int positions) {
  const std::size_t multiples = (static_cast<std::size_t>(positions) + kPositions - 1) / kPositions;
  return (1 + multiples) * table_bytes(shape);
}

std::vector<const Buffer*> RopeTable::buffers() const {
  std::vector<const Buffer*> all;
  for (const auto& table : tables_) all.push_back(table.get());
  return all;
}

void RopeTable::rotate(float* row, int position) const {
  KV_DCHECK(position >= 0 && position < positions());
  const Turn parts = of(position);
  const int pairs = dims() / 2;
  const int padded = padded_pairs();
  for (int first = 0; first < pairs; first += kTogether) {
    float cosine[kTogether];
    float sine[kTogether];
    for (int i = 0; i < kTogether; ++i) {
      const float a = parts.multiple[first + i];
      const float b = parts.multiple[padded + first + i];
      const float c = parts.rest[first + i];
      const float d = parts.rest[padded + first + i];
      cosine[i] = a * c - b * d;
      sine[i] = b * c + a * d;
    }
    turn(row, layout(), pairs, first, std::min(kTogether, pairs - first), cosine, sine);
  }
}

RopeTurn::RopeTurn(const RopeShape& shape, int position) : layout_(shape.layout) {
  check_shape(shape);
  append_angles(shape, position, &cosine_, &sine_);
}

void RopeTurn::apply(float* row) const {
  const int pairs = static_cast<int>(cosine_.size());
  turn(row, layout_, pairs, 0, pairs, cosine_.data(), sine_.data());
}

}  // namespace kvartet
