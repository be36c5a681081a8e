#include "model/linear_nodes.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "core/uz.h"

namespace kvartet {

std::optional<StoredFormat> stored_format(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0: return StoredFormat::kQ4_0;
    case GGML_TYPE_Q4_1: return StoredFormat::kQ4_1;
    case GGML_TYPE_Q8_0: return StoredFormat::kQ8_0;
    default: return std::nullopt;
  }
}

namespace {

constexpr std::size_t kTile = 4;  // outputs of stored weights: threads share a matrix at multiples of it
// How much of gate and up lies between their products and the next one's input: small enough for a thread's own cache.
constexpr std::size_t kGatedRows = 16;
constexpr std::size_t kGatedOutputs = 4 * kStoredBlock;
constexpr std::size_t kGatedTiles = 16;  // of packed weights
constexpr std::size_t kAlignment = 64;

std::int64_t i64(std::size_t n) { return static_cast<std::int64_t>(n); }
std::size_t inputs_of(const ggml_tensor& weight) { return weight.type == kPackedType ? 2 * uz(weight.ne[1]) : uz(weight.ne[0]); }
float* floats(const ggml_tensor* tensor) { return static_cast<float*>(tensor->data); }
std::uint16_t* bf16_rows(const ggml_tensor* tensor) { return static_cast<std::uint16_t*>(tensor->data); }

// ggml aligns tensors to 32 bytes.
Int8Blocks* int8_rows(const ggml_tensor* tensor) {
  const auto place = reinterpret_cast<std::uintptr_t>(tensor->data);
  return reinterpret_cast<Int8Blocks*>((place + kAlignment - 1) / kAlignment * kAlignment);
}

struct Share {
  std::size_t begin, end;
};
Share share_of(std::size_t count, std::size_t granule, int thread, int threads) {
  const std::size_t granules = (count + granule - 1) / granule;
  const auto border = [&](int t) { return std::min(granules * uz(t) / uz(threads) * granule, count); };
  return {border(thread), border(thread + 1)};
}

}  // namespace

// What a node needs beside its sources: they are its input, then each factor's weight and bias, then what is added.
struct LinearNode {
  const StoredKernels* stored = nullptr;
  const PackedKernels* packed = nullptr;
  std::size_t rows = 0;
  std::size_t inputs = 0;
  float epsilon = 0;
  GatedBy function = GatedBy::kSilu;
  bool adds = false;
  struct Factor {
    std::size_t outputs = 0;
    std::size_t place = 0;  // of its result, in floats
    bool has_bias = false;
  };
  std::vector<Factor> factors;
};

