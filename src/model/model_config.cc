#include "model/model_config.h"

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "model/vocabulary_check.h"

namespace kvartet {
namespace {

constexpr std::uint64_t kMaxLayers = 512;  // libllama's limit
constexpr std::uint64_t kMaxWidth = 1U << 20;
constexpr std::uint64_t kMaxContext = 1U << 30;
constexpr std::uint64_t kMaxExperts = 512;  // libllama's limit
constexpr std::uint64_t kGemmaPeriod = 6;
constexpr int kGemma27BLayers = 62;

class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {}

  Result<ModelConfig> read() {
    KV_TRY(read_architecture());
    KV_TRY(read_shape());
    KV_TRY(read_windows());
    KV_TRY(read_norm());
    KV_TRY(read_rope());
    KV_TRY(read_scales());
    KV_ASSIGN(config_.shape.vocab, file_.metadata_only() ? vocabulary_size(file_) : check_vocabulary(file_));
    return config_;
  }

 private:
  std::string key(std::string_view name) const { return config_.shape.architecture + "." + std::string(name); }

  Result<int> bounded(std::string_view name, std::uint64_t value, std::uint64_t most) const {
    if (value < 1 || value > most) {
      return bad_input(fmt::format("'{}' is {} in '{}', but 1 to {} is possible", key(name), value, file_.path(), most));
    }
    return static_cast<int>(value);
  }
  Result<int> count(std::string_view name, std::uint64_t most) const {
    KV_ASSIGN(const std::uint64_t value, file_.integer(key(name)));
    return bounded(name, value, most);
  }
  Result<int> count_or(std::string_view name, int fallback, std::uint64_t most) const {
    if (!file_.has(key(name))) return fallback;
    return count(name, most);
  }

  Status read_architecture() {
    KV_ASSIGN(const std::string name, file_.text("general.architecture"));
    config_.architecture = find_architecture(name);
    config_.shape.architecture = name;
    if (config_.architecture != nullptr) return {};
    return bad_input(fmt::format("'{}' has the architecture '{}', which is not supported; supported are: {}", file_.path(), name,
                                 architecture_names()));
  }

  Status read_shape() {
    ModelShape& shape = config_.shape;
    KV_ASSIGN(const int layers, count("block_count", kMaxLayers));
    KV_ASSIGN(shape.hidden, count("embedding_length", kMaxWidth));
    KV_TRY(read_feed_forward());
    KV_ASSIGN(shape.context, count("context_length", kMaxContext));
    LayerShape layer;
    KV_ASSIGN(layer.heads, count("attention.head_count", kMaxWidth));
    KV_ASSIGN(layer.kv_heads, count_or("attention.head_count_kv", layer.heads, kMaxWidth));
    if (layer.heads % layer.kv_heads != 0) {
      return bad_input(fmt::format("'{}' has {} attention heads, which its {} KV heads do not divide", file_.path(), layer.heads,
                                   layer.kv_heads));
    }
    if (!file_.has(key("attention.key_length")) && shape.hidden % layer.heads != 0) {
      return bad_input(
          fmt::format("'{}' is {} wide, which its {} attention heads do not divide", file_.path(), shape.hidden, layer.heads));
    }
    KV_ASSIGN(layer.head_dim, count_or("attention.key_length", shape.hidden / layer.heads, kMaxWidth));
    KV_ASSIGN(const int value_dim, count_or("attention.value_length", shape.hidden / layer.heads, kMaxWidth));
    if (value_dim != layer.head_dim || layer.head_dim % 2 != 0 || layer.head_dim > (1 << 12)) {
      return bad_input(
          fmt::format("'{}' has keys of {} and values of {} channels per head, but equal, even and at most 4096 are supported",
                      file_.path(), layer.head_dim, value_dim));
    }
    if (layer.heads > static_cast<int>(kMaxWidth) / layer.head_dim) {
      return bad_input(fmt::format("'{}' has {} attention heads of {} channels, but at most {} channels in all are possible",
                                   file_.path(), layer.heads, layer.head_dim, kMaxWidth));
    }
    shape.layers.assign(static_cast<std::size_t>(layers), layer);
    return {};
  }

