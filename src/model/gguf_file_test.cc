// Hostile and damaged model files: each must end in one sentence, never in ggml's abort (issue: bad input).
#include "model/gguf_file.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "core/rng.h"
#include "model/model_facts.h"
#include "model/test_models.h"
#include "model/transformer.h"
#include "model/vocabulary.h"

namespace kvartet {
namespace {

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string write_bytes(const std::string& name, const std::string& bytes) {
  const std::string path = test_file(name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string tiny_bytes(const TinyModelOptions& options = {}) { return read_bytes(tiny_model_file(options)); }

// The sentence with which loading the weights fails; "" when it does not.
Status load_status(const std::string& path) {
  auto model = Transformer::load(path, {});
  return model.ok() ? Status() : std::move(model).status();
}

void expect_bad(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), Code::kBadInput) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << "'" << status.message() << "' lacks '" << part << "'";
}

// A tiny model whose metadata or tensors were changed through ggml's own writer.
std::string changed_model(const TinyModelOptions& options, const std::function<void(gguf_context*)>& change) {
  const std::string path = tiny_model_file(options);
  ggml_context* raw = nullptr;
  const gguf_context_ptr original(gguf_init_from_file(path.c_str(), {.no_alloc = false, .ctx = &raw}));
  const ggml_context_ptr tensors(raw);
  const gguf_context_ptr changed(gguf_init_empty());
  gguf_set_kv(changed.get(), original.get());
  for (std::int64_t i = 0; i < gguf_get_n_tensors(original.get()); ++i) {
    gguf_add_tensor(changed.get(), ggml_get_tensor(raw, gguf_get_tensor_name(original.get(), i)));
  }
  change(changed.get());
  EXPECT_TRUE(gguf_write_to_file(changed.get(), path.c_str(), false));
  return path;
}

TEST(GgufFile, MissingFolderAndEmpty) {
  expect_bad(load_status(test_file("nowhere.gguf")), "there is no file");
  expect_bad(load_status(testing::TempDir()), "is a folder");
  expect_bad(load_status(write_bytes("empty.gguf", "")), "it is empty");
}

TEST(GgufFile, Garbage) {
  expect_bad(load_status(write_bytes("text.gguf", "This is a letter to my bank.")), "does not start with the letters GGUF");
  expect_bad(load_status(write_bytes("short.gguf", "GGUF")), "ends or is damaged inside its first 24 bytes");
  std::string bytes = tiny_bytes();
  bytes[4] = 1;
  expect_bad(load_status(write_bytes("version.gguf", bytes)), "its version is 1");
  bytes = tiny_bytes();
  std::memset(&bytes[8], 0x7f, 8);
  expect_bad(load_status(write_bytes("counts.gguf", bytes)), "it claims");
}

TEST(GgufFile, CutAnywhere) {
  const std::string bytes = tiny_bytes();
  const std::size_t data = 11000;  // about where the metadata and tensor records end
  int in_metadata = 0;
  for (std::size_t size = 1; size < bytes.size(); size += size < data ? 61 : 20011) {
    const Status status = load_status(write_bytes("cut.gguf", bytes.substr(0, size)));
    ASSERT_EQ(status.code(), Code::kBadInput) << size;
    in_metadata += status.message().find("ends or is damaged") != std::string::npos;
  }
  EXPECT_GT(in_metadata, 50);
  expect_bad(load_status(write_bytes("cut.gguf", bytes.substr(0, bytes.size() - 5000))), "is cut off: the data of tensor");
}

// Every single byte of the header may be anything: a Status or a model that loads, never an abort.
TEST(GgufFile, FlippedHeaderBytes) {
  const std::string bytes = tiny_bytes({.layers = 1, .hidden = 32, .ffn = 32, .heads = 2, .kv_heads = 1});
  const std::size_t header = 9000;  // metadata and tensor records of this model
  Rng rng(11);
  int refused = 0;
  for (int i = 0; i < 250; ++i) {
    std::string damaged = bytes;
    for (int flips = 0; flips < 3; ++flips) damaged[rng.below(header)] = static_cast<char>(rng.next());
    const Status status = load_status(write_bytes("flipped.gguf", damaged));
    EXPECT_TRUE(status.ok() || status.code() == Code::kBadInput) << status.message();
    refused += !status.ok();
  }
  EXPECT_GT(refused, 20);
}

struct MetadataCase {
  const char* name;
  std::function<void(gguf_context*)> change;
  const char* sentence;
};
void PrintTo(const MetadataCase& c, std::ostream* out) { *out << c.name; }

class WrongMetadata : public testing::TestWithParam<MetadataCase> {};

TEST_P(WrongMetadata, IsRefusedWithASentence) {
  const std::string path = changed_model({}, GetParam().change);
  expect_bad(load_status(path), GetParam().sentence);
  const auto shape = read_model_shape(path);
  EXPECT_TRUE(shape.ok() || shape.status().code() == Code::kBadInput);
}

auto set_count(const char* key, std::uint32_t value) {
  return [key, value](gguf_context* g) { gguf_set_val_u32(g, key, value); };
}
auto set_text(const char* key, const char* value) {
  return [key, value](gguf_context* g) { gguf_set_val_str(g, key, value); };
}
auto remove(const char* key) {
  return [key](gguf_context* g) { gguf_remove_key(g, key); };
}
void set_tokens(gguf_context* g, std::vector<const char*> tokens) {
  gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens.data(), tokens.size());
}

INSTANTIATE_TEST_SUITE_P(
    Keys, WrongMetadata,
    testing::Values(
        MetadataCase{"unknown_architecture", set_text("general.architecture", "mamba"), "supported are: llama, qwen2"},
        MetadataCase{"no_architecture", remove("general.architecture"), "lacks the metadata key 'general.architecture'"},
        MetadataCase{"architecture_of_wrong_type", set_count("general.architecture", 3),
                     "has the type u32, but a string is needed"},
        MetadataCase{"no_blocks", set_count("llama.block_count", 0), "'llama.block_count' is 0"},
        MetadataCase{"absurd_blocks", set_count("llama.block_count", 4000000000U), "'llama.block_count' is 4000000000"},
        MetadataCase{"more_blocks", set_count("llama.block_count", 3), "lacks the tensor 'blk.2."},
        MetadataCase{"fewer_blocks", set_count("llama.block_count", 1), "a plain llama model does not have"},
        MetadataCase{"zero_heads", set_count("llama.attention.head_count", 0), "'llama.attention.head_count' is 0"},
        MetadataCase{"zero_kv_heads", set_count("llama.attention.head_count_kv", 0), "'llama.attention.head_count_kv' is 0"},
        MetadataCase{"heads_do_not_divide", set_count("llama.attention.head_count_kv", 3), "KV heads do not divide"},
        MetadataCase{"odd_head_dim", set_count("llama.attention.key_length", 15), "equal, even"},
        MetadataCase{"zero_width", set_count("llama.embedding_length", 0), "'llama.embedding_length' is 0"},
        MetadataCase{"other_width", set_count("llama.embedding_length", 128), "but its metadata says"},
        MetadataCase{"absurd_width", set_count("llama.feed_forward_length", 0xffffffffU),
                     "'llama.feed_forward_length' is 4294967295"},
        MetadataCase{"zero_context", set_count("llama.context_length", 0), "'llama.context_length' is 0"},
        MetadataCase{"text_context", set_text("llama.context_length", "long"), "has the type str, but a whole number is needed"},
        MetadataCase{"negative_context", [](gguf_context* g) { gguf_set_val_i32(g, "llama.context_length", -5); },
                     "cannot be negative"},
        MetadataCase{"epsilon_nan", [](gguf_context* g) { gguf_set_val_f32(g, "llama.attention.layer_norm_rms_epsilon", NAN); },
                     "the norm epsilon"},
        MetadataCase{"no_epsilon", remove("llama.attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon"},
        MetadataCase{"rope_base_zero", [](gguf_context* g) { gguf_set_val_f32(g, "llama.rope.freq_base", 0); }, "the RoPE base"},
        MetadataCase{"longrope", set_text("llama.rope.scaling.type", "longrope"), "RoPE scaling of type 'longrope'"},
        MetadataCase{"half_rope", set_count("llama.rope.dimension_count", 8), "rotates 8 of 16 channels"},
        MetadataCase{"one_of_parts", set_count("split.count", 2), "one of 2 parts"},
        MetadataCase{"no_vocabulary", remove("tokenizer.ggml.tokens"), "has no vocabulary"},
        MetadataCase{"vocabulary_none", set_text("tokenizer.ggml.model", "no_vocab"), "has no vocabulary"},
        MetadataCase{"no_merges", remove("tokenizer.ggml.merges"), "lacks the metadata key 'tokenizer.ggml.merges'"},
        MetadataCase{"empty_vocabulary", [](gguf_context* g) { set_tokens(g, {}); }, "a vocabulary of 0 tokens"},
        MetadataCase{"duplicate_tokens", [](gguf_context* g) { set_tokens(g, {"a", "b", "a"}); }, "tokens 0 and 2 are both 'a'"},
        MetadataCase{"few_tokens", [](gguf_context* g) { set_tokens(g, {"a", "b"}); }, "has 259 entries for 2 tokens"},
        MetadataCase{"special_out_of_range", set_count("tokenizer.ggml.eos_token_id", 5000), "eos_token_id is 5000"},
        MetadataCase{"tokens_of_wrong_type", set_text("tokenizer.ggml.tokens", "a b c"), "an array of strings is needed"}),
    [](const auto& info) { return info.param.name; });

// The same shape, but the biases that only qwen2 has.
TEST(GgufFile, TensorsOfAnotherArchitecture) {
  std::string bytes = tiny_bytes({.architecture = "qwen2"});
  for (std::size_t at = bytes.find("attn_k.bias"); at != std::string::npos; at = bytes.find("attn_k.bias", at + 1))
    bytes.replace(at, 11, "attn_k.blas");
  expect_bad(load_status(write_bytes("renamed.gguf", bytes)), "lacks the tensor 'blk.0.attn_k.bias'");
}

// A change inside the record of a tensor: after its name come the number of dimensions, the sizes, type and offset.
std::string with_record_change(const std::string& tensor, std::size_t offset, std::uint64_t value, std::size_t width) {
  std::string bytes = tiny_bytes();
  const std::size_t at = bytes.find(tensor) + tensor.size();
  std::memcpy(&bytes[at + offset], &value, width);
  return write_bytes("record.gguf", bytes);
}

TEST(GgufFile, WrongTensorRecords) {
  const std::string name = "blk.1.ffn_down.weight";
  expect_bad(load_status(with_record_change(name, 0, 9, 4)), "has 9 dimensions");
  expect_bad(load_status(with_record_change(name, 4, 0, 8)), "impossible size 0 in dimension 1");
  expect_bad(load_status(with_record_change(name, 4, 1ULL << 40, 8)), "impossible size");
  expect_bad(load_status(with_record_change(name, 12, (1ULL << 31) - 1, 8)), "is cut off");
  expect_bad(load_status(with_record_change(name, 20, 77, 4)), "unknown or withdrawn type 77");
  expect_bad(load_status(with_record_change(name, 20, 4, 4)), "unknown or withdrawn type 4");
  expect_bad(load_status(with_record_change(name, 20, GGML_TYPE_Q4_K, 4)), "needs a multiple of 256");
  expect_bad(load_status(with_record_change(name, 24, 8, 8)), "is not aligned");
  expect_bad(load_status(with_record_change(name, 24, ~0ULL - 31, 8)), "impossible offset");
  expect_bad(load_status(with_record_change(name, 24, 1ULL << 40, 8)), "is cut off");
  expect_bad(load_status(with_record_change(name, 24, 0, 8)), "not laid out one after the other");
  expect_bad(load_status(with_record_change(name, 20, GGML_TYPE_I32, 4)), "has the type i32, which cannot be multiplied with");
  expect_bad(load_status(with_record_change("blk.1.ffn_norm.weight", 12, GGML_TYPE_I32, 4)), "but f32 is needed");
}

TEST(ModelFacts, OfATinyModel) {
  const std::string path = tiny_model_file({.rope_base = 500000, .rope_linear = 2, .weights = TinyWeights::kQ8_0});
  const auto facts = read_model_facts(path);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_EQ(facts->name, "tiny random model");
  EXPECT_EQ(facts->shape.architecture, "llama");
  EXPECT_EQ(facts->shape.layer_count(), 2);
  EXPECT_EQ(facts->shape.vocab, 259);
  EXPECT_EQ(facts->shape.layers[1], (LayerShape{.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 0}));
  EXPECT_EQ(facts->shape.context, 512);
  EXPECT_DOUBLE_EQ(facts->rope_base, 500000);
  EXPECT_DOUBLE_EQ(facts->rope_factor, 2);
  EXPECT_TRUE(facts->has_chat_template);
  EXPECT_FALSE(facts->tied_embeddings);
  EXPECT_EQ(facts->vocabulary, "gpt2");
  const std::uint64_t matrices = 2 * 259 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128);
  const std::uint64_t vectors = 5 * 64;
  EXPECT_EQ(facts->parameters, matrices + vectors);
  ASSERT_EQ(facts->weight_types.size(), 2U);
  EXPECT_EQ(facts->weight_types[0], std::pair(std::string("q8_0"), matrices));
  EXPECT_EQ(facts->file_bytes, read_bytes(path).size());
}

void expect_equal(const ModelFacts& a, const ModelFacts& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.shape.layers, b.shape.layers);
  EXPECT_EQ(std::tie(a.shape.architecture, a.shape.hidden, a.shape.ffn, a.shape.vocab, a.shape.context),
            std::tie(b.shape.architecture, b.shape.hidden, b.shape.ffn, b.shape.vocab, b.shape.context));
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_EQ(a.file_bytes, b.file_bytes);
  EXPECT_EQ(a.weight_types, b.weight_types);
  EXPECT_EQ(a.rope_base, b.rope_base);
  EXPECT_EQ(a.rope_factor, b.rope_factor);
  EXPECT_EQ(a.rope_factors, b.rope_factors);
  EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
  EXPECT_EQ(a.has_chat_template, b.has_chat_template);
  EXPECT_EQ(a.vocabulary, b.vocabulary);
}

