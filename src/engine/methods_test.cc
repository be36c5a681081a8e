// What every method promises, over the table of methods and every pair of an evicting and a quantizing one: a new method is held
// to all of it without a line here. End to end on tiny models: queries share KV heads by three, some layers have windows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/memory_file_system.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/kept_prefills.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

constexpr int kPrompt = 200;

TinyModelOptions grouped_heads() {
  return {.layers = 4, .hidden = 96, .ffn = 64, .heads = 6, .kv_heads = 2, .head_dim = 32, .context = 512};
}

TinyModelOptions windowed() {
  TinyModelOptions model = grouped_heads();
  model.architecture = "gemma3";
  model.window = 48;
  model.window_period = 2;
  return model;
}

std::string model_file(const TinyModelOptions& model) {
  const std::string path = test_files.add("methods-" + model.architecture);
  const Status written = write_tiny_model(path, model);
  EXPECT_TRUE(written.ok()) << written.message();
  return path;
}

std::unique_ptr<Engine> open(const TinyModelOptions& model, EngineOptions options = {}) {
  options.model_path = model_file(model);
  Result<std::unique_ptr<Engine>> engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

// `name` with the settings of `wanted` that the method has.
std::string with_settings(const std::string& name, const std::vector<std::string>& wanted) {
  std::string text = name;
  for (const std::string& setting : wanted) {
    const std::string longer = text + (text == name ? ":" : ",") + setting;
    if (parse_spec(longer).ok()) text = longer;
  }
  return text;
}

// Settings with which every method acts on a prompt of kPrompt tokens, in this order of preference.
const std::vector<std::string> kActing = {"budget=48", "target=48", "window=20", "residual=32", "sinks=16",
                                          "rank=16",   "min=0",     "dense=0",   "interval=3"};

// Every method by itself, with its defaults and so that it acts, and all pairs that the grammar allows.
std::vector<std::string> method_texts() {
  std::vector<std::string> texts;
  std::vector<std::string> stages;
  for (const MethodInfo& method : methods()) {
    stages.push_back(with_settings(method.name, kActing));
    texts.push_back(method.name);
    if (stages.back() != method.name) texts.push_back(stages.back());
  }
  for (const std::string& first : stages) {
    for (const std::string& second : stages) {
      const std::string pair = with_settings(first + "+" + second, {"center=mean", "rotate=hadamard", "keep=1"});
      if (parse_spec(pair).ok()) texts.push_back(pair);
    }
  }
  for (const std::string& stage : stages) {
    const std::string more = with_settings(stage, {"center=mean", "rotate=hadamard", "scale=calibrated", "variant=prod", "keep=1",
                                                   "share=head", "rope=pre", "rope=rerotate"});
    if (more != stage) texts.push_back(more);
  }
  for (const char* mixed :
       {"kivi/full:residual=32", "full/kivi:residual=32", "q8_0/q4_0:rotate=none/hadamard", "qjl/turboquant:residual=32",
        "cam:target=48,base=h2o,interval=5+q8_0/full", "cam:target=48,base=tova",
        "cam:target=48,base=snapkv,interval=7,window=16", "streamingllm:window=20,rope=rerotate+q8_0"}) {
    texts.emplace_back(mixed);
  }
  return texts;
}

std::vector<CacheSpec> specs_for(const Engine& engine, const std::vector<std::string>& texts) {
  std::vector<CacheSpec> specs;
  for (const std::string& text : texts) {
    Result<CacheSpec> spec = parse_spec(text);
    if (!spec.ok()) {
      ADD_FAILURE() << text << ": " << spec.status().message();
      continue;
    }
    if (check_spec(*spec, engine.shape()).ok()) specs.push_back(std::move(spec).value());
  }
  return specs;
}

class MethodsTest : public ::testing::TestWithParam<TinyModelOptions> {
 protected:
  std::unique_ptr<Engine> engine_ = open(GetParam());
  std::vector<CacheSpec> specs_ = specs_for(*engine_, method_texts());

  std::vector<Sequence> start(int tokens, Engine* engine = nullptr) { return start(tokens, specs_, engine); }
  std::vector<Sequence> start(int tokens, const std::vector<CacheSpec>& specs, Engine* engine = nullptr) {
    Result<std::vector<Sequence>> sequences = (engine != nullptr ? *engine : *engine_).prefill(random_tokens(tokens, 1), specs);
    EXPECT_TRUE(sequences.ok()) << sequences.status().message();
    return sequences.ok() ? std::move(sequences).value() : std::vector<Sequence>();
  }
  static void decode(Engine& engine, std::vector<Sequence>& sequences, const std::vector<Token>& tokens) {
    std::vector<Sequence*> all;
    for (Sequence& sequence : sequences) all.push_back(&sequence);
    for (const Token token : tokens) {
      const Status status = engine.decode(all, std::vector<Token>(all.size(), token));
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  void decode(std::vector<Sequence>& sequences, const std::vector<Token>& tokens) { decode(*engine_, sequences, tokens); }
};

std::string name_of(const Sequence& sequence) { return sequence.cache.spec().canonical; }

void expect_sound(const std::vector<Sequence>& sequences) {
  for (const Sequence& sequence : sequences) {
    const Status sound = sequence.cache.check_integrity();
    EXPECT_TRUE(sound.ok()) << sound.message();
    EXPECT_TRUE(std::all_of(sequence.logits.begin(), sequence.logits.end(), [](float x) { return std::isfinite(x); }))
        << name_of(sequence);
  }
}

void expect_same(const std::vector<Sequence>& a, const std::vector<Sequence>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].logits, b[i].logits) << what << ": " << name_of(a[i]);
    EXPECT_EQ(a[i].cache.bytes(), b[i].cache.bytes()) << what << ": " << name_of(a[i]);
    EXPECT_EQ(a[i].cache.next_position(), b[i].cache.next_position()) << what << ": " << name_of(a[i]);
  }
}

