// What the tests of the engine share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cache/spec.h"
#include "core/rng.h"
#include "model/vocabulary.h"

namespace kvartet {

inline std::vector<CacheSpec> specs_of(const std::vector<std::string>& texts) {
  std::vector<CacheSpec> specs;
  for (const std::string& text : texts) {
    Result<CacheSpec> spec = parse_spec(text);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    if (spec.ok()) specs.push_back(std::move(spec).value());
  }
  return specs;
}

// Bytes, as the tiny models' vocabulary has them.
inline std::vector<Token> random_tokens(int n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<Token> tokens(static_cast<std::size_t>(n));
  for (Token& token : tokens) token = static_cast<Token>(rng.below(256));
  return tokens;
}

}  // namespace kvartet