namespace {

const LinearNode& node_of(void* data) { return *static_cast<const LinearNode*>(data); }

// --- the input

// Calls use(row, x) for this thread's rows, after the norm if there is one.
template <typename Use>
void for_each_input_row(const LinearNode& node, const ggml_tensor* dst, int thread, int threads, const Use& use) {
  const float* const norm = dst->src[1] == nullptr ? nullptr : floats(dst->src[1]);
  thread_local std::vector<float> normed;  // stays: no token allocates
  if (norm != nullptr) normed.resize(node.inputs);
  const auto [begin, end] = share_of(node.rows, 1, thread, threads);
  for (std::size_t row = begin; row < end; ++row) {
    const float* x = floats(dst->src[0]) + row * node.inputs;
    if (norm != nullptr) {
      node.stored->rms_norm(x, norm, node.inputs, node.epsilon, normed.data());
      x = normed.data();
    }
    use(row, x);
  }
}

void run_int8(ggml_tensor* dst, int thread, int threads, void* data) {
  const LinearNode& node = node_of(data);
  const std::size_t blocks = node.inputs / kStoredBlock;
  for_each_input_row(node, dst, thread, threads, [&](std::size_t row, const float* x) {
    node.stored->quantize(x, {0, blocks, blocks}, int8_rows(dst) + row * int8_runs(node.inputs));
  });
}

void run_bf16(ggml_tensor* dst, int thread, int threads, void* data) {
  const LinearNode& node = node_of(data);
  for_each_input_row(node, dst, thread, threads, [&](std::size_t row, const float* x) {
    node.packed->round(x, node.inputs, bf16_rows(dst) + row * node.inputs);
  });
}

// --- products

struct Region {
  Share rows, outputs;
};

// Bias and what is added, where a product has just been written.
void finish(const LinearNode& node, const LinearNode::Factor& factor, const ggml_tensor* bias, const ggml_tensor* added,
            const Region& region, float* results) {
  for (std::size_t row = region.rows.begin; row < region.rows.end; ++row) {
    float* const out = results + row * factor.outputs;
    if (bias != nullptr) {
      for (std::size_t o = region.outputs.begin; o < region.outputs.end; ++o) out[o] += floats(bias)[o];
    }
    if (!node.adds) continue;
    const float* const more = floats(added) + row * factor.outputs;
    for (std::size_t o = region.outputs.begin; o < region.outputs.end; ++o) out[o] += more[o];
  }
}

StoredProduct stored_product(const LinearNode& node, const ggml_tensor* weight, const ggml_tensor* input) {
  StoredProduct product;
  product.weights = static_cast<const std::byte*>(weight->data);
  product.inputs = node.inputs;
  product.x = int8_rows(input);
  product.rows = node.rows;
  return product;
}

void run_stored(ggml_tensor* dst, int thread, int threads, void* data) {
  const LinearNode& node = node_of(data);
  std::size_t source = 1;
  for (const LinearNode::Factor& factor : node.factors) {
    const ggml_tensor* const weight = dst->src[source++];
    const ggml_tensor* const bias = factor.has_bias ? dst->src[source++] : nullptr;
    const Share outputs = share_of(factor.outputs, kTile, thread, threads);
    float* const results = floats(dst) + factor.place;
    StoredProduct product = stored_product(node, weight, dst->src[0]);
    product.out = results + outputs.begin;
    product.out_stride = factor.outputs;
    node.stored->multiply[static_cast<std::size_t>(*stored_format(weight->type))](product, outputs.begin, outputs.end);
    finish(node, factor, bias, node.adds ? dst->src[source] : nullptr, {{0, node.rows}, outputs}, results);
  }
}

PackedProduct packed_product(const LinearNode& node, const ggml_tensor* weight, std::size_t outputs, const ggml_tensor* input) {
  PackedProduct product;
  product.panels = static_cast<const std::uint32_t*>(weight->data);
  product.inputs = node.inputs;
  product.outputs = outputs;
  product.x = bf16_rows(input);
  product.rows = node.rows;
  return product;
}

// Calls use(panel, rows) for this thread's part of all tiles of rows of all panels, at most `most` tiles at a time.
template <typename Use>
void for_each_panel(const LinearNode& node, std::size_t outputs, std::size_t most, int thread, int threads, const Use& use) {
  const std::size_t tiles = (node.rows + PackedKernels::kRows - 1) / PackedKernels::kRows;
  const auto [begin, end] = share_of(panel_count(outputs) * tiles, 1, thread, threads);
  for (std::size_t unit = begin, next = 0; unit < end; unit = next) {
    const std::size_t panel = unit / tiles;
    next = std::min({end, unit + most, (panel + 1) * tiles});
    use(panel,
        Share{(unit - panel * tiles) * PackedKernels::kRows, std::min((next - panel * tiles) * PackedKernels::kRows, node.rows)});
  }
}

void run_packed(ggml_tensor* dst, int thread, int threads, void* data) {
  const LinearNode& node = node_of(data);
  std::size_t source = 1;
  for (const LinearNode::Factor& factor : node.factors) {
    const ggml_tensor* const weight = dst->src[source++];
    const ggml_tensor* const bias = factor.has_bias ? dst->src[source++] : nullptr;
    float* const results = floats(dst) + factor.place;
    PackedProduct product = packed_product(node, weight, factor.outputs, dst->src[0]);
    product.out = results;
    product.out_stride = factor.outputs;
    for_each_panel(node, factor.outputs, node.rows, thread, threads, [&](std::size_t panel, Share rows) {
      product.out = results + rows.begin * factor.outputs + panel * kPanelOutputs;
      node.packed->multiply(product, panel, rows.begin, rows.end);
      const Share outputs{panel * kPanelOutputs, std::min((panel + 1) * kPanelOutputs, factor.outputs)};
      finish(node, factor, bias, node.adds ? dst->src[source] : nullptr, {rows, outputs}, results);
    });
  }
}

// --- gate and up: sources are the input and both matrices; the result is the next product's input

void gate_stored(const LinearNode& node, const ggml_tensor* dst, const Region& region) {
  float values[2][kGatedRows * kGatedOutputs];
  for (std::size_t m = 0; m < 2; ++m) {
    StoredProduct product = stored_product(node, dst->src[1 + m], dst->src[0]);
    product.x += region.rows.begin * int8_runs(node.inputs);
    product.rows = region.rows.end - region.rows.begin;
    product.out = values[m];
    product.out_stride = kGatedOutputs;
    const auto format = static_cast<std::size_t>(*stored_format(dst->src[1 + m]->type));
    node.stored->multiply[format](product, region.outputs.begin, region.outputs.end);
  }
  const std::size_t outputs = node.factors[0].outputs;
  const std::size_t count = region.outputs.end - region.outputs.begin;
  for (std::size_t row = region.rows.begin; row < region.rows.end; ++row) {
    float* const gate = values[0] + (row - region.rows.begin) * kGatedOutputs;
    node.stored->gated(gate, values[1] + (gate - values[0]), count, node.function, gate);
    node.stored->quantize(gate, {region.outputs.begin / kStoredBlock, count / kStoredBlock, outputs / kStoredBlock},
                          int8_rows(dst) + row * int8_runs(outputs));
  }
}

void run_gated_stored(ggml_tensor* dst, int thread, int threads, void* data) {
  const LinearNode& node = node_of(data);
  const auto [first, last] = share_of(node.factors[0].outputs, kStoredBlock, thread, threads);
  for (std::size_t begin = first; begin < last; begin += kGatedOutputs) {
    for (std::size_t row = 0; row < node.rows; row += kGatedRows) {
      gate_stored(node, dst, {{row, std::min(row + kGatedRows, node.rows)}, {begin, std::min(begin + kGatedOutputs, last)}});
    }
  }
}

void run_gated_packed(ggml_tensor* dst, int thread, int threads, void* data) {
  const LinearNode& node = node_of(data);
  const std::size_t outputs = node.factors[0].outputs;
  std::vector<float> values[2];
  for (auto& v : values) v.resize(kGatedTiles * PackedKernels::kRows * kPanelOutputs);
  for_each_panel(node, outputs, kGatedTiles, thread, threads, [&](std::size_t panel, Share rows) {
    for (std::size_t m = 0; m < 2; ++m) {
      PackedProduct product = packed_product(node, dst->src[1 + m], outputs, dst->src[0]);
      product.out = values[m].data();
      product.out_stride = kPanelOutputs;
      node.packed->multiply(product, panel, rows.begin, rows.end);
    }
    const std::size_t count = std::min(kPanelOutputs, outputs - panel * kPanelOutputs);
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      const std::size_t at = (row - rows.begin) * kPanelOutputs;
      float* const gate = values[0].data() + at;
      node.stored->gated(gate, values[1].data() + at, count, node.function, gate);
      node.packed->round(gate, count, bf16_rows(dst) + row * outputs + panel * kPanelOutputs);
    }
  });
}

}  // namespace