// How adakv's heads share a layer's rows follows from the scores, and from that tiles and rows that are sealed.
bool bytes_follow_from_counts(const CacheSpec& spec) { return spec.evict != Evict::kAda; }

TEST_P(MethodsTest, BytesAreWhatWasPredicted) {
  for (const int prompt : {1, 33, kPrompt}) {
    std::vector<Sequence> sequences = start(prompt);
    int generated = 0;
    for (const int more : {0, 41}) {
      decode(sequences, random_tokens(more, 7));
      generated += more;
      expect_sound(sequences);
      for (const Sequence& sequence : sequences) {
        const CacheSpec& spec = sequence.cache.spec();
        const Result<ByteAccount> predicted = predict_bytes(spec, engine_->shape(), prompt, generated);
        ASSERT_TRUE(predicted.ok()) << predicted.status().message();
        const ByteAccount held = sequence.cache.bytes();
        const std::string what = name_of(sequence) + " after " + std::to_string(prompt) + "+" + std::to_string(generated);
        if (bytes_follow_from_counts(spec)) {
          EXPECT_EQ(predicted->allocated, held.allocated) << what;
          EXPECT_EQ(predicted->slow_live, held.slow_live) << what;
          EXPECT_EQ(predicted->slow_allocated, held.slow_allocated) << what;
        }
        if (bytes_follow_from_counts(spec) || spec.residual == 0) {
          EXPECT_EQ(predicted->live, held.live) << what;
        }
      }
    }
  }
}

