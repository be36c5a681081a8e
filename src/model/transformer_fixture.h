// What the tests of the transformer share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/matrix.h"
#include "core/rng.h"
#include "model/transformer.h"

namespace kvartet {

inline constexpr int kTestThreads = 1;  // bits do not depend on it, and spinning threads on a busy machine take minutes

struct Rows {
  Rows(std::size_t rows, std::size_t cols) : values(rows * cols), view_cols(cols) {}
  MatView<float> view() { return {values.data(), values.size() / view_cols, view_cols}; }
  std::vector<float> values;
  std::size_t view_cols;
};

inline void expect_ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

inline std::vector<std::int32_t> random_tokens(std::size_t count, int vocab) {
  Rng rng(7);
  std::vector<std::int32_t> tokens(count);
  for (auto& t : tokens) t = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab)));
  return tokens;
}

inline std::unique_ptr<Transformer> load(const std::string& path, const LoadOptions& options = {.threads = kTestThreads}) {
  auto model = Transformer::load(path, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(*model) : nullptr;
}

inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return HUGE_VALF;
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace kvartet