LinearNodes::LinearNodes(ggml_context* context, std::size_t rows, float norm_epsilon)
    : context_(context), rows_(rows), epsilon_(norm_epsilon), stored_(stored_kernels()), packed_(packed_kernels()) {}
LinearNodes::LinearNodes(LinearNodes&&) noexcept = default;
LinearNodes& LinearNodes::operator=(LinearNodes&&) noexcept = default;
LinearNodes::~LinearNodes() = default;

LinearNodes::Kind LinearNodes::kind_of(const ggml_tensor& weight) const {
  if (weight.type == kPackedType) return Kind::kPacked;
  return stored_ != nullptr && stored_format(weight.type).has_value() ? Kind::kStored : Kind::kGgml;
}

LinearNode* LinearNodes::new_node(const ggml_tensor& weight) {
  LinearNode& node = nodes_.emplace_back();
  node.stored = stored_;
  node.packed = packed_;
  node.rows = rows_;
  node.inputs = inputs_of(weight);
  node.epsilon = epsilon_;
  return &node;
}

ggml_tensor* LinearNodes::plain(LinearInput& input) {
  if (input.plain != nullptr) return input.plain;
  input.plain = input.x;
  if (input.norm != nullptr) input.plain = ggml_mul(context_, ggml_rms_norm(context_, input.x, epsilon_), input.norm);
  return input.plain;
}

ggml_tensor* LinearNodes::new_form(Kind kind, std::size_t inputs, std::span<ggml_tensor* const> sources, ggml_custom_op_t run,
                                   LinearNode* node) {
  auto** const args = const_cast<ggml_tensor**>(sources.data());
  const auto count = static_cast<int>(sources.size());
  if (kind == Kind::kPacked) {
    return ggml_custom_4d(context_, GGML_TYPE_BF16, i64(inputs), i64(rows_), 1, 1, args, count, run, GGML_N_TASKS_MAX, node);
  }
  const std::size_t bytes = rows_ * int8_runs(inputs) * sizeof(Int8Blocks) + kAlignment;
  return ggml_custom_4d(context_, GGML_TYPE_I8, i64(bytes), 1, 1, 1, args, count, run, GGML_N_TASKS_MAX, node);
}

