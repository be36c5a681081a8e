// A folder of its own for each test of the results store, and small records to put there.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "results/store.h"

namespace kvartet {

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_store_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static RunRecord run(std::uint64_t seed = 1) {
    RunRecord r;
    r.identity = {.model_hash = "00ff",
                  .model_name = "tiny",
                  .model_shape = "2 layers",
                  .seed = seed,
                  .parameters = "",
                  .version = "0.1.0"};
    r.machine = {.cpu = "cpu", .cores = 2, .memory_bytes = 1, .compiler = "g++"};
    r.threads = 2;
    r.started = "2025-01-01T00:00:00Z";
    r.process = getpid();
    return r;
  }
  static SampleRecord sample(int i, const std::string& hash = "aa") {
    SampleRecord s;
    s.key = {"needle", 2048, fmt::format("n{}", i)};
    s.ordinal = i;
    s.prompt_hash = hash;
    s.prompt_tokens = 2000;
    s.gold_tokens = 20;
    s.answers_json = "[\"42\"]";
    s.classes_json = "null";
    s.question = "Which number?";
    s.depths_json = "[0.5]";
    s.document = "d" + std::to_string(i / 2);
    return s;
  }
  static Outcome outcome(int i, const std::string& spec, double score = 1) {
    Outcome o;
    o.key = sample(i).key;
    o.spec = spec;
    o.prediction = "forty \"two\"\n\xc3\xa9";
    o.score = score;
    o.gold_log_likelihood = -0.25;
    o.ttft_s = 1.5;
    o.shared = true;
    o.live_bytes = 123456789012;
    o.rows_kept = 10.5;
    o.acted = true;
    o.completion_tokens = 7;
    o.finish_reason = "stop";
    o.token_gaps_json = "[10.25,11]";
    return o;
  }
  static SoloRun solo_run(const SampleKey& key, const std::string& spec, int repeat) {
    SoloRun s;
    s.key = key;
    s.spec = spec;
    s.repeat = repeat;
    s.text = "forty \"two\"";
    s.finish_reason = "length";
    s.completion_tokens = 7;
    s.ttft_s = 1.25;
    s.prefill_s = 1;
    s.compress_s = 0.125;
    s.decode_tokens_per_s = 20.5;
    s.end_to_end_tokens_per_s = 4.5;
    s.token_gaps_json = "[1,2.5]";
    s.peak_rss_bytes = 123456789012;
    s.weight_bytes = 99;
    return s;
  }
  Result<Store> open(const RunRecord& r) { return Store::open(FileSystem::real(), folder(), r); }
  std::string folder(const std::string& name = "out") const { return root_ + "/" + name; }

  std::string root_;
};

}  // namespace kvartet
