// Every file operation of a benchmark's reading and writing fails once: a Status comes back, and no file is half-written.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/runner/predictions.h"
#include "bench/tasks/task.h"
#include "core/faulty_file_system.h"
#include "core/memory_file_system.h"

namespace kvartet {
namespace {

StoredResults results(const std::string& prediction) {
  StoredResults r;
  for (int i = 0; i < 3; ++i) {
    SampleRecord sample;
    sample.key = {"needle", 100, std::to_string(i)};
    sample.answers_json = R"(["a"])";
    sample.classes_json = "null";
    r.samples.push_back(sample);
    for (const char* spec : {"full", "q8_0"}) {
      Outcome o;
      o.key = sample.key;
      o.spec = spec;
      o.prediction = prediction;
      r.outcomes.push_back(o);
    }
  }
  return r;
}

std::string text_of(FileSystem& files, const char* spec) {
  const Result<std::string> text = files.read_file(std::string("out/predictions/needle/100/") + spec + ".jsonl");
  return text.ok() ? *text : "";
}

TEST(BenchFiles, PredictionsAreTheOldOrTheNewOnesWhateverFails) {
  MemoryFileSystem reference;
  ASSERT_TRUE(write_predictions(reference, "out", results("new")).ok());
  const std::string fresh = text_of(reference, "full");
  for (const bool lasting : {false, true}) {
    for (long n = 1;; ++n) {
      MemoryFileSystem memory;
      ASSERT_TRUE(write_predictions(memory, "out", results("old")).ok());
      const std::string old = text_of(memory, "full");
      FaultyFileSystem faulty(memory);
      const Code code = n % 2 == 0 ? Code::kIo : Code::kExhausted;
      faulty.arm({.nth = n, .lasting = lasting, .code = code});
      const Status status = write_predictions(faulty, "out", results("new"));
      if (!faulty.failed()) {
        EXPECT_TRUE(status.ok());
        EXPECT_GT(n, 6);
        break;
      }
      EXPECT_EQ(status.code(), code) << n;
      EXPECT_NE(status.message().find("'out/predictions/needle/100"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("was made to fail"), std::string::npos) << status.message();
      if (!lasting) {
        EXPECT_EQ(memory.list("out/predictions/needle/100").value(), (std::vector<std::string>{"full.jsonl", "q8_0.jsonl"})) << n;
      }
      for (const char* spec : {"full", "q8_0"}) {
        const std::string text = text_of(memory, spec);
        EXPECT_TRUE(text == old || text.size() == fresh.size()) << n << ": " << text;
        EXPECT_NE(text, "") << n;
      }
      // The same command again mends it.
      ASSERT_TRUE(write_predictions(memory, "out", results("new")).ok());
      EXPECT_EQ(text_of(memory, "full"), fresh);
    }
  }
}

void put(FileSystem& files, const std::string& path, const std::string& text) {
  ASSERT_TRUE(files.make_directories(path.substr(0, path.rfind('/'))).ok());
  ASSERT_TRUE(write_file_atomically(files, path, text).ok());
}

// A benchmark of fewer samples than asked for would be a quiet lie.
TEST(BenchFiles, SamplesAreAllThereOrRefused) {
  MemoryFileSystem memory;
  put(memory, "data/haystack/a.txt", "The mill turns. The river runs. The corn is dry. The miller sleeps.\n");
  put(memory, "data/haystack/b.txt", "The road is long. The cart is old. The horse is brown. The rain falls.\n");
  std::string records;
  for (int i = 0; i < 3; ++i)
    records += R"({"input": "Who?", "context": "text", "answers": ["a"], "_id": ")" + std::to_string(i) + "\"}\n";
  put(memory, "data/mine.jsonl", records);
  put(memory, "data/longbench/hotpotqa.jsonl", records);
  put(memory, "data/longbench/config/dataset2prompt.json", R"({"hotpotqa": "Read {context} and answer: {input}"})");
  put(memory, "data/longbench/config/dataset2maxlen.json", R"({"hotpotqa": 32})");
  const std::pair<const char*, const char*> tasks[] = {{"needle", ""}, {"longbench/hotpotqa", ""}, {"data/mine.jsonl", "f1"}};
  for (const auto& [spec, metric] : tasks) {
    const Result<std::unique_ptr<Task>> task = make_task(spec, metric);
    ASSERT_TRUE(task.ok()) << task.status().message();
    for (long n = 1;; ++n) {
      FaultyFileSystem faulty(memory);
      faulty.arm({.nth = n});
      TaskRequest request;
      request.context_tokens = 2000;
      request.samples = 3;
      request.data_dir = "data";
      request.files = &faulty;
      request.count_tokens = [](std::string_view text) -> Result<int> { return static_cast<int>(text.size()); };
      const Result<SampleSet> set = (*task)->samples(request);
      if (!faulty.failed()) {
        ASSERT_TRUE(set.ok()) << set.status().message();
        EXPECT_EQ(set->samples.size(), 3U) << spec;
        EXPECT_GT(n, 1) << spec;
        break;
      }
      ASSERT_FALSE(set.ok()) << spec << ": operation " << n << " failed unnoticed";
      EXPECT_EQ(set.status().code(), Code::kIo) << spec;
    }
  }
}

}  // namespace
}  // namespace kvartet
