#include "cache/spec.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"

namespace kvartet {
namespace {

std::string canonical(const std::string& text) {
  const Result<CacheSpec> spec = parse_spec(text);
  return spec.ok() ? spec->canonical : "refused: " + spec.status().message();
}

// DESIGN 5: the canonical form keeps the preset's name and prints every key in the table's order.
TEST(Spec, CanonicalForms) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"full", "full"},
      {"f32", "f32"},
      {"q8_0", "q8_0"},
      {"kivi", "kivi:bits=4,group=32,residual=128"},
      {"kivi:bits=2", "kivi:bits=2,group=32,residual=128"},
      {"kivi:residual=64,bits=4/2", "kivi:bits=4/2,group=32,residual=64"},
      {"kivi:bits=2/2,group=64", "kivi:bits=2,group=64,residual=128"},
      {"kivi:group=32/128", "kivi:bits=4,group=32/128,residual=128"},
      {"kivi:bits=8,group=128,residual=256", "kivi:bits=8,group=128,residual=256"},
      {"q8_0/kivi:bits=2", "q8_0/kivi:bits=2,group=32,residual=128"},
      {"kivi/full", "kivi/full:bits=4,group=32,residual=128"},
      {"full/q8_0", "full/q8_0"},
      {"q8_0/q8_0", "q8_0"},
      {"kivi:bits=3", "kivi:bits=3,group=32,residual=128"},
      {"kivi:keep=0-1.28-29,center=mean", "kivi:bits=4,group=32,residual=128,center=mean,keep=0-1.28-29"},
      {"q4_0", "q4_0"},
      {"q4_0:rotate=none,keep=3", "q4_0:keep=3"},
      {"q8_0/q4_0:rotate=hadamard", "q8_0/q4_0:rotate=hadamard"},
      {"q5_0/q4_1:rotate=none/hadamard", "q5_0/q4_1:rotate=none/hadamard"},
      {"q4_0:center=none", "q4_0"},
      {"q3_0:rotate=hadamard", "q3_0:rotate=hadamard"},
      {"fp8", "fp8"},
      {"polar-angle", "polar-angle"},
      {"qjl", "qjl:sketch=256,residual=128"},
      {"qjl/q8_0:residual=0", "qjl/q8_0:sketch=256,residual=0"},
      {"fp8:scale=calibrated/1", "fp8:scale=calibrated/1"},
      {"turboquant", "turboquant:bits=4,variant=mse,rotation=hadamard,residual=0,seed=1"},
      {"turboquant:bits=4/2.5,seed=7", "turboquant:bits=4/2.5,variant=mse,rotation=hadamard,residual=0,seed=7"},
      {"turboquant:variant=prod,bits=3", "turboquant:bits=3,variant=prod,rotation=hadamard,residual=0,seed=1"},
      {"turboquant/q4_0:residual=64", "turboquant/q4_0:bits=4,variant=mse,rotation=hadamard,residual=64,seed=1"},
      {"kivi/turboquant:bits=2/3", "kivi/turboquant:bits=2/3,group=32,residual=128,variant=mse,rotation=hadamard,seed=1"},
      {"snapkv", "snapkv:budget=0.25,window=32,kernel=7,pool=max"},
      {"snapkv:pool=avg,kernel=5,budget=1024,window=64", "snapkv:budget=1024,window=64,kernel=5,pool=avg"},
      {"streamingllm", "streamingllm:sinks=4,window=512,rope=absolute"},
      {"streamingllm:window=60,sinks=0", "streamingllm:sinks=0,window=60,rope=absolute"},
      {"streamingllm:budget=0.5", "streamingllm:sinks=4,budget=0.5,rope=absolute"},
      {"streamingllm:rope=rerotate", "streamingllm:sinks=4,window=512,rope=rerotate"},
      {"streamingllm:budget=516,rope=rerotate+q8_0", "streamingllm:sinks=4,budget=516,rope=rerotate+q8_0"},
      {"streamingllm:budget=516,rope=absolute", "streamingllm:sinks=4,budget=516,rope=absolute"},
      {"snapkv:budget=0.25+kivi:bits=4/2", "snapkv:budget=0.25,window=32,kernel=7,pool=max+kivi:bits=4/2,group=32,residual=128"},
      {"snapkv+q8_0", "snapkv:budget=0.25,window=32,kernel=7,pool=max+q8_0"},
      {"snapkv+f32", "snapkv:budget=0.25,window=32,kernel=7,pool=max+f32"},
      {"streamingllm+q8_0", "streamingllm:sinks=4,window=512,rope=absolute+q8_0"},
      {"h2o", "h2o:budget=0.25,recent=0.5"},
      {"h2o:recent=0.1,budget=100+q8_0", "h2o:budget=100,recent=0.1+q8_0"},
      {"tova", "tova:budget=0.25"},
      {"tova:budget=64+q8_0/full", "tova:budget=64+q8_0/full"},
      {"pyramidkv", "pyramidkv:budget=0.25,window=32,kernel=7,pool=max,beta=20"},
      {"pyramidkv:beta=10,window=8,budget=1024+kivi:bits=2",
       "pyramidkv:budget=1024,window=8,kernel=7,pool=max,beta=10+kivi:bits=2,group=32,residual=128"},
      {"adakv", "adakv:budget=0.25,window=32,kernel=7,pool=max,alpha=0.2"},
      {"adakv:alpha=1,pool=avg+kivi", "adakv:budget=0.25,window=32,kernel=7,pool=avg,alpha=1+kivi:bits=4,group=32,residual=128"},
      {"cam", "cam:target=1024,interval=1,merge=32,base=streamingllm,seed=1"},
      {"cam:seed=9,base=h2o,merge=16,interval=128,target=512+q8_0/full",
       "cam:target=512,interval=128,merge=16,base=h2o,seed=9+q8_0/full"},
      {"cam+f32", "cam:target=1024,interval=1,merge=32,base=streamingllm,seed=1+f32"},
      // C19, R4, R12: a budget below the default window shortens the window instead of breaking the bound.
      {"snapkv:budget=20", "snapkv:budget=20,window=19,kernel=7,pool=max"},
      {"snapkv:budget=1", "snapkv:budget=1,window=1,kernel=7,pool=max"},
      {"streamingllm:budget=1", "streamingllm:sinks=0,budget=1,rope=absolute"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(canonical(text), expected) << text;
    const Result<CacheSpec> spec = parse_spec(text);
    ASSERT_TRUE(spec.ok()) << text;
    const Result<CacheSpec> again = parse_spec(spec->canonical);
    ASSERT_TRUE(again.ok()) << spec->canonical;
    EXPECT_EQ(*again, *spec) << text;
  }
}

