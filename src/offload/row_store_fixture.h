// For tests of stores: rows whose bytes follow from their address, so that a wrong row is always told from the right one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/row_store.h"

namespace kvartet {

inline std::byte expected_byte(int layer, int kv_head, int row, std::size_t i, int salt = 0) {
  const std::uint64_t x = (static_cast<std::uint64_t>(layer) * 131 + static_cast<std::uint64_t>(kv_head)) * 1000003 +
                          static_cast<std::uint64_t>(row) * 8191 + i * 37 + static_cast<std::uint64_t>(salt) * 77;
  return static_cast<std::byte>((x * 0x9E3779B97F4A7C15ull) >> 56);
}

// Appends rows [first, first + count) to every head of a layer.
inline Status append_rows(RowStore& store, int layer, int count, int salt = 0) {
  std::vector<std::vector<std::byte>> rows;
  const std::size_t row_bytes = store.row_bytes(layer);
  for (int h = 0; h < store.kv_heads(layer); ++h) {
    std::vector<std::byte> bytes;
    bytes.reserve(static_cast<std::size_t>(count) * row_bytes);
    for (int r = store.rows(layer, h); r < store.rows(layer, h) + count; ++r) {
      for (std::size_t i = 0; i < row_bytes; ++i) bytes.push_back(expected_byte(layer, h, r, i, salt));
    }
    rows.push_back(std::move(bytes));
  }
  const std::vector<std::span<const std::byte>> views(rows.begin(), rows.end());
  return store.append(layer, views);
}

// A selection of one layer with room for its rows.
struct Selection {
  std::vector<std::vector<std::int32_t>> rows;  // [kv_heads]
  std::vector<std::vector<std::byte>> out;
  std::vector<HeadFetch> fetches;
};

inline Selection select_rows(const RowStore& store, int layer, std::vector<std::vector<std::int32_t>> rows) {
  Selection s;
  s.rows = std::move(rows);
  s.out.resize(s.rows.size());
  for (std::size_t h = 0; h < s.rows.size(); ++h) {
    s.out[h].assign(s.rows[h].size() * store.row_bytes(layer), std::byte{0xEE});
    s.fetches.push_back({static_cast<int>(h), s.rows[h], s.out[h].data()});
  }
  return s;
}

// About `share` of the rows of every head, drawn by (seed, layer, head, row).
inline Selection random_selection(const RowStore& store, int layer, double share, std::uint64_t seed) {
  std::vector<std::vector<std::int32_t>> rows;
  for (int h = 0; h < store.kv_heads(layer); ++h) {
    rows.emplace_back();
    for (int r = 0; r < store.rows(layer, h); ++r) {
      std::uint64_t x =
          (seed * 0x9E3779B97F4A7C15ull) ^ (static_cast<std::uint64_t>(layer * 64 + h) << 32) ^ static_cast<std::uint64_t>(r);
      x ^= x >> 31;
      x *= 0xBF58476D1CE4E5B9ull;
      x ^= x >> 29;
      x *= 0x94D049BB133111EBull;
      if (static_cast<double>(x >> 40) < share * static_cast<double>(1 << 24)) rows.back().push_back(r);
    }
  }
  return select_rows(store, layer, std::move(rows));
}

// "" when every fetched byte is right; otherwise where it is not. `salt_of(row)`: what the row was appended with.
template <typename SaltOf>
std::string wrong_byte(const RowStore& store, int layer, const Selection& s, const SaltOf& salt_of) {
  const std::size_t row_bytes = store.row_bytes(layer);
  for (std::size_t h = 0; h < s.rows.size(); ++h) {
    for (std::size_t k = 0; k < s.rows[h].size(); ++k) {
      const int row = s.rows[h][k];
      for (std::size_t i = 0; i < row_bytes; ++i) {
        if (s.out[h][k * row_bytes + i] != expected_byte(layer, static_cast<int>(h), row, i, salt_of(row))) {
          return "layer " + std::to_string(layer) + " head " + std::to_string(h) + " row " + std::to_string(row) + " byte " +
                 std::to_string(i);
        }
      }
    }
  }
  return "";
}

inline std::string wrong_byte(const RowStore& store, int layer, const Selection& s) {
  return wrong_byte(store, layer, s, [](int) { return 0; });
}

}  // namespace kvartet
