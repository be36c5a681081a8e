// Prompts that were kept: read where they can be, computed anew where they cannot, the same bits either way.
#include "engine/kept_prefills.h"

#include <gtest/gtest.h>

#include <atomic>

#include "core/faulty_file_system.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/prefill_file_fixture.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

constexpr int kPrompt = 700;  // more than a chunk of 512

const std::string& tiny_path() {
  static const std::string path = [] {
    std::string file = test_files.add("kept-prefills");
    const Status status = write_tiny_model(file, {.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .context = 1024});
    EXPECT_TRUE(status.ok()) << status.message();
    return file;
  }();
  return path;
}

std::unique_ptr<Engine> open_tiny(EngineOptions options = {}) {
  options.model_path = tiny_path();
  Result<std::unique_ptr<Engine>> engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

class Kept : public ::testing::Test {
 protected:
  Kept() { EXPECT_TRUE(files_.make_directories("kept").ok()); }

  KeptPrefillOptions options(FileSystem* files = nullptr) {
    return {.directory = "kept",
            .model = "0123",
            .program = "test",
            .files = files == nullptr ? &files_ : files,
            .on_refusal = [this](const Status& why) { refusals_.push_back(why.message()); }};
  }

  // The logits after the prompt and some steps, of all caches: what answers and likelihoods are made of.
  std::vector<std::vector<float>> work(Engine& engine, const std::vector<std::string>& specs) {
    std::vector<std::vector<float>> logits;
    Result<std::vector<Sequence>> sequences = engine.prefill(prompt_, specs_of(specs));
    EXPECT_TRUE(sequences.ok()) << sequences.status().message();
    if (!sequences.ok()) return logits;
    for (Sequence& sequence : *sequences) {
      Sequence* one[] = {&sequence};
      logits.push_back(sequence.logits);
      for (const Token token : random_tokens(3, 9)) {
        EXPECT_TRUE(engine.decode(one, std::vector<Token>{token}).ok());
        logits.push_back(sequence.logits);
      }
    }
    read_ = sequences->front().prefill_read;
    prefill_s_ = sequences->front().prefill_s;
    return logits;
  }
  std::vector<std::vector<float>> work(KeptPrefills& kept, const std::vector<std::string>& specs) {
    engine_->use_kept_prefills(&kept);
    auto logits = work(*engine_, specs);
    engine_->use_kept_prefills(nullptr);
    return logits;
  }
  std::string file_of(const KeptPrefills& kept) const { return kept.path_of(prompt_); }

  const std::vector<std::string> caches_ = {"full",           "snapkv:budget=200", "h2o:budget=150",
                                            "tova:budget=90", "kivi:bits=2",       "shadowkv:rank=16,sinks=32"};
  const std::vector<Token> prompt_ = random_tokens(kPrompt, 1);
  MemoryFileSystem files_;
  std::unique_ptr<Engine> engine_ = open_tiny();
  std::vector<std::string> refusals_;
  bool read_ = false;
  double prefill_s_ = 0;
};

TEST_F(Kept, ALaterCacheIsBuiltFromTheFile) {
  const auto expected = work(*engine_, caches_);
  KeptPrefills first(options());
  EXPECT_EQ(work(first, {"full"}), work(*engine_, {"full"})) << "keeping changed what is computed";
  EXPECT_EQ(first.tally().kept, 1);
  EXPECT_EQ(first.tally().read, 0);

  KeptPrefills later(options());
  EXPECT_EQ(work(later, caches_), expected);
  EXPECT_TRUE(read_);
  EXPECT_EQ(later.tally().read, 1);
  EXPECT_EQ(later.tally().kept, 0);
  EXPECT_TRUE(refusals_.empty());
  EXPECT_EQ(files_.list("kept")->size(), 1U);
}

TEST_F(Kept, TheTimeIsThatOfTheRunThatComputed) {
  KeptPrefills kept(options());
  work(kept, {"full"});
  EXPECT_FALSE(read_);
  const double computed = prefill_s_;
  EXPECT_GT(computed, 0);
  work(kept, {"q8_0"});
  EXPECT_TRUE(read_);
  EXPECT_EQ(prefill_s_, computed);
}

TEST_F(Kept, OtherPromptsAreOtherFiles) {
  KeptPrefills kept(options());
  work(kept, {"full"});
  engine_->use_kept_prefills(&kept);
  for (const std::uint64_t seed : {2U, 3U}) ASSERT_TRUE(engine_->prefill(random_tokens(40, seed), specs_of({"full"})).ok());
  EXPECT_EQ(kept.tally().kept, 3);
  EXPECT_EQ(kept.tally().read, 0);
}

// A part of the last layer is damaged when the layers before it are sealed already.
TEST_F(Kept, WhatIsDamagedIsComputedAnewAndReplaced) {
  const auto expected = work(*engine_, caches_);
  KeptPrefills kept(options());
  work(kept, {"full"});
  const std::string whole = files_.read_file(file_of(kept)).value();
  const std::size_t size = whole.size();
  int damages = 0;
  for (const std::size_t at : {std::size_t{3}, std::size_t{8}, std::size_t{100}, size / 4, size / 2, size - 700, size - 100}) {
    std::string spoilt = whole;
    spoilt[at] = static_cast<char>(spoilt[at] ^ 4);
    overwrite(files_, file_of(kept), spoilt);
    refusals_.clear();
    EXPECT_EQ(work(kept, caches_), expected) << at;
    EXPECT_FALSE(read_);
    EXPECT_EQ(refusals_.size(), 1U) << at;
    EXPECT_EQ(work(kept, caches_), expected);
    EXPECT_TRUE(read_) << "the new file is not used";
    ++damages;
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{47}, std::size_t{3000}, size - 1}) {
    overwrite(files_, file_of(kept), whole.substr(0, bytes));
    EXPECT_EQ(work(kept, caches_), expected);
    EXPECT_FALSE(read_) << bytes;
    ++damages;
  }
  EXPECT_EQ(kept.tally().refused, damages);
  EXPECT_EQ(kept.tally().not_kept, 0);
}

