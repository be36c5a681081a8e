// The output matrix (user-needs C15): absent, a copy of the embedding, or another one. GGUF has no flag for tied embeddings, so
// the rule is plain: an output matrix that is in the file is the one used, and nothing is in memory twice.
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include "core/rng.h"
#include "model/model_facts.h"
#include "model/peer_llama.h"
#include "model/test_models.h"
#include "model/transformer.h"

namespace kvartet {
namespace {

constexpr const char* kEmbedding = "token_embd.weight";

// A tied model with its embedding as output matrix, each value times `factor`.
std::string with_output(const std::string& tied, float factor, const std::string& name) {
  ggml_context* raw = nullptr;
  const gguf_context_ptr file(gguf_init_from_file(tied.c_str(), {.no_alloc = false, .ctx = &raw}));
  const ggml_context_ptr tensors(raw);
  const ggml_tensor* embedding = ggml_get_tensor(raw, kEmbedding);
  const ggml_context_ptr own(
      ggml_init({.mem_size = 2 * ggml_tensor_overhead() + ggml_nbytes(embedding), .mem_buffer = nullptr, .no_alloc = false}));
  ggml_tensor* output = ggml_dup_tensor(own.get(), embedding);
  ggml_set_name(output, "output.weight");
  const auto* from = static_cast<const float*>(embedding->data);
  for (std::int64_t i = 0; i < ggml_nelements(embedding); ++i) static_cast<float*>(output->data)[i] = factor * from[i];
  const gguf_context_ptr written(gguf_init_empty());
  gguf_set_kv(written.get(), file.get());
  for (std::int64_t i = 0; i < gguf_get_n_tensors(file.get()); ++i) {
    gguf_add_tensor(written.get(), ggml_get_tensor(raw, gguf_get_tensor_name(file.get(), i)));
  }
  gguf_add_tensor(written.get(), output);
  const std::string path = test_file(name);
  EXPECT_TRUE(gguf_write_to_file(written.get(), path.c_str(), false));
  return path;
}

struct Seen {
  std::vector<float> logits;  // of one fixed hidden row
  std::vector<float> peer;    // libllama's, of one fixed text
  std::size_t weight_bytes = 0;
  std::size_t head_bytes = 0;
};

Seen seen(const std::string& path) {
  Seen out;
  const auto model = Transformer::load(path, {.threads = 1});
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return out;
  const auto hidden = static_cast<std::size_t>((*model)->shape().hidden);
  std::vector<float> row(hidden);
  Rng rng(3);
  for (float& x : row) x = static_cast<float>(rng.normal());
  out.logits.resize(static_cast<std::size_t>((*model)->shape().vocab));
  EXPECT_TRUE((*model)->logits({row.data(), 1, hidden}, {out.logits.data(), 1, out.logits.size()}).ok());
  out.weight_bytes = (*model)->weight_bytes();
  out.head_bytes = (*model)->weight_reads().head;
  const auto peer = PeerLlama::open(path, {.threads = 1, .repack = PeerRepack::kOff});
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  if (!peer.ok()) return out;
  const std::vector<std::int32_t> tokens = {5, 80, 7, 200};
  const auto logits = (*peer)->logits(tokens, {.cache = PeerCache::kF32, .flash = FlashAttention::kOff, .context = 8});
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  if (logits.ok()) out.peer = *logits;
  return out;
}

TEST(TiedEmbedding, C15AbsentCopiedOrAnother) {
  const std::string tied = tiny_model_file({.tied = true});
  const Seen absent = seen(tied);
  const Seen copied = seen(with_output(tied, 1, "copied.gguf"));
  const Seen another = seen(with_output(tied, 2, "another.gguf"));

  EXPECT_EQ(copied.logits, absent.logits);
  EXPECT_EQ(copied.peer, absent.peer);
  ASSERT_EQ(another.logits.size(), absent.logits.size());
  for (std::size_t i = 0; i < absent.logits.size(); ++i) EXPECT_EQ(another.logits[i], 2 * absent.logits[i]) << "its own matrix";
  EXPECT_NE(another.peer, absent.peer) << "libllama has the same rule";

  const std::size_t matrix = std::size_t{259} * 64 * sizeof(float);
  EXPECT_EQ(absent.head_bytes, matrix);
  EXPECT_EQ(absent.weight_bytes, std::filesystem::file_size(tied)) << "the one matrix serves twice";
  EXPECT_EQ(copied.weight_bytes, std::filesystem::file_size(test_file("copied.gguf")));
  EXPECT_GE(copied.weight_bytes, absent.weight_bytes + matrix);
  EXPECT_TRUE(read_model_facts(tied)->tied_embeddings);
  EXPECT_FALSE(read_model_facts(test_file("copied.gguf"))->tied_embeddings);
}

}  // namespace
}  // namespace kvartet
