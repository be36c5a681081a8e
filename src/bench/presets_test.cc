#include "bench/presets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/runner/estimate.h"
#include "bench/tasks/task.h"
#include "cache/sequence_cache.h"
#include "core/memory_file_system.h"

namespace kvartet {
namespace {

ModelShape shape(int kv_heads, int head_dim, int context) {
  ModelShape s;
  s.context = context;
  s.layers.assign(2, LayerShape{.heads = kv_heads * 3, .kv_heads = kv_heads, .head_dim = head_dim, .window = 0});
  s.rope.dims = head_dim;
  return s;
}

const Preset& preset(std::string_view name) { return **find_preset(name); }

std::vector<std::string> names(const PresetSpecs& chosen) {
  std::vector<std::string> out;
  for (const CacheSpec& spec : chosen.specs) out.push_back(spec.canonical);
  return out;
}

bool says(const std::vector<std::string>& notes, const std::string& part) {
  return std::ranges::any_of(notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

TEST(Presets, UnknownNameNamesThoseThereAre) {
  for (const char* name : {"ofloading-paper", ""}) {
    const auto found = find_preset(name);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), Code::kUsage);
    for (const Preset& preset : presets())
      EXPECT_NE(found.status().message().find(preset.name), std::string::npos) << found.status().message();
  }
  const std::string nearest = find_preset("ofloading-paper").status().message();
  EXPECT_NE(nearest.find("the nearest is offloading-paper (choose"), std::string::npos) << nearest;
}

// Data can be wrong: every spec parses, every task is known.
TEST(Presets, AreMadeOfKnownCachesAndTasks) {
  for (const Preset& p : presets()) {
    const auto chosen = preset_specs(p, shape(8, 128, 131072));
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_EQ(chosen->specs.front().canonical, "full");
    for (const PresetTask& task : p.tasks) {
      EXPECT_TRUE(make_task(task.task).ok()) << task.task;
      EXPECT_FALSE(task.contexts.empty()) << task.task;
      EXPECT_GT(task.samples, 0) << task.task;
    }
  }
}

// compression.md 15: eight configurations.
TEST(Presets, CompressionPaperTakesFractionsWhereTheHeadAllows) {
  const auto large = preset_specs(preset("compression-paper"), shape(8, 128, 131072));
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(large->specs.size(), 8U);
  EXPECT_TRUE(large->notes.empty());
  EXPECT_NE(names(*large)[3].find("bits=3.25"), std::string::npos);
  const auto small = preset_specs(preset("compression-paper"), shape(3, 64, 8192));
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->specs.size(), 8U);
  EXPECT_NE(names(*small)[3].find("bits=3,"), std::string::npos) << names(*small)[3];
  EXPECT_TRUE(says(small->notes, "TurboQuant-3 runs as"));
}

// compression.md 15: the settings of the paper's own runs, under a name of their own.
TEST(Presets, PaperFormHasThePapersSettings) {
  const Preset& paper = preset("compression-paper:form=paper");
  EXPECT_EQ(paper.form, "paper");
  EXPECT_EQ(preset("compression-paper").form, "");
  const auto chosen = preset_specs(paper, shape(8, 128, 131072));
  ASSERT_TRUE(chosen.ok());
  const std::vector<std::string> specs = names(*chosen);
  ASSERT_EQ(specs.size(), 7U);
  EXPECT_EQ(specs[1], "kivi:bits=2,group=32,residual=32");
  EXPECT_NE(specs[3].find("bits=3.25,variant=mse,rotation=dense"), std::string::npos) << specs[3];
  EXPECT_EQ(specs[5], "snapkv:budget=0.25,window=32,kernel=7,pool=avg");
  EXPECT_EQ(specs[6], "cam:target=1024,interval=32,merge=32,base=snapkv,seed=1,window=16,kernel=7,pool=avg");
  EXPECT_EQ(chosen->caps, (AnswerCaps{{specs[6], 64}}));
  EXPECT_TRUE(says(chosen->notes, "not repeated"));
  EXPECT_TRUE(preset_specs(preset("compression-paper"), shape(8, 128, 131072))->caps.empty());
}

TEST(Presets, CacheThatDoesNotFitIsLeftOutAloud) {
  const auto chosen = preset_specs(preset("compression-paper"), shape(3, 48, 8192));  // no multiple of 32
  ASSERT_TRUE(chosen.ok());
  EXPECT_LT(chosen->specs.size(), 8U);
  EXPECT_TRUE(says(chosen->notes, "TurboQuant-4 is left out"));
}

// 160 of 1,024 key channels: 30 of SmolLM2's 192.
TEST(Presets, RankFollowsTheKeyChannels) {
  const auto chosen = preset_specs(preset("offloading-paper"), shape(3, 64, 8192));
  ASSERT_TRUE(chosen.ok());
  EXPECT_TRUE(chosen->notes.empty()) << chosen->notes.front();
  const std::vector<std::string> small = names(*chosen);
  EXPECT_TRUE(std::ranges::any_of(
      small, [](const std::string& s) { return s.find("oracle:") == 0 && s.find("rank=30,") != std::string::npos; }));
  const auto large = preset_specs(preset("offloading-paper"), shape(8, 128, 131072));
  EXPECT_TRUE(says(large->notes, "ShadowKV, rank 160 is the same"));
  EXPECT_EQ(large->specs.size() + 1, preset("offloading-paper").caches.size());
}

TEST(Presets, SetsWithoutFilesAreLeftOutAloud) {
  MemoryFileSystem files;
  const auto without = preset_requests(preset("compression-paper"), {}, shape(3, 64, 8192), files);
  ASSERT_TRUE(without.ok());
  EXPECT_TRUE(says(without->notes, "multi_news is left out: it needs --data"));
  ASSERT_TRUE(files.make_directories("data/longbench").ok());
  ASSERT_TRUE(write_file_atomically(files, "data/longbench/multi_news.jsonl", "{}").ok());
  BenchmarkRequest wishes;
  wishes.data_dir = "data";
  const auto with = preset_requests(preset("compression-paper"), wishes, shape(3, 64, 8192), files);
  ASSERT_TRUE(with.ok());
  EXPECT_EQ(with->requests.size(), without->requests.size() + 1);
  EXPECT_TRUE(says(with->notes, "data/longbench/hotpotqa.jsonl is not there"));
  EXPECT_EQ(with->requests.front().tasks.front(), "longbench/multi_news");
  EXPECT_EQ(with->requests.front().samples, 50);
}

TEST(Presets, LengthsBeyondTheModelAreLeftOutAloud) {
  MemoryFileSystem files;
  ASSERT_TRUE(files.make_directories("data/longbench").ok());
  ASSERT_TRUE(write_file_atomically(files, "data/longbench/multi_news.jsonl", "{}").ok());
  BenchmarkRequest wishes;
  wishes.data_dir = "data";
  const auto got = preset_requests(preset("compression-paper"), wishes, shape(3, 64, 2048), files);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->requests.front().contexts, std::vector<int>{2048});  // records are cut to the context
  EXPECT_EQ(got->requests.back().contexts, (std::vector<int>{1024, 2048}));
  EXPECT_TRUE(says(got->notes, "run at 1024, 2048"));
  const auto none = preset_requests(preset("offloading-paper"), {}, shape(3, 64, 512), files);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kExhausted);
  for (const char* hint : {"have 2048 tokens", "holds 512", "--context", "--data"})
    EXPECT_NE(none.status().message().find(hint), std::string::npos) << none.status().message();
}