TEST_F(Kept, WhatAnotherProgramMadeIsComputedAnew) {
  KeptPrefills kept(options());
  work(kept, {"full"});
  KeptPrefillOptions newer = options();
  newer.program = "test 2";
  KeptPrefills other(newer);
  const auto expected = work(*engine_, {"q8_0"});
  EXPECT_EQ(work(other, {"q8_0"}), expected);
  EXPECT_FALSE(read_);
  ASSERT_EQ(refusals_.size(), 1U);
  EXPECT_NE(refusals_[0].find("test 2"), std::string::npos) << refusals_[0];
  EXPECT_EQ(work(other, {"q8_0"}), expected);
  EXPECT_TRUE(read_);
}

// 128 queries are kept; who asks for more gets a new prefill, and the new file serves both.
TEST_F(Kept, AWiderWindowIsComputedOnce) {
  const std::vector<std::string> wide = {"snapkv:budget=400,window=200"};
  KeptPrefills kept(options());
  work(kept, {"full"});
  const auto expected = work(*engine_, wide);
  EXPECT_EQ(work(kept, wide), expected);
  EXPECT_FALSE(read_);
  ASSERT_EQ(refusals_.size(), 1U);
  EXPECT_NE(refusals_[0].find("128 queries, but a cache asks for 200"), std::string::npos) << refusals_[0];
  EXPECT_EQ(work(kept, wide), expected);
  EXPECT_TRUE(read_);
  EXPECT_EQ(work(kept, caches_), work(*engine_, caches_));
  EXPECT_TRUE(read_);
}

TEST_F(Kept, ABf16CopyHasItsOwnRows) {
  KeptPrefills kept(options());
  work(kept, {"full"});
  const auto exact = open_tiny({.bf16_copy = true});
  const auto expected = work(*exact, {"full"});
  exact->use_kept_prefills(&kept);
  EXPECT_EQ(work(*exact, {"full"}), expected);
  EXPECT_FALSE(read_);
  EXPECT_EQ(refusals_.size(), 1U);
}

// Any number of threads may have computed it.
TEST_F(Kept, ThreadsDoNotShow) {
  KeptPrefills kept(options());
  work(kept, {"full"});
  const auto three = open_tiny({.threads = 3});
  three->use_kept_prefills(&kept);
  EXPECT_EQ(work(*three, caches_), work(*engine_, caches_));
  EXPECT_TRUE(read_);
}

// The prompt of a question that comes later is the document.
TEST_F(Kept, ASecondQuestionFollowsAFileAsItFollowsAPrefill) {
  KeptPrefills kept(options());
  work(kept, {"full"});
  const std::vector<Token> question = random_tokens(30, 5);
  const auto ask = [&](const char* spec) {
    auto sequences = engine_->prefill(prompt_, specs_of({spec}));
    EXPECT_TRUE(sequences.ok());
    EXPECT_TRUE(engine_->extend(sequences->front(), question).ok());
    const auto likelihoods = engine_->log_likelihoods(sequences->front(), question);
    EXPECT_TRUE(likelihoods.ok());
    return *likelihoods;
  };
  for (const char* spec : {"full", "h2o:budget=150", "tova:budget=90", "snapkv:budget=150", "quest"}) {
    engine_->use_kept_prefills(nullptr);
    const auto expected = ask(spec);
    engine_->use_kept_prefills(&kept);
    EXPECT_EQ(ask(spec), expected) << spec;
  }
  EXPECT_EQ(kept.tally().read, 5);
}

