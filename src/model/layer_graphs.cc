#include "model/layer_graphs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

namespace kvartet {
namespace {

constexpr std::size_t kFewRows = 8;        // a decode step: the border starts with room for these
constexpr std::size_t kCachedGraphs = 48;  // three kinds for every small row count, and the chunks of a prefill
constexpr std::size_t kSlotAlignment = 64;
constexpr int kGraphNodes = 64;

std::size_t rounded_up(std::size_t bytes) { return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

void point_at(ggml_tensor* leaf, const ggml_tensor* weight) {
  leaf->data = weight->data;
  leaf->buffer = weight->buffer;
}

ggml_tensor* stand_in(ggml_context* context, const ggml_tensor* weight) {
  ggml_tensor* leaf = ggml_dup_tensor(context, weight);
  point_at(leaf, weight);
  return leaf;
}

}  // namespace

LayerGraphs::LayerGraphs(const ModelConfig& config, const Weights& weights, int threads)
    : config_(config), weights_(weights), threads_(threads), allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {}

Result<LayerGraphs::Attention> LayerGraphs::pre_attention(const LayerTensors& layer, MatView<const float> x,
                                                          std::span<const std::int32_t> positions, KeyBeforeRope keys) {
  KV_CHECK(x.rows == positions.size());
  KV_TRY(reserve_border(x.rows, 0));
  fill(Slot::kX, x);
  std::memcpy(slot_data(Slot::kPositions), positions.data(), positions.size_bytes());
  const bool keep = keys == KeyBeforeRope::kKept;
  KV_TRY(run(keep ? Kind::kPreKeepingKeys : Kind::kPre, x.rows, layer));
  Attention result{view(Slot::kQuery, x.rows), view(Slot::kKey, x.rows), view(Slot::kValue, x.rows), {}};
  if (keep) result.k_pre = view(Slot::kKeyPre, x.rows);
  return result;
}

Result<MatView<const float>> LayerGraphs::post_attention(const LayerTensors& layer, MatView<const float> attention,
                                                         MatView<const float> x) {
  KV_CHECK(x.rows == attention.rows);
  KV_TRY(reserve_border(x.rows, 0));
  fill(Slot::kAttention, attention);
  fill(Slot::kX, x);
  KV_TRY(run(Kind::kPost, x.rows, layer));
  return view(Slot::kX, x.rows);
}

Result<MatView<const float>> LayerGraphs::logits(MatView<const float> x) {
  KV_TRY(reserve_border(x.rows, x.rows));
  fill(Slot::kX, x);
  KV_TRY(run(Kind::kLogits, x.rows, LayerTensors{}));
  return view(Slot::kLogits, x.rows);
}

std::size_t LayerGraphs::scratch_bytes() const {
  return (border_ ? ggml_backend_buffer_get_size(border_.get()) : 0) + ggml_gallocr_get_buffer_size(allocator_.get(), 0) +
         work_.size();
}

// --- the border

std::size_t LayerGraphs::width(Slot slot) const {
  const LayerShape& layer = config_.shape.layers[0];
  switch (slot) {
    case Slot::kX: return static_cast<std::size_t>(config_.shape.hidden);
    case Slot::kQuery:
    case Slot::kAttention: return static_cast<std::size_t>(layer.heads) * static_cast<std::size_t>(layer.head_dim);
    case Slot::kKey:
    case Slot::kValue:
    case Slot::kKeyPre: return static_cast<std::size_t>(layer.kv_heads) * static_cast<std::size_t>(layer.head_dim);
    case Slot::kPositions: return 1;
    case Slot::kLogits: return static_cast<std::size_t>(config_.shape.vocab);
  }
  return 0;
}

Status LayerGraphs::reserve_border(std::size_t rows, std::size_t logit_rows) {
  KV_CHECK(rows <= kMaxGraphRows);
  if (rows <= border_rows_ && logit_rows <= border_logit_rows_) return {};
  border_rows_ = std::max(border_rows_, rows <= kFewRows ? kFewRows : kMaxGraphRows);
  border_logit_rows_ = std::max(border_logit_rows_, logit_rows);
  graphs_.clear();  // their inputs and outputs lie in the old border
  std::size_t bytes = 0;
  for (std::size_t s = 0; s < kSlots; ++s) {
    const auto slot = static_cast<Slot>(s);
    slot_offset_[s] = bytes;
    bytes += rounded_up(width(slot) * sizeof(float) * (slot == Slot::kLogits ? border_logit_rows_ : border_rows_));
  }
  border_.reset(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), bytes));
  if (border_ != nullptr) return {};
  border_rows_ = border_logit_rows_ = 0;
  return exhausted(fmt::format("no memory for {} MB of activations", bytes >> 20));
}