TEST(Spec, MeaningOfPairs) {
  const CacheSpec spec = *parse_spec("snapkv:budget=100+kivi:bits=4/2,group=32/64,residual=64");
  EXPECT_EQ(spec.key, (FormatRequest{"kivi", 4, 32}));
  EXPECT_EQ(spec.value, (FormatRequest{"kivi", 2, 64}));
  EXPECT_EQ(spec.residual, 64);
  EXPECT_EQ(spec.evict, Evict::kSnap);
  EXPECT_EQ(spec.budget.rows(5000, 33), 100);
  const CacheSpec mixed = *parse_spec("full/kivi:bits=2");
  EXPECT_EQ(mixed.key, (FormatRequest{"f16", 0, 0}));
  EXPECT_EQ(mixed.value, (FormatRequest{"kivi", 2, 32}));
}

TEST(Spec, MeaningOfTheQuantizersKeys) {
  const CacheSpec turbo = *parse_spec("turboquant:bits=3.25/4,variant=prod,rotation=dense,residual=64,seed=9");
  EXPECT_EQ(
      turbo.key,
      (FormatRequest{
          .name = "turboquant", .bits = 3, .quarters = 1, .rotation = Rotation::kDense, .residual_signs = true, .seed = 9}));
  EXPECT_EQ(turbo.value, (FormatRequest{.name = "turboquant", .bits = 4, .rotation = Rotation::kDense, .seed = 9}));
  EXPECT_EQ(turbo.residual, 64);
  const CacheSpec pair = *parse_spec("q8_0/q4_0:rotate=none/hadamard,center=mean,keep=0.5-6");
  EXPECT_EQ(pair.key, (FormatRequest{.name = "q8_0"}));
  EXPECT_EQ(pair.value, (FormatRequest{.name = "q4_0", .rotation = Rotation::kHadamard}));
  EXPECT_TRUE(pair.center_keys);
  EXPECT_EQ(pair.keep, (std::vector<LayerRange>{{0, 0}, {5, 6}}));
  EXPECT_EQ(pair.for_layer(6).key, FormatRequest());
  EXPECT_FALSE(pair.for_layer(0).center_keys);
  EXPECT_EQ(pair.for_layer(4), pair);
  EXPECT_TRUE(parse_spec("fp8:scale=1/calibrated")->value.calibrated);
}

// compression.md 4.3 and 4.4.
TEST(Spec, BudgetRows) {
  EXPECT_EQ(Budget{0.25}.rows(500, 33), 125);
  EXPECT_EQ(Budget{0.25}.rows(8000, 33), 2000);
  EXPECT_EQ(Budget{0.25}.rows(8001, 33), 2001);
  EXPECT_EQ(Budget{0.25}.rows(10, 33), 33);
  EXPECT_EQ(Budget{0.07}.rows(100, 1), 7);  // the product is 7.000000000000001
  EXPECT_EQ(Budget{1e-9}.rows(100000, 1), 1);
  EXPECT_EQ(Budget{2048}.rows(10, 33), 2048);
}

