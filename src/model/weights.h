// A model's weights as ggml tensors: in place in the mapped file, one layer converted for prefill, and on request a whole
// copy in BF16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ggml-cpp.h>
#include <ggml.h>

#include "core/status.h"
#include "model/gguf_file.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "model/weights_conversion.h"

namespace kvartet {

// The tensors of one layer. The matrices come first: they are what conversion touches. In a layer with experts kGate, kUp
// and kDown are stacks of matrices [in, out, experts], which stay as they are stored: a copy of all experts of a layer per
// prompt would cost more than the few that a token uses can save.
enum class Part : std::uint8_t {
  kQuery,
  kKey,
  kValue,
  kOutput,
  kGate,
  kUp,
  kDown,
  kRouter,
  kAttentionNorm,
  kFfnNorm,
  kQueryNorm,
  kKeyNorm,
  kAttentionPostNorm,
  kFfnPostNorm,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kOutputBias,
};
inline constexpr std::size_t kMatrixParts = 7;
inline constexpr std::size_t kParts = 18;

using LayerTensors = std::array<const ggml_tensor*, kParts>;  // nullptr: the layer has none
inline const ggml_tensor* part_of(const LayerTensors& layer, Part part) { return layer[static_cast<std::size_t>(part)]; }

class Weights {
 public:
  // kBadInput: a tensor missing, of the wrong shape, or not known; kExhausted: more memory than is free.
  static Result<std::unique_ptr<Weights>> load(std::shared_ptr<const GgufFile> file, const ModelConfig& config,
                                               const LoadOptions& options);

  // Bytes of the file's tensors plus the copies that were made of them.
  std::size_t bytes() const;
  WeightReads reads() const;
  static std::size_t outputs(const ModelConfig& config, Part matrix) {
    return static_cast<std::size_t>(shape_of(config, matrix).rows);
  }

  const LayerTensors& layer(int index, Linear linear) const;
  // Converts the matrices of `index` unless they are the ones converted last.
  void convert_layer(int index);
  // Does a product with converted weights round activations to F16, which ends at 65504?
  bool converted_has_small_range() const { return converts() && prefill_type_ == GGML_TYPE_F16; }

  // Does a layer hold weights of 16 bits or fewer other than F16, as the file has them (not in a copy made for exactness)?
  bool are_rounded() const;

  const ggml_tensor* output() const { return output_; }
  const ggml_tensor* output_norm() const { return output_norm_; }
  const ggml_tensor* rope_factors() const { return rope_factors_; }  // nullptr: none

  // Row `token` of the embedding as f32, as a graph would read it; the caller has checked the range.
  void embedding_row(std::int32_t token, std::span<float> row) const;

 private:
  Weights(std::shared_ptr<const GgufFile> file, const ModelConfig& config, const LoadOptions& options);

  Status map_tensors();
  struct TensorShape {
    std::int64_t columns = 0;  // inputs
    std::int64_t rows = 1;     // outputs
    std::int64_t depth = 1;    // experts
  };
  static TensorShape shape_of(const ModelConfig& config, Part part);
  Result<const ggml_tensor*> find(const std::string& name, Presence presence, const TensorShape& shape);
  Result<const ggml_tensor*> find_matrix(const std::string& name, Presence presence, const TensorShape& shape);
  Result<const ggml_tensor*> find_vector(const std::string& name, Presence presence, std::int64_t size);
  Status find_layer(int index);
  Status refuse_unknown_tensors() const;
  Status check_memory(std::uint64_t allowed) const;
  std::uint64_t copied_bytes(const ggml_tensor& matrix) const;  // of its second form
  bool packs(const ggml_tensor& matrix) const { return packs_ && !options_.bf16_copy && can_pack(matrix); }
  Status prepare_conversion();
  Status make_bf16_copy();
  bool is_converted(const ggml_tensor* matrix) const;  // for prefill
  bool converts() const { return scratch_.buffer != nullptr; }

  std::shared_ptr<const GgufFile> file_;
  ModelConfig config_;
  LoadOptions options_;
  ggml_type prefill_type_;
  bool packs_;  // converted matrices are packed for our own products

  OwnedTensors map_;  // in the file's pages
  std::set<std::string, std::less<>> known_;
  std::vector<LayerTensors> stored_;  // or their BF16 copies
  const ggml_tensor* embedding_ = nullptr;
  const ggml_tensor* output_ = nullptr;
  const ggml_tensor* output_norm_ = nullptr;
  const ggml_tensor* rope_factors_ = nullptr;

  OwnedTensors scratch_;  // one converted layer; empty when nothing is ever converted
  std::array<ggml_tensor*, kMatrixParts> scratch_matrices_{};
  LayerTensors converted_{};
  int converted_layer_ = -1;

  OwnedTensors copy_;
};

}  // namespace kvartet
