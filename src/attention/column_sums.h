// How much softmax weight every key received, per query head: what H2O, TOVA and CaM rank rows by (compression.md 5, 6).
//
// Sums are kept in whole multiples of 2^-24, the spacing of floats below 1: whole numbers add up to the same bits in any
// order, so neither threads nor chunks show, and no key loses small weights to a large sum. A single weight is rounded by at
// most 2^-25.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvartet {

class ColumnSums {
 public:
  static constexpr float kUnits = 16777216.0F;  // of a weight of 1

  // Zeros for `heads` query heads and `columns` keys.
  void start(int heads, int columns);

  int heads() const { return heads_; }
  int columns() const { return columns_; }

  // Adds units to the columns from `first` on. Never two threads to one head at a time: whole cache lines under a lock cost a
  // fraction of one atomic addition per column.
  void add(int head, int first, std::span<const std::uint32_t> units);

  std::vector<float> read() const;  // [heads, columns]

  // The first `columns` of every head.
  ColumnSums first(int columns) const;
  // Adds those of a part: as many heads, to the first columns.
  void add(const ColumnSums& part);

  std::size_t bytes() const { return units_.size() * sizeof(std::uint64_t); }
  static std::size_t bytes_of(int heads, int columns) {
    return static_cast<std::size_t>(heads) * static_cast<std::size_t>(columns) * sizeof(std::uint64_t);
  }

 private:
  int heads_ = 0;
  int columns_ = 0;
  std::vector<std::uint64_t> units_;
};

}  // namespace kvartet
