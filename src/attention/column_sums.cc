#include "attention/column_sums.h"

#include <algorithm>

#include "core/check.h"

namespace kvartet {

void ColumnSums::start(int heads, int columns) {
  heads_ = heads;
  columns_ = columns;
  units_.assign(static_cast<std::size_t>(heads) * static_cast<std::size_t>(columns), 0);
}

void ColumnSums::add(int head, int first, std::span<const std::uint32_t> units) {
  KV_DCHECK(head < heads_ && first + static_cast<int>(units.size()) <= columns_);
  std::uint64_t* const to =
      units_.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(first);
  for (std::size_t i = 0; i < units.size(); ++i) to[i] += units[i];
}

ColumnSums ColumnSums::first(int columns) const {
  KV_CHECK(columns <= columns_);
  ColumnSums part;
  part.start(heads_, columns);
  for (int head = 0; head < heads_; ++head) {
    const auto* const from = units_.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(columns_);
    std::copy_n(from, columns, part.units_.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(columns));
  }
  return part;
}

void ColumnSums::add(const ColumnSums& part) {
  KV_CHECK(part.heads_ == heads_ && part.columns_ <= columns_);
  for (int head = 0; head < heads_; ++head) {
    const auto* const from = part.units_.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(part.columns_);
    auto* const to = units_.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(columns_);
    for (int i = 0; i < part.columns_; ++i) to[i] += from[i];
  }
}

std::vector<float> ColumnSums::read() const {
  std::vector<float> sums(units_.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(static_cast<double>(units_[i]) / kUnits);
  return sums;
}

}  // namespace kvartet