  Status read_feed_forward() {
    if (config_.architecture->feed_forward == FeedForward::kDense) {
      KV_ASSIGN(config_.shape.ffn, count("feed_forward_length", kMaxWidth));
      return {};
    }
    ExpertSettings experts;
    KV_ASSIGN(experts.count, count("expert_count", kMaxExperts));
    KV_ASSIGN(experts.used, count("expert_used_count", kMaxExperts));
    if (experts.used > experts.count) {
      return bad_input(fmt::format("'{}' uses {} experts per token, but has only {}", file_.path(), experts.used, experts.count));
    }
    config_.experts = experts;
    if (file_.has(key("expert_feed_forward_length"))) {
      KV_ASSIGN(config_.shape.ffn, count("expert_feed_forward_length", kMaxWidth));
      return {};
    }
    KV_ASSIGN(const int all_used, count("feed_forward_length", kMaxWidth));
    KV_ASSIGN(config_.shape.ffn, bounded("feed_forward_length", static_cast<std::uint64_t>(all_used / experts.used), kMaxWidth));
    return {};
  }

  // A window that holds the whole context limits nothing, and counts as none in the shape.
  Status read_windows() {
    ModelShape& shape = config_.shape;
    KV_ASSIGN(const std::uint64_t window, file_.integer_or(key("attention.sliding_window"), 0));
    if (window == 0) return {};
    const std::string pattern_key = key("attention.sliding_window_pattern");
    const bool has_pattern = config_.architecture->windowed_layers == WindowedLayers::kPattern;
    std::vector<bool>& pattern = config_.windowed;
    if (has_pattern && file_.array_size(pattern_key) > 0) {
      KV_ASSIGN(pattern, file_.flags(pattern_key));
      if (std::ssize(pattern) < shape.layer_count()) {
        return bad_input(fmt::format("'{}' in '{}' has {} entries for {} layers", pattern_key, file_.path(), pattern.size(),
                                     shape.layer_count()));
      }
    } else {
      KV_ASSIGN(const std::uint64_t period, file_.integer_or(pattern_key, kGemmaPeriod));
      for (std::size_t l = 0; l < shape.layers.size(); ++l) {
        pattern.push_back(!has_pattern || period == 0 || l % period < period - 1);
      }
    }
    if (window >= static_cast<std::uint64_t>(shape.context)) return {};
    for (std::size_t l = 0; l < shape.layers.size(); ++l) shape.layers[l].window = pattern[l] ? static_cast<int>(window) : 0;
    return {};
  }

  Status read_scales() {
    if (config_.architecture->scales_embedding) config_.embedding_scale = std::sqrt(static_cast<float>(config_.shape.hidden));
    const LayerShape& layer = config_.shape.layers[0];
    // The one Gemma 3 that scales by hidden / heads instead of head_dim is the one of 27 B; its files do not say so.
    if (config_.architecture == &kArchGemma3 && config_.shape.layer_count() == kGemma27BLayers) {
      const auto width = static_cast<float>(config_.shape.hidden / layer.heads);
      config_.query_scale = std::sqrt(static_cast<float>(layer.head_dim) / width);
    }
    KV_ASSIGN(const double cap, file_.real_or(key("final_logit_softcapping"), 0));
    if (cap == 0) return {};
    return bad_input(fmt::format("'{}' caps its logits at {}, which is not supported", file_.path(), cap));
  }

  Status read_norm() {
    KV_ASSIGN(const double epsilon, file_.real(key("attention.layer_norm_rms_epsilon")));
    if (!(epsilon >= 0) || epsilon > 1)
      return bad_input(fmt::format("the norm epsilon of '{}' is {}, but 0 to 1 is possible", file_.path(), epsilon));
    config_.rms_epsilon = static_cast<float>(epsilon);
    return {};
  }

