#include "model/weights.h"

#include <utility>

#include <fmt/format.h>
#include <ggml-cpu.h>

#include "core/bytes_text.h"
#include "model/linear_nodes.h"
#include "model/memory_limit.h"

namespace kvartet {
namespace {

// Activations of a 512-row chunk, graphs and the like, beside the weights: an allowance.
constexpr std::uint64_t kScratchAllowance = std::uint64_t{64} << 20;

struct PartName {
  Part part;
  const char* name;
};
constexpr PartName kMatrixNames[] = {
    {Part::kQuery, "attn_q.weight"},       {Part::kKey, "attn_k.weight"},    {Part::kValue, "attn_v.weight"},
    {Part::kOutput, "attn_output.weight"}, {Part::kGate, "ffn_gate.weight"}, {Part::kUp, "ffn_up.weight"},
    {Part::kDown, "ffn_down.weight"},
};
constexpr PartName kExpertNames[] = {
    {Part::kGate, "ffn_gate_exps.weight"}, {Part::kUp, "ffn_up_exps.weight"}, {Part::kDown, "ffn_down_exps.weight"}};
constexpr PartName kVectorNames[] = {
    {Part::kAttentionNorm, "attn_norm.weight"},
    {Part::kFfnNorm, "ffn_norm.weight"},
    {Part::kQueryNorm, "attn_q_norm.weight"},
    {Part::kKeyNorm, "attn_k_norm.weight"},
    {Part::kAttentionPostNorm, "post_attention_norm.weight"},
    {Part::kFfnPostNorm, "post_ffw_norm.weight"},
    {Part::kQueryBias, "attn_q.bias"},
    {Part::kKeyBias, "attn_k.bias"},
    {Part::kValueBias, "attn_v.bias"},
    {Part::kOutputBias, "attn_output.bias"},
};

Presence presence_of(const Architecture& architecture, Part part) {
  switch (part) {
    case Part::kQueryBias:
    case Part::kKeyBias:
    case Part::kValueBias: return architecture.query_key_value_bias;
    case Part::kOutputBias: return architecture.output_bias;
    case Part::kQueryNorm:
    case Part::kKeyNorm: return architecture.query_key_norm;
    case Part::kAttentionPostNorm:
    case Part::kFfnPostNorm: return architecture.post_norms;
    case Part::kRouter: return architecture.feed_forward == FeedForward::kExperts ? Presence::kRequired : Presence::kAbsent;
    default: return Presence::kRequired;
  }
}

// Types that ggml has a matrix product for.
bool is_multipliable(ggml_type type) { return type == GGML_TYPE_F32 || ggml_get_type_traits_cpu(type)->vec_dot != nullptr; }

}  // namespace

Result<std::unique_ptr<Weights>> Weights::load(std::shared_ptr<const GgufFile> file, const ModelConfig& config,
                                               const LoadOptions& options) {
  auto weights = std::unique_ptr<Weights>(new Weights(std::move(file), config, options));
  KV_TRY(weights->map_tensors());
  const std::uint64_t allowed = options.memory_bytes != 0 ? options.memory_bytes : available_memory(FileSystem::real());
  KV_TRY(weights->check_memory(allowed));
  KV_TRY(options.bf16_copy ? weights->make_bf16_copy() : weights->prepare_conversion());
  return weights;
}

Weights::Weights(std::shared_ptr<const GgufFile> file, const ModelConfig& config, const LoadOptions& options)
    : file_(std::move(file)),
      config_(config),
      options_(options),
      prefill_type_(fastest_prefill_type()),
      packs_(packed_kernels() != nullptr) {}

std::size_t Weights::bytes() const { return file_->file_bytes() + scratch_.bytes() + copy_.bytes(); }

WeightReads Weights::reads() const {
  WeightReads reads;
  for (const LayerTensors& layer : stored_) {
    for (const ggml_tensor* tensor : layer) {
      if (tensor == nullptr) continue;
      const bool is_stack = tensor->ne[2] > 1;  // of experts, a few of which serve a token
      const std::size_t used = is_stack ? static_cast<std::size_t>(config_.experts->used) : 1;
      reads.layers += ggml_nbytes(tensor) / static_cast<std::size_t>(tensor->ne[2]) * used;
    }
  }
  reads.head = ggml_nbytes(output_);
  return reads;
}

Weights::TensorShape Weights::shape_of(const ModelConfig& config, Part part) {
  const LayerShape& layer = config.shape.layers[0];
  const std::int64_t hidden = config.shape.hidden;
  const std::int64_t query = std::int64_t{layer.heads} * layer.head_dim;
  const std::int64_t key = std::int64_t{layer.kv_heads} * layer.head_dim;
  const std::int64_t experts = config.experts.has_value() ? config.experts->count : 1;
  switch (part) {
    case Part::kQuery: return {.columns = hidden, .rows = query};
    case Part::kKey:
    case Part::kValue: return {.columns = hidden, .rows = key};
    case Part::kOutput: return {.columns = query, .rows = hidden};
    case Part::kGate:
    case Part::kUp: return {.columns = hidden, .rows = config.shape.ffn, .depth = experts};
    case Part::kDown: return {.columns = config.shape.ffn, .rows = hidden, .depth = experts};
    case Part::kRouter: return {.columns = hidden, .rows = experts};
    case Part::kAttentionNorm:
    case Part::kFfnNorm:
    case Part::kAttentionPostNorm:
    case Part::kFfnPostNorm:
    case Part::kOutputBias: return {.columns = hidden};
    case Part::kQueryNorm:
    case Part::kKeyNorm: return {.columns = layer.head_dim};
    case Part::kQueryBias: return {.columns = query};
    case Part::kKeyBias:
    case Part::kValueBias: return {.columns = key};
  }
  return {};
}

Status Weights::map_tensors() {
  map_ = OwnedTensors::with_room_for(static_cast<std::size_t>(file_->tensor_count()));
  // ggml takes a pointer it could write through, but never writes to weights; the pages are mapped read-only.
  map_.buffer.reset(ggml_backend_cpu_buffer_from_ptr(const_cast<std::byte*>(file_->data()), file_->file_bytes()));
  if (map_.buffer == nullptr) return exhausted("no memory for the table of weights");
  ggml_backend_buffer_set_usage(map_.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);

  const ModelShape& shape = config_.shape;
  KV_ASSIGN(embedding_, find_matrix("token_embd.weight", Presence::kRequired, {shape.hidden, shape.vocab}));
  KV_ASSIGN(output_norm_, find_vector("output_norm.weight", Presence::kRequired, shape.hidden));
  KV_ASSIGN(output_, find_matrix("output.weight", Presence::kOptional, {shape.hidden, shape.vocab}));
  if (output_ == nullptr) output_ = embedding_;
  KV_ASSIGN(rope_factors_, find_vector("rope_freqs.weight", config_.architecture->rope_factors, config_.rope.dims / 2));
  for (int l = 0; l < shape.layer_count(); ++l) KV_TRY(find_layer(l));
  return refuse_unknown_tensors();
}

Result<const ggml_tensor*> Weights::find(const std::string& name, Presence presence, const TensorShape& shape) {
  const ggml_tensor* record = presence == Presence::kAbsent ? nullptr : file_->tensor(name);
  if (record == nullptr) {
    if (presence != Presence::kRequired) return nullptr;
    return bad_input(
        fmt::format("'{}' lacks the tensor '{}', which a {} model needs", file_->path(), name, config_.architecture->name));
  }
  if (record->ne[0] != shape.columns || record->ne[1] != shape.rows || record->ne[2] != shape.depth || record->ne[3] != 1) {
    return bad_input(fmt::format("the tensor '{}' of '{}' is {} x {}, but its metadata says {} x {}", name, file_->path(),
                                 record->ne[0], ggml_nrows(record), shape.columns, shape.rows * shape.depth));
  }
  ggml_tensor* tensor = ggml_dup_tensor(map_.context.get(), record);
  ggml_set_name(tensor, record->name);
  void* place = static_cast<std::byte*>(ggml_backend_buffer_get_base(map_.buffer.get())) + file_->tensor_offset(*record);
  KV_CHECK(ggml_backend_tensor_alloc(map_.buffer.get(), tensor, place) == GGML_STATUS_SUCCESS);
  known_.insert(name);
  return tensor;
}

Result<const ggml_tensor*> Weights::find_matrix(const std::string& name, Presence presence, const TensorShape& shape) {
  KV_ASSIGN(const ggml_tensor* tensor, find(name, presence, shape));
  if (tensor == nullptr || is_multipliable(tensor->type)) return tensor;
  return bad_input(fmt::format("the tensor '{}' of '{}' has the type {}, which cannot be multiplied with", name, file_->path(),
                               ggml_type_name(tensor->type)));
}

Result<const ggml_tensor*> Weights::find_vector(const std::string& name, Presence presence, std::int64_t size) {
  KV_ASSIGN(const ggml_tensor* tensor, find(name, presence, {.columns = size}));
  if (tensor == nullptr || tensor->type == GGML_TYPE_F32) return tensor;
  return bad_input(fmt::format("the tensor '{}' of '{}' has the type {}, but f32 is needed", name, file_->path(),
                               ggml_type_name(tensor->type)));
}

Status Weights::find_layer(int index) {
  LayerTensors layer{};
  const auto add_matrix = [&](Part part, const char* name) -> Status {
    KV_ASSIGN(
        layer[static_cast<std::size_t>(part)],
        find_matrix(fmt::format("blk.{}.{}", index, name), presence_of(*config_.architecture, part), shape_of(config_, part)));
    return {};
  };
  for (const auto& [part, name] : kMatrixNames) {
    if (!config_.experts.has_value() || part < Part::kGate) KV_TRY(add_matrix(part, name));
  }
  for (const auto& [part, name] : kExpertNames) {
    if (config_.experts.has_value()) KV_TRY(add_matrix(part, name));
  }
  KV_TRY(add_matrix(Part::kRouter, "ffn_gate_inp.weight"));
  for (const auto& [part, name] : kVectorNames) {
    const Presence presence = presence_of(*config_.architecture, part);
    KV_ASSIGN(layer[static_cast<std::size_t>(part)],
              find_vector(fmt::format("blk.{}.{}", index, name), presence, shape_of(config_, part).columns));
  }
  stored_.push_back(layer);
  return {};
}

// A tensor nobody asked for belongs to a model that computes something else (experts, norms of Q and K, ...).
Status Weights::refuse_unknown_tensors() const {
  for (int i = 0; i < file_->tensor_count(); ++i) {
    const std::string_view name = file_->tensor_at(i)->name;
    if (known_.contains(name)) continue;
    return bad_input(fmt::format("'{}' has the tensor '{}', which a plain {} model does not have: this variant is not supported",
                                 file_->path(), name, config_.architecture->name));
  }
  return {};
}

Status Weights::check_memory(std::uint64_t allowed) const {
  std::uint64_t copy_bytes = 0;  // of matrices that get a second form: of the whole model, or of one layer
  for (int l = 0; l < (options_.bf16_copy ? config_.shape.layer_count() : 1); ++l) {
    for (std::size_t m = 0; m < kMatrixParts; ++m) {
      const ggml_tensor* matrix = stored_[static_cast<std::size_t>(l)][m];
      if (options_.bf16_copy || matrix->ne[2] == 1) copy_bytes += copied_bytes(*matrix);
    }
  }
  if (options_.bf16_copy) copy_bytes += copied_bytes(*output_);
  const std::uint64_t needed = file_->file_bytes() + copy_bytes + kScratchAllowance;
  if (needed <= allowed) return {};
  return exhausted(fmt::format(
      "'{}' needs about {} of memory (weights {}, converted weights {}), but only {} is free: choose a smaller model "
      "or close other programs",
      file_->path(), bytes_text(needed), bytes_text(file_->file_bytes()), bytes_text(copy_bytes), bytes_text(allowed)));
}

std::uint64_t Weights::copied_bytes(const ggml_tensor& matrix) const {
  if (packs(matrix))
    return panel_count(static_cast<std::size_t>(matrix.ne[1])) * kPanelOutputs * static_cast<std::size_t>(matrix.ne[0]) *
           sizeof(std::uint16_t);
  return static_cast<std::uint64_t>(ggml_nelements(&matrix)) *
         ggml_type_size(options_.bf16_copy ? GGML_TYPE_BF16 : prefill_type_);
}

const LayerTensors& Weights::layer(int index, Linear linear) const {
  if (linear == Linear::kStored || !converts()) return stored_[static_cast<std::size_t>(index)];
  KV_CHECK(index == converted_layer_);
  return converted_;
}

bool Weights::is_converted(const ggml_tensor* matrix) const {
  return is_convertible(matrix->type) && (matrix->type != prefill_type_ || packs(*matrix)) && matrix->ne[2] == 1;
}

bool Weights::are_rounded() const {
  if (options_.bf16_copy) return false;
  for (const LayerTensors& layer : stored_) {
    for (std::size_t m = 0; m < kMatrixParts; ++m) {
      if (is_convertible(layer[m]->type)) return true;
    }
  }
  return false;
}

Status Weights::prepare_conversion() {
  bool any = false;
  for (const LayerTensors& layer : stored_) {
    for (std::size_t m = 0; m < kMatrixParts; ++m) any = any || is_converted(layer[m]);
  }
  if (!any) return {};
  scratch_ = OwnedTensors::with_room_for(kMatrixParts);
  for (std::size_t m = 0; m < kMatrixParts; ++m) {
    const TensorShape shape = shape_of(config_, static_cast<Part>(m));
    if (shape.depth > 1) continue;
    const bool packed = packs(*stored_[0][m]);
    scratch_matrices_[m] = packed ? new_packed_matrix(scratch_.context.get(), shape.columns, shape.rows)
                                  : ggml_new_tensor_2d(scratch_.context.get(), prefill_type_, shape.columns, shape.rows);
  }
  return scratch_.allocate();
}

void Weights::convert_layer(int index) {
  if (!converts() || index == converted_layer_) return;
  converted_ = stored_[static_cast<std::size_t>(index)];
  for (std::size_t m = 0; m < kMatrixParts; ++m) {
    const ggml_tensor& stored = *converted_[m];
    if (!is_converted(&stored)) continue;
    if (packs(stored)) {
      pack_matrix(stored, *scratch_matrices_[m], options_.threads);
      converted_[m] = scratch_matrices_[m];
    } else if (convert_matrix(stored, *scratch_matrices_[m], options_.threads)) {
      converted_[m] = scratch_matrices_[m];
    }
  }
  converted_layer_ = index;
}

Status Weights::make_bf16_copy() {
  std::vector<std::pair<const ggml_tensor**, ggml_tensor*>> copies;
  copy_ = OwnedTensors::with_room_for(stored_.size() * kMatrixParts + 1);
  const auto add = [&](const ggml_tensor*& original) {
    if (!ggml_is_quantized(original->type)) return;
    copies.emplace_back(&original, ggml_new_tensor(copy_.context.get(), GGML_TYPE_BF16, ggml_n_dims(original), original->ne));
  };
  for (LayerTensors& layer : stored_) {
    for (std::size_t m = 0; m < kMatrixParts; ++m) add(layer[m]);
  }
  add(output_);
  if (copies.empty()) return {};
  KV_TRY(copy_.allocate());
  for (const auto& [original, copy] : copies) {
    convert_matrix(**original, *copy, options_.threads);
    *original = copy;
  }
  return {};
}

void Weights::embedding_row(std::int32_t token, std::span<float> row) const {
  read_row(*embedding_, token, row.data());
  if (options_.bf16_copy && ggml_is_quantized(embedding_->type)) {
    for (float& v : row) v = ggml_bf16_to_fp32(ggml_fp32_to_bf16(v));
  }
  if (config_.embedding_scale == 1) return;
  for (float& v : row) v *= config_.embedding_scale;
}

}  // namespace kvartet
