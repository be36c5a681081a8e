#include <gtest/gtest.h>

#include <string>

#include "engine/tiny_engine_fixture.h"

namespace kvartet {
namespace {

using std::string;
using FillTest = EngineTest;

// A filled cache is as large as a real one, decodes, and gives the same bits for the same seed.
TEST_F(FillTest, DirectFillStandsForAPrompt) {
  for (const string& spec : {string("full"), string("kivi:bits=4"), string("streamingllm:window=60")}) {
    const CacheSpec parsed = specs_of({spec})[0];
    Result<Sequence> filled = engine_->fill(parsed, 200);
    ASSERT_TRUE(filled.ok()) << filled.status().message();
    const Sequence real = start(200, spec);
    EXPECT_EQ(filled->cache.bytes().live, real.cache.bytes().live) << spec;
    EXPECT_EQ(filled->cache.next_position(), 200);
    Result<Sequence> again = engine_->fill(parsed, 200);
    Sequence* both[] = {&*filled, &*again};
    const Token fed[] = {5, 5};
    ASSERT_TRUE(engine_->decode(both, fed).ok());
    EXPECT_EQ(filled->logits, again->logits);
  }
}

TEST_F(FillTest, DirectFillRefusesWhatItCannotMake) {
  EXPECT_EQ(engine_->fill(specs_of({"snapkv"})[0], 100).status().code(), Code::kUsage);
  EXPECT_EQ(engine_->fill(specs_of({"full"})[0], 0).status().code(), Code::kUsage);
  EXPECT_EQ(engine_->fill(specs_of({"full"})[0], 1 << 20).status().code(), Code::kExhausted);
}

}  // namespace
}  // namespace kvartet
