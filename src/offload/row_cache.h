// Which rows of one KV head stay near between steps, and in which slot: bookkeeping only, the bytes are RowStore's.
//
// Plain LRU with as many slots as a selection has rows evicts, within one step, rows that the same step still needs. So rows
// of the selection being fetched are never evicted: what finds no slot is fetched and not kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvartet {

class RowCache {
 public:
  static constexpr std::int32_t kNone = -1;

  // A selection begins: rows ascending. slots[i]: where rows[i] lies, or kNone. Found rows count as used by it.
  void look_up(std::span<const std::int32_t> rows, std::vector<std::int32_t>* slots);

  // Rows (ascending) that were not found are near now. slots[i]: the slot to keep rows[i] in, or kNone: present already, or
  // all `capacity` slots hold rows of the current selection. Evicts the longest unused first, ties to the lower row.
  void admit(std::span<const std::int32_t> rows, int capacity, std::vector<std::int32_t>* slots);

  // Forgets the rows that were admitted into these slots (their bytes did not arrive).
  void forget(std::span<const std::int32_t> slots);

  int rows() const { return static_cast<int>(entries_.size()); }
  int slots() const { return slots_; }  // the highest number of slots ever in use

 private:
  struct Entry {
    std::int32_t row;
    std::int32_t slot;
    std::uint64_t last_use;
  };
  void evict(std::size_t count);

  std::vector<Entry> entries_;  // ascending by row
  std::vector<std::int32_t> free_slots_;
  int slots_ = 0;
  std::uint64_t now_ = 0;  // number of the current selection
};

}  // namespace kvartet