float* LayerGraphs::slot_data(Slot slot) const {
  auto* base = static_cast<std::byte*>(ggml_backend_buffer_get_base(border_.get()));
  return reinterpret_cast<float*>(base + slot_offset_[static_cast<std::size_t>(slot)]);
}

void LayerGraphs::fill(Slot slot, MatView<const float> rows) const {
  KV_CHECK(rows.cols == width(slot));
  for (std::size_t r = 0; r < rows.rows; ++r)
    std::memcpy(slot_data(slot) + r * rows.cols, rows.row(r), rows.cols * sizeof(float));
}

// --- running

Status LayerGraphs::run(Kind kind, std::size_t rows, const LayerTensors& layer) {
  Signature signature{kind, rows, {}};
  for (std::size_t p = 0; p < kParts; ++p) signature.types[p] = layer[p] == nullptr ? -1 : static_cast<int>(layer[p]->type);
  KV_ASSIGN(Graph * graph, graph_for(signature, layer));
  for (std::size_t p = 0; p < kParts; ++p) {
    if (graph->leaves[p] != nullptr) point_at(graph->leaves[p], layer[p]);
  }
  if (work_.size() < graph->plan.work_size) work_.resize(graph->plan.work_size);
  graph->plan.work_data = reinterpret_cast<std::uint8_t*>(work_.data());
  const ggml_status status = ggml_graph_compute(graph->nodes, &graph->plan);
  if (status != GGML_STATUS_SUCCESS)
    return internal_error(fmt::format("a graph of the model did not run: {}", ggml_status_to_string(status)));
  return {};
}

Result<LayerGraphs::Graph*> LayerGraphs::graph_for(const Signature& signature, const LayerTensors& layer) {
  const auto known = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& g) { return g.signature == signature; });
  if (known != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, known);
    return &graphs_.front();
  }
  Graph graph;
  graph.signature = signature;
  build(graph, layer);
  const std::size_t before = ggml_gallocr_get_buffer_size(allocator_.get(), 0);
  if (!ggml_gallocr_alloc_graph(allocator_.get(), graph.nodes))
    return exhausted(fmt::format("no memory for the activations of {} rows", signature.rows));
  // A bigger buffer replaced the one the other graphs point into.
  if (ggml_gallocr_get_buffer_size(allocator_.get(), 0) != before) graphs_.clear();
  graph.plan = ggml_graph_plan(graph.nodes, threads_, nullptr);
  graphs_.push_front(std::move(graph));
  if (graphs_.size() > kCachedGraphs) graphs_.pop_back();
  return &graphs_.front();
}

// --- building. The operations and their order are libllama's, so that the bits are its bits.

void LayerGraphs::build(Graph& graph, const LayerTensors& layer) const {
  const std::size_t bytes = ggml_tensor_overhead() * kGraphNodes + ggml_graph_overhead_custom(kGraphNodes, false);
  graph.context.reset(ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true}));
  graph.nodes = ggml_new_graph_custom(graph.context.get(), kGraphNodes, false);
  switch (graph.signature.kind) {
    case Kind::kPre:
    case Kind::kPreKeepingKeys: return build_pre(graph, layer);
    case Kind::kPost: return build_post(graph, layer);
    case Kind::kLogits: return build_logits(graph);
  }
}

void LayerGraphs::build_pre(Graph& graph, const LayerTensors& layer) const {
  const LayerShape& shape = config_.shape.layers[0];
  ggml_tensor* positions =
      ggml_new_tensor_1d(graph.context.get(), GGML_TYPE_I32, static_cast<std::int64_t>(graph.signature.rows));
  place(positions, Slot::kPositions);
  ggml_tensor* x = norm(graph, input(graph, Slot::kX), leaf(graph, layer, Part::kAttentionNorm));
  ggml_tensor* q = linear(graph, layer, Part::kQuery, Part::kQueryBias, x);
  ggml_tensor* k = linear(graph, layer, Part::kKey, Part::kKeyBias, x);
  ggml_tensor* v = linear(graph, layer, Part::kValue, Part::kValueBias, x);
  if (graph.signature.kind == Kind::kPreKeepingKeys) place(k, Slot::kKeyPre);
  place(v, Slot::kValue);
  q = rope(graph, q, shape.heads, positions);
  k = rope(graph, k, shape.kv_heads, positions);
  place(q, Slot::kQuery);
  place(k, Slot::kKey);
  for (ggml_tensor* result : {q, k, v}) ggml_build_forward_expand(graph.nodes, result);
}

