#include "model/random_shapes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvartet {
namespace {

// From the models' published configurations.
struct KnownShape {
  std::string_view name;
  std::string_view architecture;
  int layers, hidden, ffn, heads, kv_heads, head_dim, context, vocab;
  double rope_base;
  bool tied;
};
constexpr KnownShape kShapes[] = {
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 8192, 49152, 100000, true},
    {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 131072, 128256, 500000, true},
    {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 131072, 128256, 500000, false},
    {"qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 40960, 151936, 1000000, true},
};
constexpr std::array<std::string_view, std::size(kShapes)> kNames = {kShapes[0].name, kShapes[1].name, kShapes[2].name,
                                                                     kShapes[3].name};

constexpr std::pair<std::string_view, TinyWeights> kWeights[] = {{"q4_1", TinyWeights::kQ4_1}, {"q4_0", TinyWeights::kQ4_0},
                                                                 {"q8_0", TinyWeights::kQ8_0}, {"f16", TinyWeights::kF16},
                                                                 {"bf16", TinyWeights::kBf16}, {"f32", TinyWeights::kF32}};

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

Status set_layers(std::string_view value, TinyModelOptions* options) {
  int layers = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), layers);
  if (error != std::errc() || end != value.data() + value.size() || layers < 1 || layers > options->layers) {
    return usage_error(fmt::format("layers='{}' is no whole number from 1 to this shape's {}", value, options->layers));
  }
  options->layers = layers;
  return {};
}

Status set_weights(std::string_view value, TinyModelOptions* options) {
  for (const auto& [name, weights] : kWeights) {
    if (name != value) continue;
    options->weights = weights;
    return {};
  }
  return usage_error(fmt::format("weights='{}' is unknown; choose q4_1, q4_0, q8_0, f16, bf16 or f32", value));
}

}  // namespace

std::span<const std::string_view> random_shape_names() { return kNames; }

Result<TinyModelOptions> random_shape(std::string_view text) {
  const std::vector<std::string_view> parts = parts_of(text);
  const auto* shape =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const KnownShape& s) { return s.name == parts[0]; });
  if (shape == std::end(kShapes)) {
    return usage_error(fmt::format("there is no shape '{}'; choose {}", parts[0], fmt::join(kNames, ", ")));
  }
  TinyModelOptions options;
  options.architecture = shape->architecture;
  options.layers = shape->layers;
  options.hidden = shape->hidden;
  options.ffn = shape->ffn;
  options.heads = shape->heads;
  options.kv_heads = shape->kv_heads;
  options.head_dim = shape->head_dim;
  options.context = shape->context;
  options.vocab = shape->vocab;
  options.rope_base = shape->rope_base;
  options.tied = shape->tied;
  options.chat_template = false;
  options.weights = TinyWeights::kQ4_1;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t equals = parts[i].find('=');
    const std::string_view key = parts[i].substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : parts[i].substr(equals + 1);
    if (key == "layers") {
      KV_TRY(set_layers(value, &options));
    } else if (key == "weights") {
      KV_TRY(set_weights(value, &options));
    } else {
      return usage_error(fmt::format("a shape has no key '{}'; it takes layers= and weights=", key));
    }
  }
  return options;
}

std::string random_shape_name(std::string_view text) {
  std::string name(text);
  std::replace(name.begin(), name.end(), ',', '-');
  std::replace(name.begin(), name.end(), '=', '-');
  return "random-" + name;
}

}  // namespace kvartet