// Where the file's first tensor begins: what lies behind are weights.
std::size_t weights_begin(const std::string& path) {
  const auto file = GgufFile::open(path).value();
  std::size_t begin = file->file_bytes();
  for (int i = 0; i < file->tensor_count(); ++i) begin = std::min(begin, file->tensor_offset(*file->tensor_at(i)));
  return begin;
}

// A file that ends in front of its weights says all of itself, and nobody takes it for a model that can be loaded.
TEST(ModelMetadata, IsReadWithoutTheWeights) {
  for (const TinyModelOptions& options :
       std::vector<TinyModelOptions>{{}, {.architecture = "qwen2"}, {.architecture = "gemma3"}}) {
    const std::string path = tiny_model_file(options);
    const std::string bytes = read_bytes(path);
    const ModelFacts whole = read_model_facts(path).value();
    const std::size_t begin = weights_begin(path);
    ASSERT_LT(begin, bytes.size() / 2);
    for (const std::size_t size : {begin, begin + 1, (begin + bytes.size()) / 2, bytes.size() - 1, bytes.size()}) {
      const std::string cut = write_bytes("cut.gguf", bytes.substr(0, size));
      const auto facts = read_model_metadata(cut);
      ASSERT_TRUE(facts.ok()) << size << ": " << facts.status().message();
      expect_equal(*facts, whole);
      if (size == bytes.size()) continue;
      expect_bad(load_status(cut), "is cut off: the data of tensor");
      expect_bad(read_model_facts(cut).status(), "is cut off: the data of tensor");
      expect_bad(Vocabulary::load(cut).status(), "is cut off: the data of tensor");
    }
    // Bytes of weights are not looked at, whatever they are.
    std::string other = bytes;
    std::fill(other.begin() + static_cast<std::ptrdiff_t>(begin), other.end(), '\xff');
    expect_equal(read_model_metadata(write_bytes("cut.gguf", other)).value(), whole);
    for (std::size_t size = 1; size + 64 < begin; size += 97) {
      expect_bad(read_model_metadata(write_bytes("cut.gguf", bytes.substr(0, size))).status(), "cut.gguf");
    }
  }
}