TEST_P(MethodsTest, OnePrefillForAllEqualsOneForEach) {
  std::erase_if(specs_, [](const CacheSpec& spec) { return spec.canonical.find('+') != std::string::npos; });
  std::vector<Sequence> together = start(kPrompt / 2);
  std::vector<Sequence> alone;
  for (const CacheSpec& spec : specs_) alone.push_back(std::move(start(kPrompt / 2, {spec})[0]));
  expect_same(together, alone, "prefill");
  // One by one: the products of a batch are rounded in another order.
  for (std::vector<Sequence>* way : {&together, &alone}) {
    for (Sequence& sequence : *way) {
      Sequence* one[] = {&sequence};
      for (const Token token : random_tokens(9, 3)) ASSERT_TRUE(engine_->decode(one, std::vector<Token>{token}).ok());
    }
  }
  expect_same(together, alone, "decode");
}

TEST_P(MethodsTest, ForksGoTheirOwnWays) {
  std::vector<Sequence> trunks = start(kPrompt);
  std::vector<Sequence> others = start(kPrompt);
  std::vector<Sequence> firsts = start(kPrompt);
  const std::vector<Token> shared = random_tokens(5, 3);
  decode(trunks, shared);
  decode(others, shared);
  decode(firsts, shared);
  std::vector<Sequence> forks;
  for (const Sequence& trunk : trunks) forks.push_back(trunk.fork());
  constexpr std::uint64_t kSteps = 12;
  for (std::uint64_t i = 0; i < kSteps; ++i) {  // each writes while the other holds the tile
    decode(trunks, random_tokens(1, 100 + i));
    decode(forks, random_tokens(1, 200 + i));
  }
  for (std::uint64_t i = 0; i < kSteps; ++i) decode(firsts, random_tokens(1, 100 + i));
  for (std::uint64_t i = 0; i < kSteps; ++i) decode(others, random_tokens(1, 200 + i));
  const std::vector<Token> question = random_tokens(50, 9);
  for (std::vector<Sequence>* way : {&forks, &others}) {
    for (Sequence& sequence : *way) ASSERT_TRUE(engine_->extend(sequence, question).ok());
  }
  expect_same(trunks, firsts, "trunk");
  expect_same(forks, others, "fork");
  expect_sound(trunks);
  expect_sound(forks);
}

TEST_P(MethodsTest, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<Sequence> reference;
  std::vector<std::unique_ptr<Engine>> engines;
  for (const int threads : {1, 3, 7}) {
    Engine& engine = *engines.emplace_back(open(GetParam(), {.threads = threads}));
    std::vector<Sequence> sequences = start(kPrompt, &engine);
    decode(engine, sequences, random_tokens(4, 3));
    for (Sequence& sequence : sequences) {
      const Status extended = engine.extend(sequence, random_tokens(40, 4));
      ASSERT_TRUE(extended.ok()) << extended.message();
    }
    decode(engine, sequences, random_tokens(4, 5));
    if (reference.empty()) {
      reference = std::move(sequences);
    } else {
      expect_same(reference, sequences, std::to_string(threads) + " threads");
    }
  }
}

// docs/formats/kept-prefill.md: whatever a method asks for follows from the file, with the bits of a prefill.
TEST_P(MethodsTest, AKeptPrefillGivesTheSameBits) {
  MemoryFileSystem files;
  const KeptPrefillOptions options = {.directory = ".", .model = "tiny", .program = "test", .files = &files};
  for (const int prompt : {1, 23, kPrompt}) {  // one row, stored weights, converted ones
    std::vector<Sequence> computed = start(prompt);
    KeptPrefills first(options);
    KeptPrefills later(options);
    engine_->use_kept_prefills(&first);
    const std::vector<Sequence> keeping = start(prompt, specs_of({"full"}));  // asks for nothing
    engine_->use_kept_prefills(nullptr);
    expect_same(keeping, start(prompt, specs_of({"full"})), "keeping");
    ASSERT_EQ(first.tally().kept, 1);
    engine_->use_kept_prefills(&later);
    std::vector<Sequence> read = start(prompt);
    ASSERT_EQ(later.tally().read, 1);
    engine_->use_kept_prefills(nullptr);
    expect_same(read, computed, "prefill");
    for (std::vector<Sequence>* way : {&read, &computed}) {
      decode(*way, random_tokens(5, 3));
      for (Sequence& sequence : *way) ASSERT_TRUE(engine_->extend(sequence, random_tokens(30, 4)).ok());
      decode(*way, random_tokens(5, 5));
    }
    expect_same(read, computed, "decode");
    expect_sound(read);
  }
}

