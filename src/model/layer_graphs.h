// The ggml graphs of a layer's two halves and of the output head.
//
// A graph is built for a number of rows and a pattern of weight types; it serves every layer of that pattern, since its
// weight leaves are pointed at the layer's tensors before each run (same bits as a fresh graph). Inputs and outputs lie in
// one border buffer of our own; everything between them comes from one graph allocator that all graphs share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ggml-cpp.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include "core/matrix.h"
#include "core/status.h"
#include "model/linear_nodes.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace kvartet {

// Most rows that one run may have: longer inputs are cut by the caller.
inline constexpr std::size_t kMaxGraphRows = 512;

enum class KeyBeforeRope : std::uint8_t { kDropped, kKept };

class LayerGraphs {
 public:
  LayerGraphs(const ModelConfig& config, const Weights& weights, int threads);

  // Results live in the border buffer until the next run. All have the rows of `x`.
  struct Attention {
    MatView<const float> q;  // [rows, heads * head_dim], after RoPE
    MatView<const float> k;  // [rows, kv_heads * head_dim], after RoPE
    MatView<const float> v;
    MatView<const float> k_pre;  // before RoPE; empty unless kept
  };
  // `index` is the layer's: RoPE may differ between layers.
  Result<Attention> pre_attention(int index, const LayerTensors& layer, MatView<const float> x,
                                  std::span<const std::int32_t> positions, KeyBeforeRope keys);
  // x + Wo attention, then + ffn(norm(that)): [rows, hidden].
  Result<MatView<const float>> post_attention(const LayerTensors& layer, MatView<const float> attention, MatView<const float> x);
  // Wo attention, without bias: [rows, hidden].
  Result<MatView<const float>> project_attention(const LayerTensors& layer, MatView<const float> attention);
  // [rows, vocab].
  Result<MatView<const float>> logits(MatView<const float> x);

  std::size_t scratch_bytes() const;

 private:
  enum class Kind : std::uint8_t { kPre, kPreKeepingKeys, kPost, kProjection, kLogits };
  // Which of the model's RoPE settings a layer turns by.
  enum class Rope : std::uint8_t { kCommon, kWindow };
  // The three of the projections lie one after another, since one node may make them all.
  enum class Slot : std::uint8_t { kX, kQuery, kKey, kQueryPre, kKeyPre, kValue, kAttention, kPositions, kLogits };
  static constexpr std::size_t kSlots = 9;
  struct Signature {
    Kind kind = Kind::kPre;
    Rope rope = Rope::kCommon;  // of the two kinds of pre
    std::size_t rows = 0;
    std::array<int, kParts> types{};  // of the layer's parts, -1: absent
    bool operator==(const Signature&) const = default;
  };
  struct Graph {
    Signature signature;
    ggml_context_ptr context;
    std::optional<LinearNodes> linear;
    ggml_cgraph* nodes = nullptr;
    ggml_cplan plan{};
    std::array<ggml_tensor*, kParts> leaves{};  // stand for the layer's tensors; nullptr: not in this graph
  };

  Status run(Kind kind, Rope rope, std::size_t rows, const LayerTensors& layer);
  Status reserve_border(std::size_t rows, std::size_t logit_rows);
  Result<Graph*> graph_for(const Signature& signature, const LayerTensors& layer);
  void build(Graph& graph, const LayerTensors& layer) const;
  void build_pre(Graph& graph, const LayerTensors& layer) const;
  void build_post(Graph& graph, const LayerTensors& layer) const;
  void build_projection(Graph& graph, const LayerTensors& layer) const;
  void build_logits(Graph& graph) const;
  // Query, key and value of `x`.
  std::array<ggml_tensor*, 3> project(Graph& graph, const LayerTensors& layer, LinearInput& x) const;
  // The feed-forward part of a layer's second half, of `x` and with `x` added.
  ggml_tensor* feed_forward(Graph& graph, const LayerTensors& layer, ggml_tensor* x) const;
  ggml_tensor* experts(Graph& graph, const LayerTensors& layer, ggml_tensor* x) const;
  ggml_tensor* gated(Graph& graph, ggml_tensor* gate, ggml_tensor* up) const;
  ggml_tensor* norm(Graph& graph, ggml_tensor* x, ggml_tensor* weight) const;
  // The norm of a part that this layer may lack: `x` itself then.
  ggml_tensor* optional_norm(Graph& graph, const LayerTensors& layer, Part part, ggml_tensor* x) const;
  ggml_tensor* by_head(Graph& graph, ggml_tensor* x, int heads) const;
  ggml_tensor* rope(Graph& graph, ggml_tensor* x, ggml_tensor* positions) const;
  ggml_tensor* leaf(Graph& graph, const LayerTensors& layer, Part part) const;
  LinearFactor factor(Graph& graph, const LayerTensors& layer, Part matrix) const;
  LinearFactor with_bias(Graph& graph, const LayerTensors& layer, Part matrix, Part bias) const;
  ggml_tensor* input(Graph& graph, Slot slot) const;
  void place(ggml_tensor* tensor, Slot slot) const;

  std::size_t width(Slot slot) const;
  float* slot_data(Slot slot) const;
  void fill(Slot slot, MatView<const float> rows) const;
  MatView<const float> view(Slot slot, std::size_t rows) const { return {slot_data(slot), rows, width(slot)}; }

  const ModelConfig& config_;
  const Weights& weights_;
  int threads_;

  ggml_backend_buffer_ptr border_;
  std::array<std::size_t, kSlots> slot_offset_{};
  std::size_t border_rows_ = 0;
  std::size_t border_logit_rows_ = 0;
  ggml_gallocr_ptr allocator_;
  std::vector<std::byte> work_;
  std::list<Graph> graphs_;  // used last in front
};

}  // namespace kvartet