void LayerGraphs::build_post(Graph& graph, const LayerTensors& layer) const {
  ggml_context* c = graph.context.get();
  ggml_tensor* attention = linear(graph, layer, Part::kOutput, Part::kOutputBias, input(graph, Slot::kAttention));
  ggml_tensor* x = ggml_add(c, attention, input(graph, Slot::kX));
  ggml_tensor* normed = norm(graph, x, leaf(graph, layer, Part::kFfnNorm));
  ggml_tensor* up = ggml_mul_mat(c, leaf(graph, layer, Part::kUp), normed);
  ggml_tensor* gate = ggml_mul_mat(c, leaf(graph, layer, Part::kGate), normed);
  ggml_tensor* down = ggml_mul_mat(c, leaf(graph, layer, Part::kDown), ggml_swiglu_split(c, gate, up));
  ggml_tensor* result = ggml_add(c, down, x);
  place(result, Slot::kX);  // over the input, which the first addition was the last to read
  ggml_build_forward_expand(graph.nodes, result);
}

void LayerGraphs::build_logits(Graph& graph) const {
  ggml_context* c = graph.context.get();
  ggml_tensor* x = norm(graph, input(graph, Slot::kX), stand_in(c, weights_.output_norm()));
  ggml_tensor* result = ggml_mul_mat(c, stand_in(c, weights_.output()), x);
  place(result, Slot::kLogits);
  ggml_build_forward_expand(graph.nodes, result);
}

ggml_tensor* LayerGraphs::norm(Graph& graph, ggml_tensor* x, ggml_tensor* weight) const {
  return ggml_mul(graph.context.get(), ggml_rms_norm(graph.context.get(), x, config_.rms_epsilon), weight);
}

ggml_tensor* LayerGraphs::rope(Graph& graph, ggml_tensor* x, int heads, ggml_tensor* positions) const {
  ggml_context* c = graph.context.get();
  const int mode = config_.architecture->rope_pairs == RopePairs::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  ggml_tensor* factors = weights_.rope_factors() == nullptr ? nullptr : stand_in(c, weights_.rope_factors());
  ggml_tensor* by_head =
      ggml_reshape_3d(c, x, config_.shape.layers[0].head_dim, heads, static_cast<std::int64_t>(graph.signature.rows));
  // No YaRN (extension 0), so the last two numbers, its ramp, have no effect.
  return ggml_rope_ext(c, by_head, positions, factors, config_.rope.dims, mode, config_.shape.context,
                       static_cast<float>(config_.rope.base), static_cast<float>(config_.rope.scale), 0.0F, 1.0F, 32.0F, 1.0F);
}

ggml_tensor* LayerGraphs::leaf(Graph& graph, const LayerTensors& layer, Part part) const {
  ggml_tensor* tensor = stand_in(graph.context.get(), part_of(layer, part));
  graph.leaves[static_cast<std::size_t>(part)] = tensor;
  return tensor;
}

ggml_tensor* LayerGraphs::linear(Graph& graph, const LayerTensors& layer, Part matrix, Part bias, ggml_tensor* x) const {
  ggml_tensor* product = ggml_mul_mat(graph.context.get(), leaf(graph, layer, matrix), x);
  return part_of(layer, bias) == nullptr ? product : ggml_add(graph.context.get(), product, leaf(graph, layer, bias));
}

ggml_tensor* LayerGraphs::input(Graph& graph, Slot slot) const {
  ggml_tensor* tensor = ggml_new_tensor_2d(graph.context.get(), GGML_TYPE_F32, static_cast<std::int64_t>(width(slot)),
                                           static_cast<std::int64_t>(graph.signature.rows));
  place(tensor, slot);
  return tensor;
}

// A tensor with a place before the allocator runs keeps it, so that results need no copy node.
void LayerGraphs::place(ggml_tensor* tensor, Slot slot) const {
  KV_CHECK(ggml_backend_tensor_alloc(border_.get(), tensor, slot_data(slot)) == GGML_STATUS_SUCCESS);
}

}  // namespace kvartet
