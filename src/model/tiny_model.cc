#include "model/tiny_model.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include <fmt/format.h>
#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>

#include "core/rng.h"
#include "model/arch.h"
#include "model/ggml_runtime.h"

namespace kvartet {
namespace {

constexpr int kSpecialTokens = 3;
constexpr int kByteTokens = 256;
constexpr int kNormalToken = 1;
constexpr int kControlToken = 3;
constexpr int kUnusedToken = 5;

ggml_type ggml_type_of(TinyWeights weights) {
  switch (weights) {
    case TinyWeights::kF32: return GGML_TYPE_F32;
    case TinyWeights::kF16: return GGML_TYPE_F16;
    case TinyWeights::kBf16: return GGML_TYPE_BF16;
    case TinyWeights::kQ8_0: return GGML_TYPE_Q8_0;
    case TinyWeights::kQ4_1: return GGML_TYPE_Q4_1;
    case TinyWeights::kQ4_0: return GGML_TYPE_Q4_0;
  }
  return GGML_TYPE_F32;
}

std::string utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0U | (code >> 6)), static_cast<char>(0x80U | (code & 0x3fU))};
}

// GPT-2 writes each byte as one printable character: printable Latin-1 as itself, the others as U+0100 upwards in order.
std::string byte_character(int byte, int& next_free) {
  const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  return utf8(static_cast<unsigned>(printable ? byte : 256 + next_free++));
}

class Writer {
 public:
  explicit Writer(const TinyModelOptions& options) : options_(options), gguf_(gguf_init_empty()), rng_(options.seed) {
    const std::size_t tensors = 16 + static_cast<std::size_t>(options.layers) * 20;
    context_.reset(ggml_init({ggml_tensor_overhead() * tensors, nullptr, true}));
  }

  Status write(const std::string& path) {
    add_shape();
    add_vocabulary();
    add_tensors();
    if (!gguf_write_to_file(gguf_.get(), path.c_str(), false)) {
      return io_error(fmt::format("cannot write the model file '{}': check that the folder exists and has space", path));
    }
    return {};
  }

 private:
  void set(const char* key, int value) {
    gguf_set_val_u32(gguf_.get(), prefixed(key).c_str(), static_cast<std::uint32_t>(value));
  }
  void set(const char* key, double value) { gguf_set_val_f32(gguf_.get(), prefixed(key).c_str(), static_cast<float>(value)); }
  bool has_experts() const { return options_.architecture == "qwen3moe"; }
  bool has_post_norms() const { return options_.architecture == "gemma3"; }
  bool has_query_key_norms() const { return has_post_norms() || options_.architecture.starts_with("qwen3"); }
  std::string prefixed(const char* key) const { return options_.architecture + "." + key; }

  void add_shape() {
    gguf_set_val_str(gguf_.get(), "general.architecture", options_.architecture.c_str());
    gguf_set_val_str(gguf_.get(), "general.name", "tiny random model");
    set("block_count", options_.layers);
    set("context_length", options_.context);
    set("embedding_length", options_.hidden);
    set("feed_forward_length", options_.ffn);
    set("attention.head_count", options_.heads);
    set("attention.head_count_kv", options_.kv_heads);
    set("attention.key_length", options_.head_dim);
    set("attention.value_length", options_.head_dim);
    set("attention.layer_norm_rms_epsilon", 1e-5);
    set("rope.dimension_count", options_.head_dim);
    set("rope.freq_base", options_.rope_base);
    if (options_.rope_linear != 1) {
      gguf_set_val_str(gguf_.get(), prefixed("rope.scaling.type").c_str(), "linear");
      set("rope.scaling.factor", options_.rope_linear);
    }
    if (options_.rope_yarn != 1) {
      gguf_set_val_str(gguf_.get(), prefixed("rope.scaling.type").c_str(), "yarn");
      set("rope.scaling.factor", options_.rope_yarn);
      set("rope.scaling.original_context_length", static_cast<int>(options_.context / options_.rope_yarn));
    }
    if (options_.window > 0) set("attention.sliding_window", options_.window);
    if (options_.window_period > 0) set("attention.sliding_window_pattern", options_.window_period);
    if (has_experts()) {
      set("expert_count", options_.experts);
      set("expert_used_count", options_.experts_used);
      set("expert_feed_forward_length", options_.ffn);
    }
  }

