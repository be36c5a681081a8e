// What sets the supported architectures apart. All are pre-norm decoders with RMS norm, grouped-query attention, RoPE and
// a SwiGLU feed-forward block (model/layer_graphs.h builds that); an architecture is data on top of it.
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

struct Architecture {
  std::string_view name;  // as general.architecture has it
  RopePairs rope_pairs = RopePairs::kNeighbours;
  Presence query_key_value_bias = Presence::kAbsent;
  Presence output_bias = Presence::kAbsent;   // of the attention's output projection
  Presence rope_factors = Presence::kAbsent;  // rope_freqs.weight: divisors of the frequencies (Llama 3)
  bool whole_head_rotates = false;            // rope.dimension_count must equal head_dim
};

// All of them; a new architecture is one file arch_<name>.cc and one line in arch.cc.
std::span<const Architecture* const> architectures();
const Architecture* find_architecture(std::string_view name);  // nullptr: unknown
std::string architecture_names();                              // "llama, qwen2"

extern const Architecture kArchLlama;
extern const Architecture kArchQwen2;

}  // namespace kvartet
