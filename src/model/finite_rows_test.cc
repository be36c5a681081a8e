#include "model/finite_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "model/forward.h"
#include "model/gguf_file.h"
#include "model/test_models.h"

namespace kvartet {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(FiniteRows, NamesTheFirstPosition) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const std::size_t place : {0U, 6U, 7U, 20U}) {
      std::vector<float> rows(21, std::numeric_limits<float>::max());
      EXPECT_TRUE(check_queries(2, {rows.data(), 3, 7}, std::vector<std::int32_t>{40, 41, 42}).ok());
      rows[place] = bad;
      rows[20] = bad;
      EXPECT_FALSE(all_finite({rows.data(), 3, 7}));
      const Status status = check_queries(2, {rows.data(), 3, 7}, std::vector<std::int32_t>{40, 41, 42});
      EXPECT_EQ(status.code(), Code::kBadInput);
      EXPECT_TRUE(status.message().starts_with("layer 2: the queries of position " + std::to_string(40 + place / 7) + " "))
          << status.message();
    }
  }
}

// A model with one weight of layer 1's queries in place of which there is `value`.
std::string spoilt_model(const TinyModelOptions& options, float value) {
  const std::string path = tiny_model_file(options);
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const auto file = GgufFile::open(path).value();
  const ggml_tensor* tensor = file->tensor("blk.1.attn_q.weight");
  std::memcpy(bytes.data() + file->tensor_offset(*tensor), &value, sizeof(value));
  const std::string spoilt = test_file("spoilt_queries.gguf");
  std::ofstream(spoilt, std::ios::binary) << bytes;
  return spoilt;
}

// Without the check the heads of such queries see nothing, and the logits are finite.
TEST(FiniteRows, QueriesThatAreNotFiniteEndPrefillAndDecode) {
  const TinyModelOptions options = {.layers = 3, .head_dim = 32};
  const auto sound = Transformer::load(tiny_model_file(options), {.threads = 1}).value();
  for (const float value : {kNan, kInfinity}) {
    const auto spoilt = Transformer::load(spoilt_model(options, value), {.threads = 1}).value();
    for (const char* spec : {"full", "q8_0", "snapkv:budget=16,window=8"}) {
      for (const int tokens : {5, 40}) {  // few rows are multiplied with the weights as they are stored
        SequenceCache cache = SequenceCache::create(parse_spec(spec).value(), sound->shape(), Arena::create()).value();
        SequenceCache* caches[] = {&cache};
        std::vector<std::int32_t> prompt(static_cast<std::size_t>(tokens));
        std::iota(prompt.begin(), prompt.end(), 7);
        const auto fill = [&](Transformer& model) {
          Prefill prefill = Prefill::start(model, prompt, caches, {}).value();
          Status status;
          while (status.ok() && !prefill.done()) status = prefill.step();
          return status;
        };
        const Status refused = fill(*spoilt);
        EXPECT_EQ(refused.code(), Code::kBadInput) << spec;
        EXPECT_EQ(refused.message().find("layer 1: the queries of position "), 0U) << refused.message();

        cache = SequenceCache::create(parse_spec(spec).value(), sound->shape(), Arena::create()).value();
        ASSERT_TRUE(fill(*sound).ok());
        std::vector<float> logits(static_cast<std::size_t>(sound->shape().vocab));
        const DecodeItem item{.token = 9, .cache = &cache, .logits = logits};
        const Status step = DecodeStep(*spoilt, 1).run({&item, 1});
        EXPECT_EQ(step.code(), Code::kBadInput) << spec;
        EXPECT_EQ(step.message().find("layer 1: the queries of position " + std::to_string(tokens)), 0U) << step.message();
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
