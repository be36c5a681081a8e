#include "model/layer_graphs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "core/bytes_text.h"

namespace kvartet {
namespace {

constexpr std::size_t kFewRows = 8;        // a decode step: the border starts with room for these
constexpr std::size_t kCachedGraphs = 48;  // three kinds for every small row count, and the chunks of a prefill
constexpr std::size_t kSlotAlignment = 64;
constexpr std::size_t kGraphNodes = 64;  // tensors of a graph; a layer with experts has a few more for each one it uses
constexpr std::size_t kExpertNodes = 4;
constexpr float kLeastWeightSum = 6.103515625e-5F;  // of the chosen experts: libllama's guard against division by zero

std::size_t rounded_up(std::size_t bytes) { return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

void point_at(ggml_tensor* leaf, const ggml_tensor* weight) {
  leaf->data = weight->data;
  leaf->buffer = weight->buffer;
}

// A reshaped tensor shares its source's data, and the source is what can be placed.
ggml_tensor* base_of(ggml_tensor* tensor) { return tensor->view_src == nullptr ? tensor : tensor->view_src; }

ggml_tensor* stand_in(ggml_context* context, const ggml_tensor* weight) {
  ggml_tensor* leaf = ggml_dup_tensor(context, weight);
  point_at(leaf, weight);
  return leaf;
}

}  // namespace

LayerGraphs::LayerGraphs(const ModelConfig& config, const Weights& weights, int threads)
    : config_(config), weights_(weights), threads_(threads), allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {}

Result<LayerGraphs::Attention> LayerGraphs::pre_attention(int index, const LayerTensors& layer, MatView<const float> x,
                                                          std::span<const std::int32_t> positions, KeyBeforeRope keys) {
  KV_CHECK(x.rows == positions.size());
  KV_TRY(reserve_border(x.rows, 0));
  fill(Slot::kX, x);
  std::memcpy(slot_data(Slot::kPositions), positions.data(), positions.size_bytes());
  const bool keep = keys == KeyBeforeRope::kKept;
  const Rope rope = config_.uses_window_rope(index) ? Rope::kWindow : Rope::kCommon;
  KV_TRY(run(keep ? Kind::kPreKeepingKeys : Kind::kPre, rope, x.rows, layer));
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
  KV_TRY(run(Kind::kPost, Rope::kCommon, x.rows, layer));
  return view(Slot::kX, x.rows);
}

Result<MatView<const float>> LayerGraphs::project_attention(const LayerTensors& layer, MatView<const float> attention) {
  KV_TRY(reserve_border(attention.rows, 0));
  fill(Slot::kAttention, attention);
  KV_TRY(run(Kind::kProjection, Rope::kCommon, attention.rows, layer));
  return view(Slot::kX, attention.rows);
}

Result<MatView<const float>> LayerGraphs::logits(MatView<const float> x) {
  KV_TRY(reserve_border(x.rows, x.rows));
  fill(Slot::kX, x);
  KV_TRY(run(Kind::kLogits, Rope::kCommon, x.rows, LayerTensors{}));
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
    case Slot::kQueryPre:
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
  return exhausted(fmt::format("no memory for {} of activations", bytes_text(bytes)));
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

Status LayerGraphs::run(Kind kind, Rope rope, std::size_t rows, const LayerTensors& layer) {
  Signature signature{kind, rope, rows, {}};
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

// --- building. The operations and their order are libllama's, so that the bits are its bits where ggml makes the products
// (linear_nodes.h).

void LayerGraphs::build(Graph& graph, const LayerTensors& layer) const {
  const std::size_t used = config_.experts.has_value() ? static_cast<std::size_t>(config_.experts->used) : 0;
  const std::size_t nodes = kGraphNodes + kExpertNodes * used;
  const std::size_t bytes = ggml_tensor_overhead() * nodes + ggml_graph_overhead_custom(nodes, false);
  graph.context.reset(ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true}));
  graph.nodes = ggml_new_graph_custom(graph.context.get(), nodes, false);
  graph.linear.emplace(graph.context.get(), graph.signature.rows, config_.rms_epsilon);
  switch (graph.signature.kind) {
    case Kind::kPre:
    case Kind::kPreKeepingKeys: return build_pre(graph, layer);
    case Kind::kPost: return build_post(graph, layer);
    case Kind::kProjection: return build_projection(graph, layer);
    case Kind::kLogits: return build_logits(graph);
  }
}

void LayerGraphs::build_pre(Graph& graph, const LayerTensors& layer) const {
  const LayerShape& shape = config_.shape.layers[0];
  ggml_tensor* positions =
      ggml_new_tensor_1d(graph.context.get(), GGML_TYPE_I32, static_cast<std::int64_t>(graph.signature.rows));
  place(positions, Slot::kPositions);
  LinearInput x{.x = input(graph, Slot::kX), .norm = leaf(graph, layer, Part::kAttentionNorm)};
  auto [q, k, v] = project(graph, layer, x);
  q = optional_norm(graph, layer, Part::kQueryNorm, by_head(graph, q, shape.heads));
  k = optional_norm(graph, layer, Part::kKeyNorm, by_head(graph, k, shape.kv_heads));
  const bool lies_there = base_of(k)->buffer != nullptr;
  if (graph.signature.kind == Kind::kPreKeepingKeys && !lies_there) place(base_of(k), Slot::kKeyPre);
  q = rope(graph, q, positions);
  k = rope(graph, k, positions);
  if (config_.query_scale != 1) q = ggml_scale(graph.context.get(), q, config_.query_scale);
  place(q, Slot::kQuery);
  place(k, Slot::kKey);
  for (ggml_tensor* result : {q, k, v}) ggml_build_forward_expand(graph.nodes, result);
}

// Where one node makes all three, in the order of their slots, keys before RoPE and values are where they belong.
std::array<ggml_tensor*, 3> LayerGraphs::project(Graph& graph, const LayerTensors& layer, LinearInput& x) const {
  const LinearFactor factors[3] = {with_bias(graph, layer, Part::kQuery, Part::kQueryBias),
                                   with_bias(graph, layer, Part::kKey, Part::kKeyBias),
                                   with_bias(graph, layer, Part::kValue, Part::kValueBias)};
  std::size_t places[3];
  for (std::size_t i = 0; i < 3; ++i) {
    const Slot slot = std::array{Slot::kQueryPre, Slot::kKeyPre, Slot::kValue}[i];
    places[i] = static_cast<std::size_t>(slot_data(slot) - slot_data(Slot::kQueryPre));
  }
  const LinearNodes::Products made = graph.linear->multiply(factors, x, places);
  if (made.whole != nullptr) {
    place(made.whole, Slot::kQueryPre);
  } else {
    place(made.results[2], Slot::kValue);
  }
  return {made.results[0], made.results[1], made.results[2]};
}

void LayerGraphs::build_post(Graph& graph, const LayerTensors& layer) const {
  ggml_context* c = graph.context.get();
  LinearInput attention{.x = input(graph, Slot::kAttention)};
  const LinearFactor output = with_bias(graph, layer, Part::kOutput, Part::kOutputBias);
  ggml_tensor* x = input(graph, Slot::kX);
  if (part_of(layer, Part::kAttentionPostNorm) == nullptr) {
    x = graph.linear->multiply(output, attention, x);
  } else {
    x = ggml_add(c, optional_norm(graph, layer, Part::kAttentionPostNorm, graph.linear->multiply(output, attention)), x);
  }
  ggml_tensor* result = feed_forward(graph, layer, x);
  place(base_of(result), Slot::kX);  // over the input, which the first addition was the last to read
  ggml_build_forward_expand(graph.nodes, result);
}

void LayerGraphs::build_projection(Graph& graph, const LayerTensors& layer) const {
  LinearInput attention{.x = input(graph, Slot::kAttention)};
  ggml_tensor* result = graph.linear->multiply(factor(graph, layer, Part::kOutput), attention);
  place(base_of(result), Slot::kX);
  ggml_build_forward_expand(graph.nodes, result);
}

ggml_tensor* LayerGraphs::feed_forward(Graph& graph, const LayerTensors& layer, ggml_tensor* x) const {
  ggml_context* c = graph.context.get();
  ggml_tensor* weight = leaf(graph, layer, Part::kFfnNorm);
  if (config_.experts.has_value()) {
    ggml_tensor* ffn = experts(graph, layer, norm(graph, x, weight));
    return ggml_add(c, optional_norm(graph, layer, Part::kFfnPostNorm, ffn), x);
  }
  LinearInput input{.x = x, .norm = weight};
  const bool is_gelu = config_.architecture->activation == Activation::kGelu;
  const LinearNodes::FeedForward matrices = {.gate = factor(graph, layer, Part::kGate),
                                             .up = factor(graph, layer, Part::kUp),
                                             .down = factor(graph, layer, Part::kDown),
                                             .function = is_gelu ? GatedBy::kGelu : GatedBy::kSilu};
  if (part_of(layer, Part::kFfnPostNorm) == nullptr) return graph.linear->feed_forward(matrices, input, x);
  return ggml_add(c, optional_norm(graph, layer, Part::kFfnPostNorm, graph.linear->feed_forward(matrices, input, nullptr)), x);
}

// The router's best experts per token, their outputs weighted by its softmax over all, scaled to sum to 1.
ggml_tensor* LayerGraphs::experts(Graph& graph, const LayerTensors& layer, ggml_tensor* x) const {
  ggml_context* c = graph.context.get();
  const auto rows = static_cast<std::int64_t>(graph.signature.rows);
  const std::int64_t used = config_.experts->used;
  const std::int64_t hidden = config_.shape.hidden;
  ggml_tensor* shares = ggml_soft_max(c, ggml_mul_mat(c, leaf(graph, layer, Part::kRouter), x));
  ggml_tensor* chosen = ggml_argsort_top_k(c, shares, config_.experts->used);  // [used, rows]
  ggml_tensor* weights = ggml_get_rows(c, ggml_reshape_3d(c, shares, 1, config_.experts->count, rows), chosen);
  weights = ggml_reshape_2d(c, weights, used, rows);
  ggml_tensor* sum = ggml_clamp(c, ggml_sum_rows(c, weights), kLeastWeightSum, INFINITY);
  weights = ggml_reshape_3d(c, ggml_div(c, weights, sum), 1, used, rows);
  ggml_build_forward_expand(graph.nodes, weights);
  x = ggml_reshape_3d(c, x, hidden, 1, rows);
  ggml_tensor* up = ggml_mul_mat_id(c, leaf(graph, layer, Part::kUp), x, chosen);  // [ffn, used, rows]
  ggml_tensor* gate = ggml_mul_mat_id(c, leaf(graph, layer, Part::kGate), x, chosen);
  ggml_tensor* down = ggml_mul_mat_id(c, leaf(graph, layer, Part::kDown), gated(graph, gate, up), chosen);
  down = ggml_mul(c, down, weights);  // [hidden, used, rows]
  ggml_build_forward_expand(graph.nodes, down);
  const auto output_of = [&](std::int64_t i) {
    return ggml_view_2d(c, down, hidden, rows, down->nb[2], static_cast<std::size_t>(i) * down->nb[1]);
  };
  ggml_tensor* total = output_of(0);
  for (std::int64_t i = 1; i < used; ++i) total = ggml_add(c, total, output_of(i));
  return used == 1 ? ggml_cont(c, total) : total;
}

ggml_tensor* LayerGraphs::gated(Graph& graph, ggml_tensor* gate, ggml_tensor* up) const {
  const bool is_gelu = config_.architecture->activation == Activation::kGelu;
  return is_gelu ? ggml_geglu_split(graph.context.get(), gate, up) : ggml_swiglu_split(graph.context.get(), gate, up);
}

void LayerGraphs::build_logits(Graph& graph) const {
  ggml_context* c = graph.context.get();
  LinearInput x{.x = input(graph, Slot::kX), .norm = stand_in(c, weights_.output_norm())};
  ggml_tensor* result = graph.linear->multiply({.weight = stand_in(c, weights_.output()), .outputs = width(Slot::kLogits)}, x);
  place(base_of(result), Slot::kLogits);
  ggml_build_forward_expand(graph.nodes, result);
}

ggml_tensor* LayerGraphs::norm(Graph& graph, ggml_tensor* x, ggml_tensor* weight) const {
  return ggml_mul(graph.context.get(), ggml_rms_norm(graph.context.get(), x, config_.rms_epsilon), weight);
}

ggml_tensor* LayerGraphs::optional_norm(Graph& graph, const LayerTensors& layer, Part part, ggml_tensor* x) const {
  return part_of(layer, part) == nullptr ? x : norm(graph, x, leaf(graph, layer, part));
}

ggml_tensor* LayerGraphs::by_head(Graph& graph, ggml_tensor* x, int heads) const {
  return ggml_reshape_3d(graph.context.get(), x, config_.shape.layers[0].head_dim, heads,
                         static_cast<std::int64_t>(graph.signature.rows));
}

ggml_tensor* LayerGraphs::rope(Graph& graph, ggml_tensor* x, ggml_tensor* positions) const {
  ggml_context* c = graph.context.get();
  const int mode = config_.architecture->rope_pairs == RopePairs::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  ggml_tensor* factors = weights_.rope_factors() == nullptr ? nullptr : stand_in(c, weights_.rope_factors());
  const RopeSettings& r = graph.signature.rope == Rope::kWindow ? *config_.window_rope : config_.rope;
  return ggml_rope_ext(c, x, positions, factors, r.dims, mode, r.original_context, static_cast<float>(r.base),
                       static_cast<float>(r.scale), r.yarn, r.magnitude, r.beta_fast, r.beta_slow);
}

ggml_tensor* LayerGraphs::leaf(Graph& graph, const LayerTensors& layer, Part part) const {
  ggml_tensor* tensor = stand_in(graph.context.get(), part_of(layer, part));
  graph.leaves[static_cast<std::size_t>(part)] = tensor;
  return tensor;
}

LinearFactor LayerGraphs::factor(Graph& graph, const LayerTensors& layer, Part matrix) const {
  return {.weight = leaf(graph, layer, matrix), .outputs = Weights::outputs(config_, matrix)};
}

LinearFactor LayerGraphs::with_bias(Graph& graph, const LayerTensors& layer, Part matrix, Part bias) const {
  LinearFactor made = factor(graph, layer, matrix);
  if (part_of(layer, bias) != nullptr) made.bias = leaf(graph, layer, bias);
  return made;
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
