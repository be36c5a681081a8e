// Every file operation of keeping and reading a prefill fails once, and for good: the answer is always there and always the same.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/faulty_file_system.h"
#include "core/memory_file_system.h"
#include "engine/engine.h"
#include "engine/kept_prefills.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

class KeptPrefillFaults : public testing::Test {
 protected:
  KeptPrefillFaults() {
    TinyModelOptions model;
    model.head_dim = 32;
    EXPECT_TRUE(write_tiny_model(path_, model).ok());
    EngineOptions options;
    options.model_path = path_;
    engine_ = Engine::open(options).value();
    prompt_ = engine_->vocabulary().tokenize(std::string(90, 'p') + " and so on").value();
  }
  ~KeptPrefillFaults() override { std::remove(path_.c_str()); }

  std::string answer(KeptPrefills* kept) {
    engine_->use_kept_prefills(kept);
    const std::vector<CacheSpec> specs = {*parse_spec("snapkv:budget=40,window=8"), *parse_spec("h2o:budget=40")};
    Result<std::vector<Sequence>> sequences = engine_->prefill(prompt_, specs);
    if (!sequences.ok()) return sequences.status().message();
    Sequence* both[] = {&(*sequences)[0], &(*sequences)[1]};
    const auto done = engine_->generate(both, {.max_tokens = 6, .ignore_end = true});
    return done.ok() ? (*done)[0].text + "|" + (*done)[1].text : done.status().message();
  }
  static KeptPrefillOptions options(FileSystem& files) {
    return {.directory = "kept", .model = "tiny", .program = "test", .files = &files};
  }

  const std::string path_ = testing::TempDir() + "kvartet_kept_faults_" + std::to_string(getpid()) + ".gguf";
  std::unique_ptr<Engine> engine_;
  std::vector<Token> prompt_;
};

TEST_F(KeptPrefillFaults, AnyOperationMayFailAndTheAnswerIsTheSame) {
  const std::string expected = answer(nullptr);
  for (const bool lasting : {false, true}) {
    for (const bool there : {false, true}) {  // is the file there already?
      for (long n = 1;; ++n) {
        MemoryFileSystem memory;
        ASSERT_TRUE(memory.make_directories("kept").ok());
        KeptPrefills healthy(options(memory));
        if (there) {
          ASSERT_EQ(answer(&healthy), expected);
        }
        FaultyFileSystem faulty(memory);
        faulty.arm({.nth = n, .lasting = lasting, .code = Code::kExhausted});
        KeptPrefills kept(options(faulty));
        EXPECT_EQ(answer(&kept), expected) << n;
        const KeptPrefills::Tally& tally = kept.tally();
        if (!faulty.failed()) {
          EXPECT_EQ(tally.read, there ? 1 : 0);
          EXPECT_EQ(tally.kept, there ? 0 : 1);
          EXPECT_GT(n, there ? 8 : 10);
          break;
        }
        if (there) {
          EXPECT_EQ(tally.refused, 1) << n;
          EXPECT_EQ(tally.read, 0) << n;
        } else {
          EXPECT_EQ(tally.not_kept, 1) << n;
          EXPECT_EQ(tally.first_failure.code(), Code::kExhausted) << n;
        }
        // What is left is a whole file or none.
        KeptPrefills after(options(memory));
        EXPECT_EQ(answer(&after), expected) << n;
        EXPECT_EQ(after.tally().refused, 0) << n;
        EXPECT_EQ(after.tally().read + after.tally().kept, 1) << n;
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
