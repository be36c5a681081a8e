// The linear part of a model: everything but attention and cache. Runs as ggml graphs; nobody outside model/ sees ggml.
//
// All activations are f32 rows. One layer of a prompt is: pre_attention (norm, QKV, RoPE) -> attention (ours) ->
// post_attention (output projection, residual, feed-forward, residual).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "attention/precision.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/status.h"

namespace kvartet {

// Which copy of a layer's weights a graph multiplies with.
enum class Linear : std::uint8_t {
  kStored,     // as the file has them: decode
  kConverted,  // once per prompt to what this CPU multiplies fastest: prefill. F32 and F16 weights stay as stored
};

struct LoadOptions {
  int threads = 1;
  bool bf16_copy = false;          // keep a BF16 copy of every layer and use it for everything (fidelity)
  std::uint64_t memory_bytes = 0;  // what loading may need at most; 0: what the machine and its control group have free
};

struct LayerInputs {
  MatView<float> q;  // [tokens, heads * head_dim], after RoPE
  MatView<float> k;  // [tokens, kv_heads * head_dim], after RoPE
  MatView<float> v;
  MatView<float> k_pre;  // before RoPE; left alone when data == nullptr
};

// Bytes of weights that a decode step reads at least, however many sequences it serves.
struct WeightReads {
  std::size_t layers = 0;
  std::size_t head = 0;  // the output matrix
};

class Transformer {
 public:
  // kBadInput: damaged or unknown; kExhausted: does not fit the memory that is free.
  static Result<std::unique_ptr<Transformer>> load(const std::string& path, const LoadOptions& options);
  virtual ~Transformer() = default;

  virtual const ModelShape& shape() const = 0;
  virtual std::size_t weight_bytes() const = 0;  // held, converted copies included
  virtual WeightReads weight_reads() const = 0;
  // Of a prompt's attention: native beside weights that are rounded themselves, exact beside F32 and F16 (an oracle's) and the
  // BF16 copy (fidelity compares cache formats that round less than BF16 does).
  virtual Precision attention_precision() const = 0;

  // x: [tokens, hidden]. kBadInput: a token id out of range.
  virtual Status embed(std::span<const std::int32_t> tokens, MatView<float> x) = 0;
  // Makes `layer`'s converted weights ready (cheap when they are); call before kConverted is used for it.
  virtual Status convert_layer(int layer) = 0;
  virtual Status pre_attention(int layer, Linear linear, MatView<const float> x, std::span<const std::int32_t> positions,
                               const LayerInputs& out) = 0;
  // x <- x + Wo attention, then x <- x + ffn(norm(x)). attention: [tokens, heads * head_dim].
  virtual Status post_attention(int layer, Linear linear, MatView<const float> attention, MatView<float> x) = 0;
  // out <- Wo attention, as stored and without a bias: a difference of two attentions comes through as their difference.
  // attention: [rows, heads * head_dim], out: [rows, hidden].
  virtual Status project_attention(int layer, MatView<const float> attention, MatView<float> out) = 0;
  // logits: [tokens, vocab].
  virtual Status logits(MatView<const float> x, MatView<float> logits) = 0;
};

}  // namespace kvartet