// docs/decisions/0012-shared-documents.md: whatever a method asks for follows from the held rows and those behind them.
TEST_P(MethodsTest, ASharedPrefixGivesTheSameBits) {
  const std::vector<Token> prompt = random_tokens(kPrompt, 1);
  for (const int shared : {129, kPrompt - 2}) {  // a window's queries lie behind it, or most of them in it
    std::vector<Sequence> computed = start(kPrompt);
    std::vector<Token> other = prompt;
    const std::vector<Token> question = random_tokens(kPrompt, 2);
    std::copy(question.begin() + shared, question.end(), other.begin() + shared);
    engine_->drop_shared_prefix();
    ASSERT_TRUE(engine_->prefill_shared(other, shared, specs_).ok());
    Result<std::vector<Sequence>> taken = engine_->prefill_shared(prompt, shared, specs_);
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    EXPECT_EQ(taken->front().prefix_taken, shared);
    expect_same(*taken, computed, "prefill");
    for (std::vector<Sequence>* way : {&*taken, &computed}) {
      decode(*way, random_tokens(5, 3));
      for (Sequence& sequence : *way) ASSERT_TRUE(engine_->extend(sequence, random_tokens(30, 4)).ok());
      decode(*way, random_tokens(5, 5));
    }
    expect_same(*taken, computed, "decode");
    expect_sound(*taken);
  }
}

// A cache that has not acted uses exactly full's tiles and borders (DESIGN 4).
TEST_P(MethodsTest, C19ABudgetOverThePromptIsFull) {
  std::vector<std::string> texts = {"full"};
  for (const MethodInfo& method : methods()) {
    const std::string roomy = with_settings(method.name, {"budget=496", "target=496", "window=496"});
    const CacheSpec spec = *parse_spec(roomy);
    const bool exact = spec.key.name == "f16" && spec.value.name == "f16";
    if (roomy != method.name && exact) texts.push_back(roomy);
  }
  EXPECT_GT(texts.size(), 10U);
  std::vector<Sequence> sequences = start(kPrompt, specs_for(*engine_, texts));
  const auto all_equal = [&] {
    for (const Sequence& sequence : sequences) {
      EXPECT_EQ(sequence.logits, sequences[0].logits) << name_of(sequence);
      EXPECT_FALSE(sequence.cache.acted()) << name_of(sequence);
    }
  };
  decode(sequences, random_tokens(20, 3));
  all_equal();
  for (Sequence& sequence : sequences) ASSERT_TRUE(engine_->extend(sequence, random_tokens(30, 4)).ok());
  all_equal();
  decode(sequences, random_tokens(20, 5));
  all_equal();
}

// One row, one page, one chunk.
TEST_P(MethodsTest, C19TheSmallestBudgetsWork) {
  std::vector<std::string> texts;
  const std::vector<std::string> smallest = {"budget=1", "budget=16", "target=2",   "sinks=0",     "sinks=16",
                                             "local=0",  "window=1",  "residual=0", "residual=32", "rank=1",
                                             "min=0",    "dense=0",   "merge=1"};
  for (const MethodInfo& method : methods()) {
    const std::string stage = with_settings(method.name, smallest);
    texts.push_back(stage);
    texts.push_back(with_settings(method.name, {"budget=0.00001", "local=0", "sinks=0", "min=0", "dense=0"}));
    for (const MethodInfo& other : methods()) {
      const std::string pair = stage + "+" + with_settings(other.name, smallest);
      if (parse_spec(pair).ok()) texts.push_back(pair);
    }
  }
  specs_ = specs_for(*engine_, texts);
  for (const int prompt : {1, 5, kPrompt}) {
    std::vector<Sequence> sequences = start(prompt);
    expect_sound(sequences);
    decode(sequences, random_tokens(20, 3));
    expect_sound(sequences);
    for (Sequence& sequence : sequences) {
      for (const int more : {1, 33}) {
        const Status extended = engine_->extend(sequence, random_tokens(more, 4));
        ASSERT_TRUE(extended.ok()) << extended.message();
      }
    }
    decode(sequences, random_tokens(5, 5));
    expect_sound(sequences);
  }
}

