// What sets the supported architectures apart. All are pre-norm decoders with RMS norm, grouped-query attention, RoPE and
// a gated feed-forward block (model/layer_graphs.h builds that); an architecture is data on top of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvartet {

enum class Presence : std::uint8_t { kAbsent, kOptional, kRequired };

// Which two channels of a head RoPE turns together.
enum class RopePairs : std::uint8_t {
  kNeighbours,  // 2i and 2i+1 (ggml: NORMAL)
  kHalves,      // i and i + dims/2 (ggml: NEOX)
};

// How the feed-forward block gates: act(gate) * up.
enum class Activation : std::uint8_t { kSilu, kGelu };

enum class FeedForward : std::uint8_t { kDense, kExperts };

// Which layers attend to a sliding window, in a file that has `attention.sliding_window`.
enum class WindowedLayers : std::uint8_t {
  kAll,      // Mistral
  kPattern,  // all but every sixth, or as attention.sliding_window_pattern says (Gemma 3)
};

struct Architecture {
  std::string_view name;  // as general.architecture has it
  RopePairs rope_pairs = RopePairs::kNeighbours;
  Presence query_key_value_bias = Presence::kAbsent;
  Presence output_bias = Presence::kAbsent;     // of the attention's output projection
  Presence rope_factors = Presence::kAbsent;    // rope_freqs.weight: divisors of the frequencies (Llama 3)
  Presence query_key_norm = Presence::kAbsent;  // RMS norm of every head of Q and K, before RoPE
  Presence post_norms = Presence::kAbsent;      // RMS norms of the attention's and the feed-forward block's outputs
  Activation activation = Activation::kSilu;
  FeedForward feed_forward = FeedForward::kDense;
  WindowedLayers windowed_layers = WindowedLayers::kAll;
  bool whole_head_rotates = false;  // rope.dimension_count must equal head_dim
  bool scales_embedding = false;    // by the square root of the width
  bool has_window_rope = false;     // windowed layers turn by a base of their own, and by true positions (Gemma 3)
};

// All of them; a new architecture is one file arch_<name>.cc and one line in arch.cc.
std::span<const Architecture* const> architectures();
const Architecture* find_architecture(std::string_view name);  // nullptr: unknown
std::string architecture_names();                              // "llama, qwen2, ..."

extern const Architecture kArchLlama;
extern const Architecture kArchQwen2;
extern const Architecture kArchQwen3;
extern const Architecture kArchQwen3Moe;
extern const Architecture kArchGemma3;

}  // namespace kvartet
