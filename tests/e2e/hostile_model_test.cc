// Model files made to harm (user-needs C1, C2, C3): each defect has its own sentence, and none costs memory.
#include <ggml-cpp.h>
#include <gguf.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <set>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

// Peak resident memory of the largest child so far, in kB.
long largest_child() {
  rusage usage = {};
  getrusage(RUSAGE_CHILDREN, &usage);
  return usage.ru_maxrss;
}

class HostileModel : public testing::Test {
 protected:
  // A place in the sound file: `offset` bytes behind the first occurrence of `text`.
  std::size_t behind(const std::string& text, std::size_t offset = 0) const {
    const std::size_t at = sound_.find(text);
    EXPECT_NE(at, std::string::npos) << text;
    return at + text.size() + offset;
  }
  template <typename T>
  std::string with(std::size_t place, T value) const {
    std::string bytes = sound_;
    std::memcpy(bytes.data() + place, &value, sizeof(value));
    return bytes;
  }
  std::string renamed(const std::string& from, const std::string& to) const {
    std::string bytes = sound_;
    EXPECT_EQ(from.size(), to.size());
    bytes.replace(bytes.find(from), from.size(), to);
    return bytes;
  }

  // The sentence with which every command that reads a model refuses the file.
  std::string refusal(const std::string& bytes, const std::string& about) const {
    const std::string model = folder_.file("hostile.gguf", bytes);
    const Finished facts = run({"model", model});
    EXPECT_TRUE(is_refused(facts, 3, about));
    const Finished answer = run({"run", "-m", model, "--threads", "1", "-p", "text", "-n", "1"});
    EXPECT_TRUE(is_refused(answer, 3, about));
    EXPECT_EQ(answer.err, facts.err);
    return facts.err;
  }

  ScratchFolder folder_;
  std::string path_ = tiny_model(folder_, wide_heads());
  std::string sound_ = read_text(path_);
};

// A record: length and bytes of the name, number of dimensions, each of them (u64), type (u32), offset (u64).
constexpr const char* kMatrix = "blk.1.ffn_down.weight";
constexpr std::size_t kFirstDimension = 4;
constexpr std::size_t kOffsetOfMatrix = 4 + 2 * 8 + 4;

TEST_F(HostileModel, C1TensorPastTheEndOfTheFile) {
  const std::string cut = refusal(sound_.substr(0, sound_.size() - 1), "is cut off");
  EXPECT_NE(cut.find("tensor 'blk.1."), std::string::npos) << cut;
  EXPECT_NE(cut.find(std::to_string(sound_.size() - 1)), std::string::npos) << "the bytes that are there: " << cut;
  EXPECT_NE(cut.find(std::to_string(sound_.size())), std::string::npos) << "the bytes that are needed: " << cut;

  const std::string wrapped = refusal(with(behind(kMatrix, kOffsetOfMatrix), ~std::uint64_t{31}), "impossible offset");
  EXPECT_NE(wrapped.find(kMatrix), std::string::npos) << wrapped;
}

TEST_F(HostileModel, C2HostileMetadata) {
  ASSERT_TRUE(is_ok(run({"model", path_})));
  ASSERT_TRUE(is_ok(run({"run", "-m", path_, "--threads", "1", "-p", "text", "-n", "1"})));
  const long sound = largest_child();

  constexpr auto kHuge = std::uint64_t{1} << 60;
  // A key as long as general.alignment, which the file lacks; four bytes of type and four of value follow it.
  const std::string alignment = renamed("llama.block_count", "general.alignment");
  const auto aligned = [&](std::uint32_t type, std::uint32_t value) {
    std::string bytes = alignment;
    std::memcpy(bytes.data() + behind("llama.block_count"), &type, 4);
    std::memcpy(bytes.data() + behind("llama.block_count") + 4, &value, 4);
    return bytes;
  };
  const std::size_t types = behind("tokenizer.ggml.token_type");  // type (array), type of its elements, number of them
  const std::size_t name = behind("general.name");                // type (string), length, bytes
  const std::vector<std::pair<std::string, const char*>> cases = {
      {with(behind(kMatrix, kFirstDimension), std::uint64_t{0}), "impossible size 0"},
      {with(behind(kMatrix), std::uint32_t{5}), "has 5 dimensions"},
      {with(behind(kMatrix), std::uint32_t{0}), "has 0 dimensions"},
      {with(sound_.find("general.name") - 8, std::uint64_t{0}), "no proper name"},
      {aligned(GGUF_TYPE_INT32, 32), "general.alignment is not a 32-bit number"},
      {aligned(GGUF_TYPE_UINT32, 0), "alignment is 0"},
      {aligned(GGUF_TYPE_UINT32, 24), "alignment is 24"},
      {with(behind("llama.attention.head_count", 4), std::uint32_t{0}), "head_count' is 0"},
      {with(behind("llama.block_count", 4), std::uint32_t{0}), "block_count' is 0"},
      {with(name + 4, kHuge), "inside the metadata value 'general.name'"},
      {with(sound_.find("general.name") - 8, kHuge), "inside metadata pair"},
      {with(types + 4, std::uint32_t{GGUF_TYPE_ARRAY}), "elements of the unusable type 9"},
      {with(types + 4, std::uint32_t{GGUF_TYPE_FLOAT32}), "an array of 4-byte whole numbers is needed"},
      {with(types + 8, kHuge), "the metadata array 'tokenizer.ggml.token_type' of"},
      {with(behind("tokenizer.ggml.tokens", 8), kHuge), "the metadata array 'tokenizer.ggml.tokens' of"},
      {with(8, kHuge), "it claims"},  // tensors
      {with(16, kHuge), "claims 1152921504606846976 metadata pairs"},
  };
  std::set<std::string> sentences;
  for (const auto& [bytes, about] : cases) sentences.insert(refusal(bytes, about));
  EXPECT_EQ(sentences.size(), cases.size()) << "two defects share a sentence";
  EXPECT_LE(largest_child(), sound + 8192) << "kB: a refusal took more memory than an answer";
}

TEST_F(HostileModel, C3DuplicateTensorName) {
  const std::string twice = refusal(renamed(kMatrix, "blk.0.ffn_down.weight"), "'blk.0.ffn_down.weight' appears twice");
  EXPECT_NE(twice.find("hostile.gguf"), std::string::npos) << twice;

  // Across shards: one of several parts is refused, whatever it holds, so that no other part's tensors can collide.
  const gguf_context_ptr metadata(gguf_init_from_file(path_.c_str(), {.no_alloc = true, .ctx = nullptr}));
  ASSERT_NE(metadata, nullptr);
  gguf_set_val_u16(metadata.get(), "split.count", 2);
  gguf_set_val_u16(metadata.get(), "split.no", 0);
  const std::string part = folder_.path("part-00001-of-00002.gguf");
  ASSERT_TRUE(gguf_write_to_file(metadata.get(), part.c_str(), true));
  std::ofstream(part, std::ios::binary | std::ios::app) << sound_.substr(gguf_get_data_offset(metadata.get()));
  const Finished f = run({"model", part});
  EXPECT_TRUE(is_refused(f, 3, "part-00001-of-00002.gguf"));
  EXPECT_NE(f.err.find("one of 2 parts"), std::string::npos) << f.err;
}

}  // namespace
}  // namespace kvartet::e2e