TEST(ModelMetadata, CountsStringsWithoutReadingThem) {
  const std::string path = tiny_model_file({});
  const auto whole = GgufFile::open(path).value();
  const auto metadata = GgufFile::open_metadata(path).value();
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    EXPECT_EQ(*metadata->text_count(key), whole->texts(key)->size()) << key;
    EXPECT_EQ(*whole->text_count(key), whole->texts(key)->size()) << key;
    expect_bad(metadata->texts(key).status(), "an array of strings is needed");
  }
  expect_bad(metadata->text_count("tokenizer.ggml.token_type").status(), "an array of strings is needed");
  expect_bad(metadata->text_count("nowhere").status(), "lacks the metadata key");
  EXPECT_EQ(metadata->whole_numbers("tokenizer.ggml.token_type")->size(), 259U);
}

// What plans say of a damaged file they say in a sentence, too.
TEST(ModelMetadata, FlippedHeaderBytes) {
  const std::string bytes = tiny_bytes({.layers = 1, .hidden = 32, .ffn = 32, .heads = 2, .kv_heads = 1});
  Rng rng(12);
  for (int i = 0; i < 400; ++i) {
    std::string damaged = bytes;
    for (int flips = 0; flips < 3; ++flips) damaged[rng.below(9000)] = static_cast<char>(rng.next());
    const auto facts = read_model_metadata(write_bytes("flipped.gguf", damaged));
    EXPECT_TRUE(facts.ok() || facts.status().code() == Code::kBadInput) << facts.status().message();
    if (read_model_facts(test_file("flipped.gguf")).ok()) {
      EXPECT_TRUE(facts.ok()) << facts.status().message();
    }
  }
}

TEST(TinyModel, RefusesOptionsThatMakeNoModel) {
  const std::string path = test_file("never.gguf");
  EXPECT_EQ(write_tiny_model(path, {.architecture = "gpt2"}).code(), Code::kUsage);
  EXPECT_EQ(write_tiny_model(path, {.heads = 4, .kv_heads = 3}).code(), Code::kUsage);
  EXPECT_EQ(write_tiny_model(path, {.vocab = 100}).code(), Code::kUsage);
  EXPECT_EQ(write_tiny_model(testing::TempDir() + "no/such/folder/x.gguf", {}).code(), Code::kIo);
}

TEST(TinyModel, SameSeedSameFile) {
  EXPECT_EQ(tiny_bytes({.seed = 5}), tiny_bytes({.seed = 5}));
  EXPECT_NE(tiny_bytes({.seed = 5}), tiny_bytes({.seed = 6}));
}

}  // namespace
}  // namespace kvartet
