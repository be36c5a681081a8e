// Layers of random numbers, and files of them to spoil.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/memory_file_system.h"
#include "core/rng.h"
#include "engine/prefill_file.h"

namespace kvartet {

// What write_layer takes, with the numbers it points to.
struct OwnedLayer {
  std::vector<float> key, key_pre, value, queries, sums;
  LayerShape shape;

  OwnedLayer(const LayerShape& s, int tokens, int kept_queries, std::uint64_t seed) : shape(s) {
    Rng rng(seed);
    const auto fill = [&](std::vector<float>& out, int count) {
      out.resize(static_cast<std::size_t>(count));
      for (float& x : out) x = static_cast<float>(rng.normal());
    };
    for (std::vector<float>* rows : {&key, &key_pre, &value}) fill(*rows, tokens * s.kv_heads * s.head_dim);
    if (s.window == 0) fill(queries, kept_queries * s.heads * s.head_dim);
    if (s.window == 0) fill(sums, tokens * s.heads);
  }
  static HeadRows<const float> rows(const std::vector<float>& floats, int heads, int head_dim) {
    const std::size_t width = static_cast<std::size_t>(heads) * static_cast<std::size_t>(head_dim);
    return {floats.data(), floats.size() / width, static_cast<std::size_t>(heads), static_cast<std::size_t>(head_dim), width};
  }
  ExactLayer view() const {
    return {.key = rows(key, shape.kv_heads, shape.head_dim),
            .key_pre = rows(key_pre, shape.kv_heads, shape.head_dim),
            .value = rows(value, shape.kv_heads, shape.head_dim),
            .last_queries = rows(queries, shape.heads, shape.head_dim),
            .column_sums = sums};
  }
};

inline std::vector<float> floats_in(HeadRows<const float> rows) {
  return {rows.data, rows.data + rows.tokens * rows.heads * rows.head_dim};
}

inline void overwrite(FileSystem& files, const std::string& path, const std::string& bytes) {
  auto file = files.create(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE((*file)->append(bytes).ok());
  ASSERT_TRUE((*file)->sync().ok());
  ASSERT_TRUE((*file)->close().ok());
}

}  // namespace kvartet
