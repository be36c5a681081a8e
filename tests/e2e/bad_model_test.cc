// Model files that are missing, empty, cut, garbage, too big, of another architecture, or hold NaN: through every command.
#include <gtest/gtest.h>

#include "model/gguf_file.h"
#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

// Gives the feed-forward layers of an F32 model `width` channels, in its header only. The size the file must then have;
// nothing when the header is not as expected.
std::optional<std::uint64_t> widen_feed_forward(const std::string& path, std::uint32_t width) {
  std::string bytes = read_text(path);
  const std::size_t key = bytes.find("llama.feed_forward_length");
  if (key == std::string::npos) return std::nullopt;
  const std::size_t value = key + std::string("llama.feed_forward_length").size() + 4;  // behind the type
  std::memcpy(bytes.data() + value, &width, 4);

  std::uint64_t old_size = 0;
  std::uint64_t size = 0;
  std::size_t at = bytes.find("token_embd.weight", value) - 8;
  // One record: length and bytes of the name, number of dimensions, each of them, type, offset.
  for (;;) {
    std::uint64_t name = 0;
    std::memcpy(&name, bytes.data() + at, 8);
    const std::size_t begin = at + 8;
    if (name == 0 || name > 64) break;  // the padding behind the last record
    const std::string text = bytes.substr(begin, name);
    std::uint32_t dimensions = 0;
    std::memcpy(&dimensions, bytes.data() + begin + name, 4);
    std::uint64_t floats = 1;
    std::uint64_t old_floats = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      char* place = bytes.data() + begin + name + 4 + 8 * d;
      std::uint64_t length = 0;
      std::memcpy(&length, place, 8);
      old_floats *= length;
      const bool widened = text.find("ffn_") != std::string::npos &&
                           d == (text.find("ffn_down") != std::string::npos ? 0U : 1U) && text.find("norm") == std::string::npos;
      if (widened) length = width;
      std::memcpy(place, &length, 8);
      floats *= length;
    }
    const std::size_t offset_at = begin + name + 4 + 8 * dimensions + 4;
    std::uint64_t offset = 0;
    std::memcpy(&offset, bytes.data() + offset_at, 8);
    if (offset != old_size) return std::nullopt;
    std::memcpy(bytes.data() + offset_at, &size, 8);
    old_size += old_floats * sizeof(float);  // all sizes here are multiples of the alignment
    size += floats * sizeof(float);
    at = offset_at + 8;
  }
  write_text(path, bytes);
  return bytes.size() - old_size + size;
}

class BadModel : public testing::Test {
 protected:
  // Every command that reads a model, on this one.
  std::vector<Arguments> commands(const std::string& model) const {
    return {{"run", "-m", model, "--threads", "1", "-p", "text", "-n", "2"},
            {"explain", "-m", model, "--kv", "full", "--prompt-tokens", "100"},
            {"model", model},
            {"bench", "-m", model, "--threads", "1", "--kv", "full", "--task", "needle", "--data", folder_.path(), "--context",
             "900", "-o", out_},
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

// A sparse file that claims 400 GB of weights: it is as long as it says, but does not fit.
TEST_F(BadModel, TooBigForMemory) {
  TinyModelOptions options = wide_heads();
  options.layers = 512;
  options.ffn = 32;
  options.heads = options.kv_heads = 1;
  const std::string path = tiny_model(folder_, options, "big.gguf");
  constexpr std::uint32_t kFfn = std::uint32_t{1} << 20;
  const std::optional<std::uint64_t> size = widen_feed_forward(path, kFfn);
  ASSERT_TRUE(size.has_value());
  std::error_code error;
  std::filesystem::resize_file(path, *size, error);
  if (error) GTEST_SKIP() << "this file system makes no sparse file of " << *size << " bytes: " << error.message();
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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs terabytes of address space for itself";
#endif
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
    for (const std::size_t count : {std::size_t{1}, std::size_t{45'000}}) {
      const std::string model = tiny_model(folder_, wide_heads(), "spoilt.gguf");
      spoil_last_weights(model, value, count);
      for (const char* kv : {"full", "f32", "q8_0", "kivi:bits=4", "streamingllm:window=16", "snapkv:budget=0.25"}) {
        const Finished f = run({"run", "-m", model, "--threads", "1", "-p", std::string(300, 'x'), "-n", "2", "--kv", kv});
        EXPECT_TRUE(is_refused(f, 3)) << kv << " " << value << " " << count;
      }
      EXPECT_TRUE(is_refused(
          run({"fidelity", "-m", model, "--threads", "1", "--kv", "q8_0", "-f", text_, "--context", "64", "--tokens", "8"}), 3));
      EXPECT_TRUE(is_refused(
          run({"speed", "-m", model, "--threads", "1", "--kv", "full", "--depth", "8", "--rounds", "1", "--prefill-rounds", "1"}),
          3));
    }
  }
}

// Queries are neither stored nor logits, and softmax gives their logits no weight: of all weights these could be spoilt
// unnoticed.
TEST_F(BadModel, WeightsOfQueriesThatAreNotFinite) {
  const std::string model = tiny_model(folder_, wide_heads(), "spoilt.gguf");
  const auto file = GgufFile::open(model).value();
  const std::size_t at = file->tensor_offset(*file->tensor("blk.1.attn_q.weight"));
  std::string bytes = read_text(model);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + at, &nan, sizeof(nan));
  write_text(model, bytes);
  for (const char* kv : {"full", "kivi:bits=4", "yakv"}) {
    const Finished f = run({"run", "-m", model, "--threads", "1", "-p", std::string(300, 'x'), "-n", "2", "--kv", kv});
    EXPECT_TRUE(is_refused(f, 3, "layer 1: the queries of position 0 are not all finite")) << kv;
  }
}

}  // namespace
}  // namespace kvartet::e2e