// The input as the kernel for `weight` reads it.
ggml_tensor* LinearNodes::form(LinearInput& input, const ggml_tensor& weight) {
  const Kind kind = kind_of(weight);
  ggml_tensor*& made = kind == Kind::kPacked ? input.bf16 : input.int8;
  if (made != nullptr) return made;
  const bool norms = input.norm != nullptr && input.plain == nullptr;
  ggml_tensor* const sources[2] = {norms ? input.x : plain(input), input.norm};
  made = new_form(kind, inputs_of(weight), {sources, norms ? 2U : 1U}, kind == Kind::kPacked ? run_bf16 : run_int8,
                  new_node(weight));
  return made;
}

ggml_tensor* LinearNodes::by_ggml(const LinearFactor& factor, LinearInput& input) {
  ggml_tensor* const product = ggml_mul_mat(context_, factor.weight, plain(input));
  return factor.bias == nullptr ? product : ggml_add(context_, product, factor.bias);
}

LinearNodes::Products LinearNodes::products(std::span<const LinearFactor> factors, LinearInput& input,
                                            std::span<const std::size_t> places, ggml_tensor* added) {
  KV_CHECK(factors.size() == places.size());
  const Kind kind = kind_of(*factors[0].weight);
  const bool alike = std::ranges::all_of(factors, [&](const LinearFactor& factor) { return kind_of(*factor.weight) == kind; });
  Products made;
  if (kind == Kind::kGgml || !alike) {
    for (const LinearFactor& factor : factors) made.results.push_back(multiply(factor, input));
    return made;
  }
  LinearNode* const node = new_node(*factors[0].weight);
  std::vector<ggml_tensor*> sources = {form(input, *factors[0].weight)};
  std::size_t size = 0;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    node->factors.push_back({.outputs = factors[i].outputs, .place = places[i], .has_bias = factors[i].bias != nullptr});
    sources.push_back(factors[i].weight);
    if (factors[i].bias != nullptr) sources.push_back(factors[i].bias);
    size = std::max(size, places[i] + rows_ * factors[i].outputs);
  }
  node->adds = added != nullptr;
  if (added != nullptr) sources.push_back(added);
  const bool alone = factors.size() == 1 && places[0] == 0;
  made.whole = ggml_custom_4d(context_, GGML_TYPE_F32, i64(alone ? factors[0].outputs : size), i64(alone ? rows_ : 1), 1, 1,
                              sources.data(), static_cast<int>(sources.size()), kind == Kind::kPacked ? run_packed : run_stored,
                              GGML_N_TASKS_MAX, node);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::size_t outputs = factors[i].outputs;
    made.results.push_back(
        alone ? made.whole
              : ggml_view_2d(context_, made.whole, i64(outputs), i64(rows_), outputs * sizeof(float), places[i] * sizeof(float)));
  }
  return made;
}

ggml_tensor* LinearNodes::multiply(const LinearFactor& factor, LinearInput& input, ggml_tensor* added) {
  if (kind_of(*factor.weight) == Kind::kGgml) {
    ggml_tensor* const product = by_ggml(factor, input);
    return added == nullptr ? product : ggml_add(context_, product, added);
  }
  const std::size_t place = 0;
  return products({&factor, 1}, input, {&place, 1}, added).results[0];
}

LinearInput LinearNodes::gated(const FeedForward& matrices, LinearInput& input) {
  LinearInput result;
  const ggml_tensor& gate = *matrices.gate.weight;
  const Kind kind = kind_of(gate);
  const std::size_t outputs = matrices.gate.outputs;
  if (kind != Kind::kGgml && kind_of(*matrices.up.weight) == kind && kind_of(*matrices.down.weight) == kind &&
      outputs % kStoredBlock == 0) {
    LinearNode* const node = new_node(gate);
    node->function = matrices.function;
    node->factors.push_back({.outputs = outputs});
    ggml_tensor* const sources[3] = {form(input, gate), matrices.gate.weight, matrices.up.weight};
    const bool packed = kind == Kind::kPacked;
    (packed ? result.bf16 : result.int8) = new_form(kind, outputs, sources, packed ? run_gated_packed : run_gated_stored, node);
    return result;
  }
  ggml_tensor* const up = multiply(matrices.up, input);
  ggml_tensor* const product = multiply(matrices.gate, input);
  const bool is_gelu = matrices.function == GatedBy::kGelu;
  result.x = is_gelu ? ggml_geglu_split(context_, product, up) : ggml_swiglu_split(context_, product, up);
  return result;
}

ggml_tensor* LinearNodes::feed_forward(const FeedForward& matrices, LinearInput& input, ggml_tensor* added) {
  LinearInput between = gated(matrices, input);
  return multiply(matrices.down, between, added);
}

}  // namespace kvartet