// Whatever the text, the answer is a refusal or a spec whose canonical form means the same.
TEST(Spec, RandomTextsRoundTripOrAreRefused) {
  const std::vector<std::string> words = {"full",
                                          "f32",
                                          "q8_0",
                                          "kivi",
                                          "snapkv",
                                          "streamingllm",
                                          "bits",
                                          "group",
                                          "residual",
                                          "budget",
                                          "window",
                                          "kernel",
                                          "pool",
                                          "avg",
                                          "sinks",
                                          "rope",
                                          "4",
                                          "2",
                                          "32",
                                          "64",
                                          "128",
                                          "0.25",
                                          "-1",
                                          "999999",
                                          "/",
                                          "+",
                                          ":",
                                          "=",
                                          ",",
                                          "absolute",
                                          "x",
                                          "",
                                          "bits=4",
                                          ":bits=",
                                          "=4,",
                                          "kernel=5",
                                          "q4_0",
                                          "turboquant",
                                          "keep=",
                                          "center=mean",
                                          "rotate=hadamard",
                                          "2.5",
                                          "."};
  Rng rng(3);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = rng.below(2) == 0 ? words[rng.below(6)] : "";
    for (std::uint64_t n = rng.below(7); n > 0; --n) text += words[rng.below(words.size())];
    const Result<CacheSpec> spec = parse_spec(text);
    if (!spec.ok()) {
      EXPECT_FALSE(spec.status().message().empty());
      continue;
    }
    ++accepted;
    const Result<CacheSpec> again = parse_spec(spec->canonical);
    ASSERT_TRUE(again.ok()) << text << " -> " << spec->canonical;
    EXPECT_EQ(*again, *spec) << text;
  }
  EXPECT_GT(accepted, 1000);
}

// The settings that a method's canonical text shows, and those that only show when they are on.
std::vector<std::string> settings_of(const std::string& method) {
  std::vector<std::string> names = {"rotate", "scale", "center", "keep", "meta", "rank", "budget", "window", "sinks", "local"};
  const std::string text = canonical(method);
  for (std::size_t at = text.find(':'); at != std::string::npos; at = text.find(',', at + 1)) {
    names.push_back(text.substr(at + 1, text.find('=', at) - at - 1));
  }
  return names;
}

// Of every method, with up to three settings changed to anything that some method knows.
TEST(Spec, AnyChangeOfSettingsRoundTripsOrIsRefused) {
  const std::vector<std::string> values = {"0",
                                           "1",
                                           "2",
                                           "3",
                                           "4",
                                           "5",
                                           "7",
                                           "8",
                                           "16",
                                           "32",
                                           "33",
                                           "48",
                                           "64",
                                           "128",
                                           "256",
                                           "1000",
                                           "0.5",
                                           "0.25",
                                           "0.001",
                                           "1e-7",
                                           "0.1",
                                           "0.999999",
                                           "1e-300",
                                           "-0",
                                           "00",
                                           "01",
                                           "+1",
                                           "1.0",
                                           "2.5",
                                           "3.25",
                                           "3.5",
                                           "2/4",
                                           "32/64",
                                           "none",
                                           "mean",
                                           "hadamard",
                                           "max",
                                           "avg",
                                           "pre",
                                           "post",
                                           "svd",
                                           "f16",
                                           "f32",
                                           "fp8",
                                           "higgs1",
                                           "higgs2",
                                           "higgs4",
                                           "bf16",
                                           "head",
                                           "group",
                                           "first",
                                           "cosine",
                                           "chunks",
                                           "infix",
                                           "ram",
                                           "disk",
                                           "residual",
                                           "bounds",
                                           "digest",
                                           "maxlogit",
                                           "h2o",
                                           "prod",
                                           "dense",
                                           "calibrated",
                                           "0-1.3",
                                           "0-0",
                                           "1.2.3",
                                           "none/hadamard",
                                           "1/calibrated",
                                           "meanquery",
                                           "streamingllm",
                                           "absolute"};
  Rng rng(5);
  int accepted = 0;
  for (const MethodInfo& method : methods()) {
    const std::vector<std::string> names = settings_of(method.name);
    for (int i = 0; i < 3000; ++i) {
      std::string text = method.name;
      for (std::uint64_t n = rng.below(4), k = 0; k <= n; ++k) {
        text += (k == 0 ? ":" : ",") + names[rng.below(names.size())] + "=" + values[rng.below(values.size())];
      }
      const Result<CacheSpec> spec = parse_spec(text);
      if (!spec.ok()) continue;
      ++accepted;
      const Result<CacheSpec> again = parse_spec(spec->canonical);
      ASSERT_TRUE(again.ok()) << text << " -> " << spec->canonical << ": " << again.status().message();
      EXPECT_EQ(*again, *spec) << text << " -> " << spec->canonical;
      EXPECT_EQ(again->canonical, spec->canonical) << text;
    }
  }
  EXPECT_GT(accepted, 500);
}

TEST(Spec, MethodsAreAllParsed) {
  EXPECT_GE(methods().size(), 24U);
  for (const MethodInfo& method : methods()) EXPECT_TRUE(parse_spec(method.name).ok()) << method.name;
}

}  // namespace
}  // namespace kvartet