TEST_P(MethodsTest, AnyByteCapEndsInAResultOrASentence) {
  for (const MethodInfo& method : methods()) {
    const CacheSpec spec = *parse_spec(with_settings(method.name, kActing));
    if (!check_spec(spec, engine_->shape()).ok()) continue;
    const std::size_t needed = predict_bytes(spec, engine_->shape(), kPrompt, 10)->fast_allocated();
    for (const double share : {0.0, 0.4, 0.97}) {
      EngineOptions options;
      options.fast_tier_bytes = static_cast<std::size_t>(share * static_cast<double>(needed));
      const auto engine = open(GetParam(), options);
      auto sequences = engine->prefill(random_tokens(kPrompt, 1), std::vector<CacheSpec>{spec});
      Status end = sequences.status();
      for (int i = 0; i < 10 && end.ok(); ++i) {
        Sequence* one[] = {&(*sequences)[0]};
        end = engine->decode(one, std::vector<Token>{static_cast<Token>(i)});
      }
      const bool adapts = spec.evict == Evict::kAda;  // a prediction is no bound there
      EXPECT_TRUE(end.code() == Code::kExhausted || (adapts && end.ok()))
          << spec.canonical << ": " << share << " of " << needed << end.message();
    }
  }
}

// A fork that finds no more memory is broken; the sequence it came from goes on as if it had never been.
TEST_P(MethodsTest, AForkThatRunsOutOfMemoryLeavesTheTrunkAlone) {
  int ran_out = 0;
  for (const MethodInfo& method : methods()) {
    const CacheSpec spec = *parse_spec(with_settings(method.name, kActing));
    if (!check_spec(spec, engine_->shape()).ok()) continue;
    EngineOptions options;
    options.fast_tier_bytes = predict_bytes(spec, engine_->shape(), kPrompt, 6)->fast_allocated() * 5 / 4;
    const auto engine = open(GetParam(), options);
    auto trunk = engine->prefill(random_tokens(kPrompt, 1), std::vector<CacheSpec>{spec});
    if (!trunk.ok()) continue;  // adakv: a prediction is no bound there
    {
      Sequence fork = (*trunk)[0].fork();
      Sequence* one[] = {&fork};
      Status end;
      for (int i = 0; i < 250 && end.ok(); ++i) end = engine->decode(one, std::vector<Token>{static_cast<Token>(i)});
      EXPECT_TRUE(end.ok() || end.code() == Code::kExhausted) << end.message();
      if (!end.ok()) {
        ++ran_out;
        EXPECT_FALSE(engine->decode(one, std::vector<Token>{1}).ok()) << spec.canonical;
      }
    }
    std::vector<Sequence> fresh = start(kPrompt, {spec});
    decode(*engine, *trunk, random_tokens(6, 3));
    decode(fresh, random_tokens(6, 3));
    expect_same(*trunk, fresh, "trunk");
    expect_sound(*trunk);
  }
  EXPECT_GT(ran_out, 5);
}

INSTANTIATE_TEST_SUITE_P(Models, MethodsTest, ::testing::Values(grouped_heads(), windowed()),
                         [](const auto& info) { return info.param.architecture; });

}  // namespace
}  // namespace kvartet
