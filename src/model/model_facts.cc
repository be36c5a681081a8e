#include "model/model_facts.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "model/gguf_file.h"
#include "model/model_config.h"
#include "model/weights_conversion.h"

namespace kvartet {

Result<ModelShape> read_model_shape(const std::string& path) {
  KV_ASSIGN(const auto file, GgufFile::open(path));
  KV_ASSIGN(const ModelConfig config, read_model_config(*file));
  return config.shape;
}

namespace {

Result<ModelFacts> facts_of(const GgufFile& file) {
  KV_ASSIGN(const ModelConfig config, read_model_config(file));
  ModelFacts facts;
  KV_ASSIGN(facts.name, file.text_or("general.name", std::filesystem::path(file.path()).filename().string()));
  KV_ASSIGN(facts.vocabulary, file.text("tokenizer.ggml.model"));
  facts.shape = config.shape;
  facts.file_bytes = file.file_bytes();
  facts.rope_base = config.rope.base;
  facts.rope_factor = 1 / config.rope.scale;
  facts.rope_factors = config.rope.has_factors;
  facts.tied_embeddings = file.tensor("output.weight") == nullptr;
  facts.has_chat_template = file.has("tokenizer.chat_template");
  std::map<std::string, std::uint64_t> by_type;
  for (int i = 0; i < file.tensor_count(); ++i) {
    const ggml_tensor* tensor = file.tensor_at(i);
    const auto elements = static_cast<std::uint64_t>(ggml_nelements(tensor));
    by_type[ggml_type_name(tensor->type)] += elements;
    if (std::string_view(tensor->name).starts_with("blk.") && is_convertible(tensor->type)) facts.native_attention = true;
    facts.parameters += elements;
  }
  facts.weight_types.assign(by_type.begin(), by_type.end());
  std::stable_sort(facts.weight_types.begin(), facts.weight_types.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return facts;
}

}  // namespace

Result<ModelFacts> read_model_facts(const std::string& path) {
  KV_ASSIGN(const auto file, GgufFile::open(path));
  return facts_of(*file);
}

Result<ModelFacts> read_model_metadata(const std::string& path) {
  KV_ASSIGN(const auto file, GgufFile::open_metadata(path));
  return facts_of(*file);
}

}  // namespace kvartet
