#include "offload/row_cache.h"

#include <algorithm>
#include <utility>

namespace kvartet {

void RowCache::look_up(std::span<const std::int32_t> rows, std::vector<std::int32_t>* slots) {
  ++now_;
  slots->assign(rows.size(), kNone);
  auto entry = entries_.begin();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    while (entry != entries_.end() && entry->row < rows[i]) ++entry;
    if (entry == entries_.end()) return;
    if (entry->row != rows[i]) continue;
    entry->last_use = now_;
    (*slots)[i] = entry->slot;
  }
}

// Frees the slots of the `count` entries that were used longest ago.
void RowCache::evict(std::size_t count) {
  if (count == 0) return;
  std::vector<std::pair<std::uint64_t, std::int32_t>> age;
  for (const Entry& entry : entries_) {
    if (entry.last_use != now_) age.emplace_back(entry.last_use, entry.row);
  }
  const auto border = age.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(age.begin(), border, age.end());
  const auto youngest = *border;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.last_use == now_ || std::pair(entry.last_use, entry.row) > youngest) return false;
    free_slots_.push_back(entry.slot);
    return true;
  });
}

void RowCache::admit(std::span<const std::int32_t> rows, int capacity, std::vector<std::int32_t>* slots) {
  slots->assign(rows.size(), kNone);
  std::vector<std::size_t> fresh;  // indexes into rows
  auto entry = entries_.begin();
  std::size_t evictable = 0;
  for (const Entry& e : entries_) evictable += e.last_use != now_ ? 1 : 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    while (entry != entries_.end() && entry->row < rows[i]) ++entry;
    if (entry == entries_.end() || entry->row != rows[i]) fresh.push_back(i);
  }
  const std::size_t unused = free_slots_.size() + static_cast<std::size_t>(std::max(0, capacity - slots_));
  fresh.resize(std::min(fresh.size(), unused + evictable));
  if (fresh.size() > unused) evict(fresh.size() - unused);

  const auto old_count = static_cast<std::ptrdiff_t>(entries_.size());
  for (const std::size_t i : fresh) {
    std::int32_t slot = slots_;
    if (free_slots_.empty()) {
      ++slots_;
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
    }
    (*slots)[i] = slot;
    entries_.push_back({rows[i], slot, now_});
  }
  std::inplace_merge(entries_.begin(), entries_.begin() + old_count, entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.row < b.row; });
}

void RowCache::forget(std::span<const std::int32_t> slots) {
  std::erase_if(entries_, [&](const Entry& entry) {
    if (std::find(slots.begin(), slots.end(), entry.slot) == slots.end()) return false;
    free_slots_.push_back(entry.slot);
    return true;
  });
}

}  // namespace kvartet
