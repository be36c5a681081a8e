// What a decode step tells caches and observers beside a layer's own queries.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "model/forward.h"
#include "model/test_models.h"

namespace kvartet {
namespace {

// The queries that `layer` makes of a hidden row at `position`.
std::vector<float> queries_of(Transformer& model, int layer, const std::vector<float>& x, std::int32_t position) {
  const LayerShape& s = model.shape().layers[static_cast<std::size_t>(layer)];
  std::vector<float> q(static_cast<std::size_t>(s.heads * s.head_dim));
  std::vector<float> k(static_cast<std::size_t>(s.kv_heads * s.head_dim));
  std::vector<float> v(k.size());
  LayerInputs out;
  out.q = {q.data(), 1, q.size()};
  out.k = {k.data(), 1, k.size()};
  out.v = {v.data(), 1, v.size()};
  const Status status = model.pre_attention(layer, Linear::kStored, {x.data(), 1, x.size()}, std::span(&position, 1), out);
  EXPECT_TRUE(status.ok()) << status.message();
  return q;
}

TEST(DecodeStep, GuessedQueriesAreTheLayersOwnOfTheInputOfTheLayerBefore) {
  const auto model = Transformer::load(tiny_model_file({.architecture = "qwen3", .layers = 3}), {.threads = 1}).value();
  SequenceCache cache = SequenceCache::create(parse_spec("full").value(), model->shape(), Arena::create()).value();
  SequenceCache* caches[] = {&cache};
  std::vector<std::int32_t> prompt(40);
  std::iota(prompt.begin(), prompt.end(), 7);
  Prefill prefill = Prefill::start(*model, prompt, caches, {}).value();
  while (!prefill.done()) ASSERT_TRUE(prefill.step().ok());

  std::map<int, std::vector<float>> guessed;
  const LayerObserver observer = [&](const LayerQuestion& question) -> Status {
    std::vector<float>& all = guessed[question.layer];
    for (std::size_t h = 0; h < question.guessed_q.rows; ++h)
      all.insert(all.end(), question.guessed_q.row(h), question.guessed_q.row(h) + question.guessed_q.cols);
    return {};
  };
  std::vector<float> logits(static_cast<std::size_t>(model->shape().vocab));
  const DecodeItem item{99, &cache, logits, &observer};
  DecodeStep step(*model, 1);
  ASSERT_TRUE(step.run({&item, 1}).ok());

  std::vector<float> embedded(static_cast<std::size_t>(model->shape().hidden));
  const std::int32_t token = 99;
  ASSERT_TRUE(model->embed(std::span(&token, 1), {embedded.data(), 1, embedded.size()}).ok());
  EXPECT_TRUE(guessed.at(0).empty());
  EXPECT_EQ(guessed.at(1), queries_of(*model, 1, embedded, 40));
  EXPECT_EQ(guessed.at(2).size(), guessed.at(1).size());
  EXPECT_NE(guessed.at(2), queries_of(*model, 2, embedded, 40));  // of what entered layer 1, which layer 0 has changed
}

// A cache that wants guesses gets them, and one beside it in the batch answers as if nothing had been guessed.
TEST(DecodeStep, GuessesChangeNothingForOthers) {
  const auto model = Transformer::load(tiny_model_file({.layers = 3, .head_dim = 32}), {.threads = 1}).value();
  std::vector<std::int32_t> prompt(200);
  std::iota(prompt.begin(), prompt.end(), 3);
  const auto run = [&](const std::vector<std::string>& specs) {
    std::vector<SequenceCache> caches;
    for (const std::string& spec : specs)
      caches.push_back(SequenceCache::create(parse_spec(spec).value(), model->shape(), Arena::create()).value());
    std::vector<SequenceCache*> pointers;
    for (SequenceCache& cache : caches) pointers.push_back(&cache);
    Prefill prefill = Prefill::start(*model, prompt, pointers, {}).value();
    while (!prefill.done()) EXPECT_TRUE(prefill.step().ok());
    std::vector<std::vector<float>> logits(specs.size(), std::vector<float>(static_cast<std::size_t>(model->shape().vocab)));
    DecodeStep step(*model, 1);
    for (int i = 0; i < 3; ++i) {
      std::vector<DecodeItem> items;
      for (std::size_t s = 0; s < specs.size(); ++s) items.push_back({50 + i, &caches[s], logits[s]});
      const Status status = step.run(items);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(caches.back().selects(), specs.back() != "full");
    return logits;
  };
  const auto without = run({"full", "full"});
  const auto with = run({"full", "infinigen:budget=20,dense=1"});
  EXPECT_EQ(with[0], without[0]);
  EXPECT_NE(with[1], without[1]);
}

}  // namespace
}  // namespace kvartet
