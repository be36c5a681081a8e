// T9 of compression.md 11 (R11, deferred): a prompt in 1, 2 or 7 chunks leaves identical caches of every method.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "model/forward.h"
#include "model/model_facts.h"
#include "model/test_models.h"

namespace kvartet {
namespace {

constexpr int kTokens = 200;

const std::vector<std::string>& caches_of_all_kinds() {
  static const std::vector<std::string> specs = {"full",
                                                 "q8_0",
                                                 "q4_0:center=mean",
                                                 "fp8:scale=calibrated",
                                                 "kivi:bits=2,residual=32",
                                                 "turboquant:bits=3",
                                                 "snapkv:budget=48",
                                                 "snapkv:budget=48,pool=avg,kernel=5,window=16+kivi:residual=32",
                                                 "pyramidkv:budget=48",
                                                 "adakv:budget=48",
                                                 "h2o:budget=48",
                                                 "tova:budget=48+q8_0",
                                                 "cam:target=48,base=h2o",
                                                 "cam:target=48,base=snapkv,window=16",
                                                 "streamingllm:window=44",
                                                 "streamingllm:window=44,rope=rerotate"};
  return specs;
}

struct Filled {
  std::vector<SequenceCache> caches;
  std::vector<float> hidden;
};

Filled fill(Transformer& transformer, int chunk) {
  Filled filled;
  for (const std::string& spec : caches_of_all_kinds()) {
    Result<SequenceCache> cache = SequenceCache::create(test::spec_of(spec), transformer.shape(), Arena::create());
    EXPECT_TRUE(cache.ok()) << spec << ": " << cache.status().message();
    filled.caches.push_back(std::move(cache).value());
  }
  std::vector<SequenceCache*> pointers;
  for (SequenceCache& cache : filled.caches) pointers.push_back(&cache);
  Rng rng(1);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back(static_cast<std::int32_t>(rng.below(256)));
  Result<Prefill> prefill = Prefill::start(transformer, tokens, pointers, {.chunk = chunk});
  EXPECT_TRUE(prefill.ok()) << prefill.status().message();
  while (!prefill->done()) test::expect_ok(prefill->step());
  const MatView<const float> hidden = prefill->hidden();
  filled.hidden.assign(hidden.row(0), hidden.row(0) + hidden.cols);
  return filled;
}

// What a plan reads in the metadata is what the model will do.
TEST(PrefillTest, TheFilesFactsTellThePrecisionOfAttention) {
  for (const TinyWeights weights :
       {TinyWeights::kF32, TinyWeights::kF16, TinyWeights::kBf16, TinyWeights::kQ8_0, TinyWeights::kQ4_1})
    for (const char* architecture : {"llama", "qwen3moe"}) {
      const std::string path = tiny_model_file({.architecture = architecture, .weights = weights});
      const bool native = Transformer::load(path, {.threads = 1}).value()->attention_precision() == Precision::kNative;
      EXPECT_EQ(read_model_metadata(path).value().native_attention, native) << architecture << " " << static_cast<int>(weights);
    }
}

TEST(PrefillTest, T9ChunksLeaveIdenticalCaches) {
  for (const TinyWeights weights : {TinyWeights::kF32, TinyWeights::kQ4_1}) {
    const std::string path =
        tiny_model_file({.layers = 3, .hidden = 192, .heads = 6, .kv_heads = 2, .head_dim = 32, .weights = weights});
    const std::unique_ptr<Transformer> transformer = Transformer::load(path, {.threads = 1}).value();
    const Filled whole = fill(*transformer, kTokens);
    for (const int chunk : {100, 29}) {  // 2 chunks, 7
      const Filled cut = fill(*transformer, chunk);
      EXPECT_EQ(cut.hidden, whole.hidden) << chunk;
      for (std::size_t i = 0; i < whole.caches.size(); ++i) {
        SCOPED_TRACE(caches_of_all_kinds()[i] + " in chunks of " + std::to_string(chunk));
        const std::vector<StateBuffer> a = cut.caches[i].state();
        const std::vector<StateBuffer> b = whole.caches[i].state();
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t n = 0; n < a.size(); ++n) {
          EXPECT_EQ(a[n].name, b[n].name);
          ASSERT_EQ(a[n].bytes, b[n].bytes);
          EXPECT_EQ(std::memcmp(a[n].data, b[n].data, a[n].bytes.allocated), 0) << a[n].name;  // buffers begin as zeros
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