  // Defaults and their order as libllama has them.
  Status read_rope() {
    RopeSettings& rope = config_.rope;
    const int head_dim = config_.shape.layers[0].head_dim;
    KV_ASSIGN(rope.dims, count_or("rope.dimension_count", head_dim, kMaxWidth));
    if (rope.dims > head_dim || rope.dims % 2 != 0 || (config_.architecture->whole_head_rotates && rope.dims != head_dim)) {
      return bad_input(fmt::format("'{}' rotates {} of {} channels per head, which the architecture {} does not do", file_.path(),
                                   rope.dims, head_dim, config_.architecture->name));
    }
    KV_ASSIGN(rope.base, file_.real_or(key("rope.freq_base"), 10000));
    if (!std::isfinite(rope.base) || rope.base <= 0)
      return bad_input(fmt::format("the RoPE base of '{}' is {}", file_.path(), rope.base));
    rope.has_factors = file_.tensor("rope_freqs.weight") != nullptr;
    rope.original_context = config_.shape.context;
    if (config_.architecture->has_window_rope) {
      config_.window_rope = rope;
      KV_ASSIGN(config_.window_rope->base, file_.real_or(key("rope.freq_base_swa"), 10000));
    }
    KV_TRY(read_rope_scaling());
    if (rope.yarn != 0 || config_.window_rope.has_value()) return {};  // no single table of angles: dims stays 0, "not known"
    const bool halves = config_.architecture->rope_pairs == RopePairs::kHalves;
    config_.shape.rope = {.dims = rope.dims,
                          .base = rope.base,
                          .scale = rope.scale,
                          .layout = halves ? RopeLayout::kHalves : RopeLayout::kNeighbours};
    return {};
  }

  Status read_rope_scaling() {
    KV_ASSIGN(const std::string type, file_.text_or(key("rope.scaling.type"), "linear"));
    if (type != "linear" && type != "none" && type != "yarn") {
      return bad_input(fmt::format(
          "'{}' uses RoPE scaling of type '{}', which is not supported: only none, linear and yarn (and Llama 3's factors) are",
          file_.path(), type));
    }
    const std::string_view factor_key = file_.has(key("rope.scaling.factor")) ? "rope.scaling.factor" : "rope.scale_linear";
    KV_ASSIGN(const double factor, file_.real_or(key(factor_key), 0));
    if (!std::isfinite(factor) || factor < 0)
      return bad_input(fmt::format("the RoPE scaling factor of '{}' is {}", file_.path(), factor));
    KV_ASSIGN(const double attention, file_.real_or(key("rope.scaling.attn_factor"), 1));
    if (attention != 1)
      return bad_input(fmt::format("'{}' scales its attention by {}, which is not supported", file_.path(), attention));
    config_.rope.scale = type == "none" || factor == 0 ? 1 : 1.0F / static_cast<float>(factor);
    return type == "yarn" ? read_yarn() : Status();
  }

  // YaRN as libllama reads it. ggml lengthens the turned channels by 1 + 0.1 ln(factor) itself, which libllama takes out
  // again and puts in by its own reckoning; both are done here in its arithmetic, for the sake of equal bits.
  Status read_yarn() {
    RopeSettings& rope = config_.rope;
    if (config_.window_rope.has_value()) {
      return bad_input(
          fmt::format("'{}' has RoPE scaling of type yarn and windowed layers, which is not supported", file_.path()));
    }
    for (const char* name :
         {"rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
      if (file_.has(key(name))) {
        return bad_input(fmt::format("'{}' sets '{}', which is not supported", file_.path(), key(name)));
      }
    }
    rope.yarn = 1;
    const float log_factor = 0.1F * std::log(1.0F / static_cast<float>(rope.scale));
    const float wanted = rope.scale >= 1 ? 1.0F : log_factor + 1.0F;
    rope.magnitude = wanted * (1.0F / (1.0F + log_factor));
    KV_ASSIGN(const double fast, file_.real_or(key("rope.scaling.yarn_beta_fast"), 32));
    KV_ASSIGN(const double slow, file_.real_or(key("rope.scaling.yarn_beta_slow"), 1));
    rope.beta_fast = static_cast<float>(fast);
    rope.beta_slow = static_cast<float>(slow);
    KV_ASSIGN(rope.original_context, count_or("rope.scaling.original_context_length", config_.shape.context, kMaxContext));
    return {};
  }

  const GgufFile& file_;
  ModelConfig config_;
};

}  // namespace

Result<ModelConfig> read_model_config(const GgufFile& file) { return ConfigReader(file).read(); }

}  // namespace kvartet
