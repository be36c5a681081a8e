#include "model/key_bias.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/test_models.h"

namespace kvartet {
namespace {

TEST(KeyBias, NormsAreReadFromTheFile) {
  EXPECT_TRUE(key_bias_norms(tiny_model_file({})).value().empty());
  TinyModelOptions model;
  model.architecture = "qwen2";
  const std::vector<double> small = key_bias_norms(tiny_model_file(model)).value();
  ASSERT_EQ(small.size(), 2U);
  EXPECT_NEAR(small[0], 0.5 * std::sqrt(32.0), 1.5);  // 2 KV heads of 16 channels, deviation 0.5
  model.key_bias_norm = 500;
  const std::vector<double> large = key_bias_norms(tiny_model_file(model)).value();
  for (const double norm : large) EXPECT_NEAR(norm, 500, 5);
  EXPECT_FALSE(key_bias_norms("nowhere.gguf").ok());
}

}  // namespace
}  // namespace kvartet