// The caches that a damaged file began are gone before the new ones begin.
TEST_F(Kept, UnderATightByteCap) {
  const CacheSpec full = specs_of({"full"})[0];
  const std::size_t bytes = predict_bytes(full, engine_->shape(), kPrompt, 3)->fast_allocated();
  const auto tight = open_tiny({.fast_tier_bytes = bytes + 1000});
  KeptPrefills kept(options());
  tight->use_kept_prefills(&kept);
  const auto expected = work(*tight, {"full"});
  std::string spoilt = files_.read_file(file_of(kept)).value();
  spoilt[spoilt.size() - 100] ^= 1;
  overwrite(files_, file_of(kept), spoilt);
  EXPECT_EQ(work(*tight, {"full"}), expected);
  EXPECT_EQ(kept.tally().refused, 1);
  EXPECT_EQ(work(*tight, {"full"}), expected);
  EXPECT_TRUE(read_);

  const auto too_small = open_tiny({.fast_tier_bytes = bytes / 2});
  too_small->use_kept_prefills(&kept);
  EXPECT_EQ(too_small->prefill(prompt_, specs_of({"full"})).status().code(), Code::kExhausted);
}

TEST_F(Kept, AnInterruptedPrefillLeavesNothing) {
  std::atomic<bool> cancel = false;
  const auto engine = open_tiny({.cancel = &cancel});
  KeptPrefills kept(options());
  engine->use_kept_prefills(&kept);
  const auto stop = [&](double share) { cancel = share > 0.4; };
  EXPECT_EQ(engine->prefill(prompt_, specs_of({"full"}), stop).status().code(), Code::kCancelled);
  EXPECT_TRUE(files_.list("kept")->empty());
  cancel = false;
  work(*engine, {"full"});
  EXPECT_EQ(kept.tally().kept, 1);
  EXPECT_EQ(engine->prefill(prompt_, specs_of({"full"}), stop).status().code(), Code::kCancelled);
  EXPECT_EQ(kept.tally().read, 0);
}

TEST_F(Kept, SaysWhatItTakesAndRefusesWhatDoesNotFit) {
  KeptPrefills kept(options());
  work(kept, {"full"});
  const std::uint64_t one = files_.read_file(file_of(kept))->size();
  const std::vector<std::vector<Token>> prompts = {prompt_, random_tokens(kPrompt, 2), random_tokens(kPrompt, 2)};
  Result<KeptPrefills::Plan> plan = kept.plan(engine_->shape(), prompts);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->prompts, 2);
  EXPECT_EQ(plan->there, 1);
  EXPECT_NEAR(static_cast<double>(plan->new_bytes), static_cast<double>(one), 512);
  EXPECT_NEAR(static_cast<double>(plan->bytes), 2.0 * static_cast<double>(one), 1024);
  EXPECT_TRUE(kept.prepare(*plan).ok());
  EXPECT_EQ(files_.list("kept")->size(), 1U);

  files_.set_free_bytes(one / 2);
  plan = kept.plan(engine_->shape(), prompts);
  const Status status = kept.prepare(*plan);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.message().find("free some space"), std::string::npos) << status.message();
  EXPECT_TRUE(kept.prepare(*kept.plan(engine_->shape(), {prompts.data(), 1})).ok()) << "nothing is to be written";
}

TEST_F(Kept, AFolderThatCannotBeWrittenToIsRefusedAtOnce) {
  FaultyFileSystem faulty(files_);
  KeptPrefills kept(options(&faulty));
  const std::vector<std::vector<Token>> prompts = {prompt_};
  const auto plan = kept.plan(engine_->shape(), prompts);
  ASSERT_TRUE(plan.ok());
  for (const long n : {1, 3, 4}) {  // the second looks for what killed runs left, and may fail
    faulty.arm({.nth = n});
    EXPECT_EQ(kept.prepare(*plan).code(), Code::kIo) << n;
  }
  faulty.arm({});
  EXPECT_TRUE(kept.prepare(*plan).ok());
  overwrite(files_, "file", "precious");
  KeptPrefillOptions wrong = options();
  wrong.directory = "file";
  KeptPrefills no_folder(wrong);
  EXPECT_EQ(no_folder.prepare(*plan).code(), Code::kIo);
}

}  // namespace
}  // namespace kvartet