  void add_vocabulary() {
    std::vector<std::string> tokens;
    int next_free = 0;
    for (int byte = 0; byte < kByteTokens; ++byte) tokens.push_back(byte_character(byte, next_free));
    tokens.insert(tokens.end(), {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
    while (static_cast<int>(tokens.size()) < options_.vocab) tokens.push_back(fmt::format("[unused{}]", tokens.size()));
    std::vector<std::int32_t> types(tokens.size(), kUnusedToken);
    for (int i = 0; i < kByteTokens + kSpecialTokens; ++i) {
      types[static_cast<std::size_t>(i)] = i < kByteTokens ? kNormalToken : kControlToken;
    }
    std::vector<const char*> pointers;
    for (const std::string& t : tokens) pointers.push_back(t.c_str());
    gguf_context* g = gguf_.get();
    gguf_set_val_str(g, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(g, "tokenizer.ggml.pre", "gpt-2");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
    gguf_set_arr_str(g, "tokenizer.ggml.merges", nullptr, 0);
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", kByteTokens);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", kByteTokens + 2);
    gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", false);
    if (options_.chat_template) {
      gguf_set_val_str(
          g, "tokenizer.chat_template",
          "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
    }
  }

  void add_tensors() {
    const int q = options_.heads * options_.head_dim;
    const int kv = options_.kv_heads * options_.head_dim;
    const int hidden = options_.hidden;
    // Standard deviations: logits of about 2, and keys and queries large enough that attention is far from flat. Gemma
    // scales its embedding up by the square root of the width.
    const bool is_scaled_up = options_.architecture == "gemma3" && !options_.tied;
    add_matrix("token_embd.weight", hidden, options_.vocab, 2 / std::sqrt(hidden) / (is_scaled_up ? std::sqrt(hidden) : 1));
    add_norm("output_norm.weight");
    if (!options_.tied) add_matrix("output.weight", hidden, options_.vocab, 2 / std::sqrt(hidden));
    if (options_.rope_factors) add_rope_factors();
    for (int l = 0; l < options_.layers; ++l) {
      const std::string block = fmt::format("blk.{}.", l);
      add_norm(block + "attn_norm.weight");
      if (has_query_key_norms()) {
        add_vector(block + "attn_q_norm.weight", options_.head_dim, 1.5, 0.2);
        add_vector(block + "attn_k_norm.weight", options_.head_dim, 1.5, 0.2);
      }
      if (has_post_norms()) {
        add_norm(block + "post_attention_norm.weight");
        add_norm(block + "post_ffw_norm.weight");
      }
      add_matrix(block + "attn_q.weight", hidden, q, 1.5 / std::sqrt(hidden));
      add_matrix(block + "attn_k.weight", hidden, kv, 1.5 / std::sqrt(hidden));
      add_matrix(block + "attn_v.weight", hidden, kv, 1 / std::sqrt(hidden));
      add_matrix(block + "attn_output.weight", q, hidden, 1 / std::sqrt(q));
      add_norm(block + "ffn_norm.weight");
      if (has_experts()) {
        add_matrix(block + "ffn_gate_inp.weight", hidden, options_.experts, 2 / std::sqrt(hidden));
        add_experts(block + "ffn_gate_exps.weight", hidden, options_.ffn, 1 / std::sqrt(hidden));
        add_experts(block + "ffn_up_exps.weight", hidden, options_.ffn, 1 / std::sqrt(hidden));
        add_experts(block + "ffn_down_exps.weight", options_.ffn, hidden, 1 / std::sqrt(options_.ffn));
      } else {
        add_matrix(block + "ffn_gate.weight", hidden, options_.ffn, 1 / std::sqrt(hidden));
        add_matrix(block + "ffn_up.weight", hidden, options_.ffn, 1 / std::sqrt(hidden));
        add_matrix(block + "ffn_down.weight", options_.ffn, hidden, 1 / std::sqrt(options_.ffn));
      }
      if (options_.architecture == "qwen2") {
        add_vector(block + "attn_q.bias", q, 0, 0.5);
        if (options_.key_bias_norm > 0) {
          add_key_bias(block + "attn_k.bias");
        } else {
          add_vector(block + "attn_k.bias", kv, 0, 0.5);
        }
        add_vector(block + "attn_v.bias", kv, 0, 0.5);
      }
    }
  }

  std::vector<float> normals(std::size_t count, double mean, double deviation) {
    std::vector<float> values(count);
    for (float& v : values) v = static_cast<float>(mean + deviation * rng_.normal());
    return values;
  }

  void add_matrix(const std::string& name, int in, int out, double deviation) {
    const std::vector<float> values = normals(static_cast<std::size_t>(in) * static_cast<std::size_t>(out), 0, deviation);
    add(name, ggml_new_tensor_2d(context_.get(), ggml_type_of(options_.weights), in, out), values);
  }
  void add_experts(const std::string& name, int in, int out, double deviation) {
    const std::size_t size = static_cast<std::size_t>(in) * static_cast<std::size_t>(out);
    const std::vector<float> values = normals(size * static_cast<std::size_t>(options_.experts), 0, deviation);
    add(name, ggml_new_tensor_3d(context_.get(), ggml_type_of(options_.weights), in, out, options_.experts), values);
  }
  void add_vector(const std::string& name, int size, double mean, double deviation) {
    add(name, ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, size), normals(static_cast<std::size_t>(size), mean, deviation));
  }
  void add_key_bias(const std::string& name) {
    const int pairs = options_.head_dim / 2;  // channels i and i + pairs turn together, the last ones slowest
    const double each = options_.key_bias_norm / std::sqrt(4.0 * options_.kv_heads);
    std::vector<float> values = normals(static_cast<std::size_t>(options_.kv_heads * options_.head_dim), 0, 0.5);
    for (int head = 0; head < options_.kv_heads; ++head) {
      for (const int channel : {pairs - 2, pairs - 1, 2 * pairs - 2, 2 * pairs - 1}) {
        const double sign = rng_.normal() < 0 ? -1 : 1;
        values[static_cast<std::size_t>(head * options_.head_dim + channel)] = static_cast<float>(sign * each);
      }
    }
    add(name, ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, static_cast<std::int64_t>(values.size())), values);
  }
  void add_norm(const std::string& name) { add_vector(name, options_.hidden, 1, 0.1); }
  void add_rope_factors() {
    std::vector<float> factors;
    for (int i = 0; i < options_.head_dim / 2; ++i) factors.push_back(1.0F + 0.9F * static_cast<float>(i));
    add("rope_freqs.weight", ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, options_.head_dim / 2), factors);
  }

