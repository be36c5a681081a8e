// What a model file says of itself, from metadata alone: no weights are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/model_shape.h"
#include "core/status.h"

namespace kvartet {

struct ModelFacts {
  std::string name;  // general.name, or the file's name
  ModelShape shape;
  std::uint64_t parameters = 0;
  std::uint64_t file_bytes = 0;
  std::vector<std::pair<std::string, std::uint64_t>> weight_types;  // type name and parameters in it, most first
  double rope_base = 0;
  double rope_factor = 1;         // linear scaling; 1: none
  bool rope_factors = false;      // per-frequency factors (Llama 3)
  bool tied_embeddings = false;   // no output matrix in the file; one that is there is used, whatever it holds
  bool native_attention = false;  // of a prefill; the precision that Transformer asks for unless it computes with a BF16 copy
  bool has_chat_template = false;
  std::string vocabulary;  // "gpt2", "llama", ...
};

// kBadInput: the file is missing, damaged or of an architecture that is not supported.
Result<ModelShape> read_model_shape(const std::string& path);
Result<ModelFacts> read_model_facts(const std::string& path);
// The same of a file that may end behind its metadata and tensor records, and whose vocabulary is only counted: `file_bytes` are
// those of the whole file.
Result<ModelFacts> read_model_metadata(const std::string& path);

}  // namespace kvartet
