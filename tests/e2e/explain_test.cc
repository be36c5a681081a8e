// kvartet explain predicts exactly the bytes that kvartet run then counts.
#include <gtest/gtest.h>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

const std::vector<std::string> kSpecs = {
    "full",
    "f32",
    "q8_0",
    "kivi:bits=4",
    "kivi:bits=2",
    "kivi:bits=4/2,residual=64",
    "kivi:bits=8,group=32/64",
    "q8_0/kivi:bits=2",
    "streamingllm:window=64",
    "streamingllm:sinks=0,budget=0.5",
    "streamingllm:window=64+q8_0",
    "snapkv:budget=0.25",
    "snapkv:budget=100,window=16,kernel=5,pool=avg",
    "snapkv:budget=0.25+kivi:bits=4",
    "snapkv:budget=0.5+kivi:bits=2,residual=32",
};

void expect_explain_equals_run(TinyModelOptions options, const std::vector<std::string>& specs) {
  const ScratchFolder folder;
  options.head_dim = 64;
  options.context = 1024;
  const std::string model = tiny_model(folder, options);
  for (const int prompt : {1, 77, 517}) {
    const std::string text = folder.file("text.txt", std::string(static_cast<std::size_t>(prompt), 'x'));
    for (const std::string& spec : specs) {
      const Arguments kv = {"-m", model, "--kv", spec, "--json"};
      // The last token of an answer is never fed back, so five answered tokens leave four rows.
      const Finished ran = run(Arguments{"run", "--threads", "1", "--raw", "-f", text, "-n", "5"} + kv);
      ASSERT_TRUE(is_ok(ran)) << spec;
      const Json counted = ran.json();
      const std::string tokens = std::to_string(prompt);
      const std::string later =
          std::to_string(counted["completion_tokens"].get<int>() - (counted["finish_reason"] == "length" ? 1 : 0));
      const Json before = run(Arguments{"explain", "--prompt-tokens", tokens} + kv).json();
      const Json after = run(Arguments{"explain", "--prompt-tokens", tokens, "--output-tokens", later} + kv).json();
      const std::string where = spec + " at " + tokens;
      EXPECT_EQ(before["spec"], counted["kv"]["spec"]) << where;
      EXPECT_EQ(before["bytes_total"], counted["kv"]["allocated_bytes"]) << where;
      EXPECT_EQ(before["live_bytes"], counted["kv"]["live_bytes"]) << where;
      EXPECT_EQ(before["bytes_by_tier"], counted["kv"]["bytes_by_tier"]) << where;
      EXPECT_EQ(before["compression_ratio"], counted["kv"]["compression_ratio"]) << where;
      const Json& end = counted["answers"][0]["kv_end"];
      EXPECT_EQ(after["bytes_total"], end["allocated_bytes"]) << where << " + " << later;
      EXPECT_EQ(after["live_bytes"], end["live_bytes"]) << where << " + " << later;
    }
  }
}

TEST(Explain, EqualsWhatRunCounts) { expect_explain_equals_run({}, kSpecs); }

// Gemma 3 with a window in every second layer, and a Mistral: bytes are those inside the windows, on both sides of the ratio.
TEST(Explain, EqualsWhatRunCountsInsideWindows) {
  const std::vector<std::string> specs = {
      "full", "q8_0", "kivi:bits=4,residual=32", "kivi:bits=2", "streamingllm:window=64", "snapkv:budget=0.25+kivi:bits=4"};
  expect_explain_equals_run({.architecture = "gemma3", .layers = 4, .window = 100, .window_period = 2}, specs);
  expect_explain_equals_run({.window = 150}, specs);
}

// A window is never a saving: `full` keeps its ratio, which only padding lowers.
TEST(Explain, AWindowIsNoCompression) {
  const ScratchFolder folder;
  TinyModelOptions options = wide_heads();
  options.window = 256;
  const Json d = run({"explain", "-m", tiny_model(folder, options), "--kv", "full", "--prompt-tokens", "900", "--json"}).json();
  EXPECT_EQ(d["live_bytes"], 256 * 2 * 2 * 2 * 32 * 2);  // window, sides, layers, KV heads, head_dim, f16
  EXPECT_LE(d["compression_ratio"].get<double>(), 1);
  EXPECT_GE(d["compression_ratio"].get<double>(), 0.75);
}

TEST(Explain, SeveralCachesAreRowsOfOneDocument) {
  const ScratchFolder folder;
  const std::string model = tiny_model(folder, wide_heads());
  const Finished f = run({"explain", "-m", model, "--kv", "full", "--kv", "kivi:bits=2", "--prompt-tokens", "700", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json();
  ASSERT_EQ(d["rows"].size(), 2U);
  EXPECT_GT(d["rows"][0]["bytes_total"], d["rows"][1]["bytes_total"]);
  EXPECT_EQ(d["rows"][0]["bytes_per_token"].get<double>() * 700, d["rows"][0]["bytes_total"].get<double>());
}

}  // namespace
}  // namespace kvartet::e2e
