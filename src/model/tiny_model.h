// Tiny random models for tests: real GGUF files that both this engine and libllama load in milliseconds.
//
// The vocabulary is byte-level (GPT-2 style): token b is byte b for the 256 bytes in GPT-2's order, then
// <|endoftext|> (256), <|im_start|> (257), <|im_end|> (258), then unused tokens up to `vocab`. Any text round-trips.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace kvartet {

enum class TinyWeights : std::uint8_t { kF32, kF16, kBf16, kQ8_0, kQ4_1, kQ4_0 };  // of the matrices; norms and biases are f32

struct TinyModelOptions {
  std::string architecture = "llama";  // "llama", "qwen2" (with biases), "qwen3", "qwen3moe", "gemma3"
  int layers = 2;
  int hidden = 64;  // multiple of 32
  int ffn = 128;    // multiple of 32
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 16;  // even
  int context = 512;
  int vocab = 259;    // at least 259
  bool tied = false;  // no output matrix: the embedding serves
  std::uint64_t seed = 1;
  double rope_base = 10000;
  bool rope_factors = false;  // a rope_freqs tensor, as Llama 3 has
  double rope_linear = 1;     // linear RoPE scaling factor; 1: no key
  double rope_yarn = 1;       // factor of YaRN scaling; 1: no key
  int window = 0;             // sliding window in tokens; 0: no key
  int window_period = 0;      // gemma3: every so many layers one has no window; 0: no key, which means 6
  int experts = 4;            // qwen3moe
  int experts_used = 2;       // per token
  bool chat_template = true;  // ChatML
  // qwen2: norm of each layer's key bias, put on the two pairs of channels of every head that turn slowest, as trained models
  // have it (compression.md 12.4); 0: all channels alike, of deviation 0.5.
  double key_bias_norm = 0;
  TinyWeights weights = TinyWeights::kF32;
};

// Writes the model to `path`. kUsage: options that make no model; kIo: the file cannot be written.
Status write_tiny_model(const std::string& path, const TinyModelOptions& options);

}  // namespace kvartet
