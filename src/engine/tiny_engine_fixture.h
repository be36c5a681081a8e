// An engine on a tiny random model, and what its tests ask of it again and again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {

inline const std::string& tiny_path() {
  static const std::string path = [] {
    const std::string file = test_files.add("engine-tiny");
    const Status status = write_tiny_model(file, {.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .context = 256});
    EXPECT_TRUE(status.ok()) << status.message();
    return file;
  }();
  return path;
}

inline std::unique_ptr<Engine> open_tiny(EngineOptions options = {}) {
  options.model_path = tiny_path();
  Result<std::unique_ptr<Engine>> engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

class EngineTest : public ::testing::Test {
 protected:
  Sequence start(int tokens, const std::string& spec = "f32", std::uint64_t seed = 1) {
    return start(random_tokens(tokens, seed), spec);
  }
  Sequence start(const std::vector<Token>& prompt, const std::string& spec = "f32") {
    Result<std::vector<Sequence>> sequences = engine_->prefill(prompt, specs_of({spec}));
    EXPECT_TRUE(sequences.ok()) << sequences.status().message();
    return std::move((*sequences)[0]);
  }
  std::vector<Completion> generate(const std::vector<Sequence*>& sequences, const GenerateOptions& options,
                                   const Engine::OnText& on_text = {}) {
    Result<std::vector<Completion>> done = engine_->generate(sequences, options, on_text);
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() ? std::move(done).value() : std::vector<Completion>(sequences.size());
  }
  Completion generate(Sequence& sequence, const GenerateOptions& options) { return generate({&sequence}, options)[0]; }

  std::unique_ptr<Engine> engine_ = open_tiny();
};

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - b[i]));
  return most;
}

inline Token argmax(const std::vector<float>& logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace kvartet