// Where only files are missing, the context is not to blame: another sentence, another code, another remedy.
TEST(Presets, ThatNeedDataSaySo) {
  MemoryFileSystem files;
  const Preset& paper = preset("compression-paper:form=paper");
  const Status without = preset_requests(paper, {}, shape(3, 64, 8192), files).status();
  EXPECT_EQ(without.code(), Code::kUsage);
  EXPECT_NE(without.message().find("--data"), std::string::npos) << without.message();
  EXPECT_EQ(without.message().find("8192"), std::string::npos) << without.message();
  BenchmarkRequest wishes;
  wishes.data_dir = "data";
  const Status elsewhere = preset_requests(paper, wishes, shape(3, 64, 8192), files).status();
  EXPECT_EQ(elsewhere.code(), Code::kBadInput);
  EXPECT_NE(elsewhere.message().find("kvartet data check data"), std::string::npos) << elsewhere.message();
  EXPECT_NE(elsewhere.message().find("longbench/"), std::string::npos) << elsewhere.message();
}

TEST(Presets, FlagsReplaceParts) {
  MemoryFileSystem files;
  BenchmarkRequest wishes;
  wishes.tasks = {"docqa", "chat"};
  wishes.samples = 3;
  wishes.seed = 7;
  const auto got = preset_requests(preset("compression-paper"), wishes, shape(3, 64, 8192), files);
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->requests.size(), 2U);
  EXPECT_EQ(got->requests[0].contexts, (std::vector<int>{1024, 2048, 4096, 6144}));  // as the preset has docqa
  EXPECT_EQ(got->requests[0].tasks, std::vector<std::string>{"docqa"});              // with one question a document, as asked
  EXPECT_EQ(got->requests[1].contexts, std::vector<int>{8192});                      // which it does not say of chat
  EXPECT_EQ(got->requests[1].samples, 3);
  EXPECT_EQ(got->requests[1].seed, 7U);
  wishes.contexts = {1500};
  EXPECT_EQ(preset_requests(preset("compression-paper"), wishes, shape(3, 64, 8192), files)->requests[0].contexts,
            std::vector<int>{1500});
}

TEST(Estimate, AddsPromptsAnswersAndReferences) {
  PlannedTask task;
  task.samples.resize(2);
  for (PreparedSample& s : task.samples) {
    s.record.prompt_tokens = 1000;
    s.sample.max_new_tokens = 50;
    s.gold.assign(10, Token{1});
  }
  task.samples[1].record.prompt_tokens = 2000;
  const ModelShape s = shape(2, 64, 8192);
  const std::vector<CacheSpec> specs = {*parse_spec("full"), *parse_spec("oracle")};
  const RunEstimate got = estimate_run({&task, 1}, specs, s, {.prefill_tokens_per_s = 100, .decode_tokens_per_s = 10});
  // 3,000 prompt tokens; 2 x 2 answers of 50; references: 2 x 10 in one pass, 2 x 10 one by one.
  EXPECT_NEAR(got.hours * 3600, 30 + 4 * 5 + 0.2 + 2, 1e-9);
  const auto bytes = [&](const CacheSpec& spec) { return predict_bytes(spec, s, 2000, 50)->allocated; };
  EXPECT_EQ(got.cache_bytes, bytes(specs[0]) + bytes(specs[1]));
  EXPECT_LT(got.fast_bytes, got.cache_bytes);
}

}  // namespace
}  // namespace kvartet