  void add(const std::string& name, ggml_tensor* tensor, const std::vector<float>& values) {
    ggml_set_name(tensor, name.c_str());
    data_.emplace_back(ggml_nbytes(tensor));
    ggml_quantize_chunk(tensor->type, values.data(), data_.back().data(), 0, ggml_nrows(tensor), tensor->ne[0], nullptr);
    tensor->data = data_.back().data();
    gguf_add_tensor(gguf_.get(), tensor);
  }

  const TinyModelOptions& options_;
  gguf_context_ptr gguf_;
  ggml_context_ptr context_;
  std::vector<std::vector<std::byte>> data_;
  Rng rng_;
};

Status check(const TinyModelOptions& o) {
  if (find_architecture(o.architecture) == nullptr) {
    return usage_error(
        fmt::format("a tiny model of architecture '{}' cannot be written: use {}", o.architecture, architecture_names()));
  }
  if (o.experts < 1 || o.experts_used < 1 || o.experts_used > o.experts || o.window < 0 || o.window_period < 0) {
    return usage_error(
        "a tiny model needs at least one expert, no more in use than there are, and windows that are not negative");
  }
  if (o.layers < 1 || o.hidden < 32 || o.hidden % 32 != 0 || o.ffn < 32 || o.ffn % 32 != 0 || o.heads < 1 || o.kv_heads < 1 ||
      o.heads % o.kv_heads != 0 || o.head_dim < 2 || o.head_dim % 2 != 0 || o.heads * o.head_dim % 32 != 0 || o.context < 1) {
    return usage_error(
        "a tiny model needs at least one layer, widths in multiples of 32, heads that the KV heads divide, and an even head_dim");
  }
  if (o.rope_factors && o.architecture != "llama") return usage_error("only llama models may have a rope_freqs tensor");
  if (o.vocab < kByteTokens + kSpecialTokens) {
    return usage_error(fmt::format("a tiny model needs a vocabulary of at least 259 tokens, not {}", o.vocab));
  }
  return {};
}

}  // namespace

Status write_tiny_model(const std::string& path, const TinyModelOptions& options) {
  start_ggml();
  KV_TRY(check(options));
  return Writer(options).write(path);
}

}  // namespace kvartet
