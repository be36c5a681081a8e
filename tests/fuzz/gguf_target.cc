// A model file: what the guard lets through must neither end ggml nor libllama, and what it refuses it refuses as bad input.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "core/check.h"
#include "core/utf8.h"
#include "model/gguf_file.h"
#include "model/model_facts.h"
#include "model/transformer.h"
#include "model/vocabulary.h"
#include "targets.h"

namespace kvartet::fuzz {
namespace {

constexpr std::uint64_t kMemory = std::uint64_t{1} << 28;  // that loading may need: tiny models take less

// A file that lives in memory and has a path for as long as it is open.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("model", 0)) {
    KV_CHECK(descriptor_ >= 0);
    KV_CHECK(write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void check_refusal(const Status& status) {
  KV_CHECK(status.code() == Code::kBadInput || status.code() == Code::kExhausted);
  KV_CHECK(!status.message().empty());
}

void use_vocabulary(const std::string& path, std::string_view bytes) {
  const Result<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::load(path);
  if (!vocabulary.ok()) return check_refusal(vocabulary.status());
  const int size = (*vocabulary)->size();
  KV_CHECK(size > 0);
  KV_CHECK((*vocabulary)->bos() < size);
  const std::string_view tail = bytes.substr(bytes.size() - std::min<std::size_t>(bytes.size(), 64));
  for (const std::string_view text :
       {std::string_view("a b\n\xC3\xA9 <|im_end|><0x41>"), tail.substr(0, valid_utf8_prefix(tail))}) {
    const Result<std::vector<Token>> tokens = (*vocabulary)->tokenize(text);
    if (!tokens.ok()) continue;
    for (const Token token : *tokens) KV_CHECK(token >= 0 && token < size);
    static_cast<void>((*vocabulary)->detokenize(*tokens));
  }
  for (Token token = -1; token <= std::min(size, 1000); ++token) {
    static_cast<void>((*vocabulary)->piece(token));
    static_cast<void>((*vocabulary)->is_end(token));
  }
  const Result<ChatPrompt> prompt = chat_prompt(**vocabulary, (*vocabulary)->chat_family());
  KV_CHECK(prompt.ok() || !prompt.status().message().empty());
}

void use_shape(const ModelShape& shape) {
  for (const char* text : {"full", "kivi:bits=4", "snapkv:budget=0.25"}) {
    const Result<CacheSpec> spec = parse_spec(text);
    KV_CHECK(spec.ok());
    if (!check_spec(*spec, shape).ok()) continue;
    static_cast<void>(predict_bytes(*spec, shape, std::min(shape.context, 300), 10).ok());
  }
}

void use_weights(const std::string& path) {
  LoadOptions options;
  options.memory_bytes = kMemory;
  const Result<std::unique_ptr<Transformer>> model = Transformer::load(path, options);
  if (!model.ok()) return check_refusal(model.status());
  std::vector<float> row(static_cast<std::size_t>((*model)->shape().hidden));
  const std::int32_t tokens[] = {0, (*model)->shape().vocab - 1};
  for (const std::int32_t token : tokens) KV_CHECK((*model)->embed({&token, 1}, {row.data(), 1, row.size()}).ok());
}

}  // namespace

void feed_gguf(std::string_view bytes) {
  const MemoryFile file(bytes);
  const Result<ModelFacts> metadata = read_model_metadata(file.path());
  if (!metadata.ok()) check_refusal(metadata.status());
  const Result<std::shared_ptr<const GgufFile>> opened = GgufFile::open(file.path());
  if (!opened.ok()) return check_refusal(opened.status());
  use_vocabulary(file.path(), bytes);
  const Result<ModelFacts> facts = read_model_facts(file.path());
  if (!facts.ok()) return check_refusal(facts.status());
  KV_CHECK(metadata.ok() && metadata->shape.layers == facts->shape.layers && metadata->shape.vocab == facts->shape.vocab &&
           metadata->file_bytes == facts->file_bytes);
  use_shape(facts->shape);
  use_weights(file.path());
}

}  // namespace kvartet::fuzz
