// Model files that are missing, empty, cut, garbage, too big, of another architecture, or hold NaN: through every command.
#include <gtest/gtest.h>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class BadModel : public testing::Test {
 protected:
  // Every command that reads a model, on this one.
  std::vector<Arguments> commands(const std::string& model) const {
    return {{"run", "-m", model, "--threads", "1", "-p", "text", "-n", "2"},
            {"explain", "-m", model, "--kv", "full", "--prompt-tokens", "100"},
            {"model", model},
            {"bench", "-m", model, "--threads", "1", "--kv", "full", "--task", "needle", "--data", folder_.path(), "--context", "900", "-o", out_},
            {"fidelity", "-m", model, "--threads", "1", "--kv", "q8_0", "-f", text_, "--context", "64", "--tokens", "8"},
            {"speed", "-m", model, "--threads", "1", "--kv", "full", "--depth", "8"}};
  }
  void expect_refused(const std::string& model, int code, const std::string& about) const {
    for (const Arguments& command : commands(model)) {
      EXPECT_TRUE(is_refused(run(command), code, about)) << command[0] << " of " << model;
    }
    EXPECT_FALSE(std::filesystem::exists(out_));
  }

  ScratchFolder folder_;
  std::string model_ = tiny_model(folder_, wide_heads());
  std::string text_ = folder_.file("text.txt", std::string(200, 'x'));
  std::string out_ = folder_.path("out");
};

TEST_F(BadModel, MissingEmptyOrAFolder) {
  expect_refused(folder_.path("missing.gguf"), 3, "missing.gguf");
  expect_refused(folder_.file("empty.gguf", ""), 3, "empty.gguf");
  expect_refused(folder_.path(), 3, folder_.path());
  expect_refused("nosuchmodel", 3, "nosuchmodel");
}

TEST_F(BadModel, Garbage) {
  std::string noise(5000, '\0');
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>((i * 2654435761U) >> 13);
  expect_refused(folder_.file("noise.gguf", noise), 3, "noise.gguf");
  expect_refused(folder_.file("magic.gguf", "GGUF" + noise), 3, "magic.gguf");
  expect_refused(folder_.file("text.gguf", "This is no model."), 3, "text.gguf");
}

TEST_F(BadModel, CutInTheMetadataOrTheData) {
  const std::string whole = read_text(model_);
  for (std::size_t length : {std::size_t{3}, std::size_t{20}, std::size_t{100}, std::size_t{1000}, whole.size() / 2}) {
    expect_refused(folder_.file("cut.gguf", whole.substr(0, length)), 3, "cut.gguf");
  }
  // C1: the last byte of the last tensor.
  expect_refused(folder_.file("cut.gguf", whole.substr(0, whole.size() - 1)), 3, "cut.gguf");
}

TEST_F(BadModel, UnknownArchitecture) {
  patch(model_, "llama", "gamma");
  expect_refused(model_, 3, "gamma");
}

// A sparse file that claims 192 GiB of weights: it is as long as it says, but no machine here holds it.
TEST_F(BadModel, TooBigForMemory) {
  TinyModelOptions options = wide_heads();
  options.layers = 1;
  const std::string path = tiny_model(folder_, options, "big.gguf");
  std::string bytes = read_text(path);
  constexpr std::uint64_t kFfn = std::uint64_t{1} << 28;
  const auto put = [&](std::size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof(value)); };
  const auto behind = [&](const std::string& name) { return bytes.find(name) + name.size(); };

  put(behind("llama.feed_forward_length") + 4, static_cast<std::uint32_t>(kFfn));
  std::uint64_t offset = 0;
  for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"}) {
    const std::size_t at = behind(name);  // dimensions, both sizes, type, offset
    const bool down = std::string(name).find("down") != std::string::npos;
    if (offset == 0) std::memcpy(&offset, bytes.data() + at + 24, sizeof(offset));
    put(at + (down ? 4 : 12), kFfn);
    put(at + 24, offset);
    offset += kFfn * static_cast<std::uint64_t>(options.hidden) * sizeof(float);
  }
  write_text(path, bytes);
  std::error_code error;
  std::filesystem::resize_file(path, bytes.size() + offset, error);
  if (error) GTEST_SKIP() << "this file system makes no sparse file of 192 GiB: " << error.message();
  for (const Arguments& command : commands(path)) {
    if (command[0] == "model" || command[0] == "explain") {
      EXPECT_TRUE(is_ok(run(command)));  // neither reads weights
    } else {
      EXPECT_TRUE(is_refused(run(command), 4, "memory")) << command[0];
    }
  }
}

// Memory that the process may not have (ulimit -v): from far too little to enough, it ends well or with exit 4.
TEST_F(BadModel, LittleAddressSpace) {
  TinyModelOptions options = wide_heads();
  options.vocab = 50'000;
  options.hidden = 128;
  const std::string model = tiny_model(folder_, options, "wide.gguf");
  const std::string prompt = folder_.file("prompt.txt", std::string(900, 'x'));
  int refused = 0;
  int worked = 0;
  for (rlim_t megabytes = 60; megabytes <= 420; megabytes += 20) {
    Surroundings little;
    little.address_space = megabytes << 20;
    const Finished f = run({"run", "-m", model, "--threads", "1", "--raw", "-f", prompt, "-n", "2", "--json"}, little);
    if (f.code == 127 || f.err.find("loading shared") != std::string::npos) continue;  // not even the libraries fit
    if (f.code == 0) {
      ++worked;
    } else {
      ++refused;
      EXPECT_TRUE(is_refused(f, 4)) << megabytes << " MB";
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(worked, 0);
}

// NaN or Inf in a row. One spoilt weight reaches the logits only; a spoilt layer also its keys and values.
TEST_F(BadModel, WeightsThatAreNotFinite) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{20'000}}) {
      const std::string model = tiny_model(folder_, wide_heads(), "spoilt.gguf");
      spoil_last_weights(model, value, count);
      for (const char* kv : {"full", "f32", "q8_0", "kivi:bits=4", "streamingllm:window=16", "snapkv:budget=0.25"}) {
        const Finished f = run({"run", "-m", model, "--threads", "1", "-p", std::string(300, 'x'), "-n", "2", "--kv", kv});
        EXPECT_TRUE(is_refused(f, 3)) << kv << " " << value << " " << count;
      }
      EXPECT_TRUE(is_refused(run({"fidelity", "-m", model, "--threads", "1", "--kv", "q8_0", "-f", text_, "--context", "64", "--tokens", "8"}), 3));
      EXPECT_TRUE(is_refused(run({"speed", "-m", model, "--threads", "1", "--kv", "full", "--depth", "8", "--rounds", "1", "--prefill-rounds", "1"}), 3));
    }
  }
}

}  // namespace
}  // namespace kvartet::e2e
