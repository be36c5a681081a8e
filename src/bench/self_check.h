// Self-check: before a cache is first used with a model, a short look at whether the two go together.
//
// Fidelity (bench/fidelity.h) on a text of our own: a prompt long enough for most methods to act, then a few dozen tokens one by
// one, all caches in one prefill. It warns of collapse; small losses are for `kvartet fidelity` and the benchmark to measure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/spec.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "engine/engine.h"
#include "results/self_check_memory.h"

namespace kvartet {

// Below this top-1 agreement with `full` a cache is not usable with a model. Healthy 4-bit caches of small models are at 0.8.
inline constexpr double kPoorAgreement = 0.7;
// Caches that drop or select rows: of a text as short as this a share keeps so few that 65 % are no collapse yet.
inline constexpr double kPoorAgreementOfFewerRows = 0.5;

enum class SelfCheckVerdict : std::uint8_t {
  kGood,
  kPoor,
  kIdle,  // it saw too few tokens to act: nothing is known
};
SelfCheckVerdict verdict_of(const SelfCheck& check);

// Names the text and the numbers of the probe; results of another are no help.
std::string self_check_probe();
std::string_view self_check_text();

// full and f32 are what others are checked against.
bool needs_self_check(const CacheSpec& spec);

// What makes a model hard on caches, read from its file (compression.md 12.4, 12.11).
struct ModelSuspects {
  std::uint64_t parameters = 0;
  double key_bias_norm = 0;   // the largest of all layers
  int key_bias_layer = 0;     // where
  double usual_key_bias = 0;  // the median over layers
};
// kBadInput: the file is missing or damaged.
Result<ModelSuspects> model_suspects(const std::string& model_path);

// The usual cause of a collapse of this cache on this model, as the end of a sentence; empty: none of those known here.
std::string usual_cause(const CacheSpec& spec, const ModelShape& shape, const ModelSuspects& suspects);

// Caches near `spec` that lose less, the nearest first: those that fit the model.
std::vector<CacheSpec> safer_specs(const CacheSpec& spec, const ModelShape& shape, const ModelSuspects& suspects);

// One check per spec. For those that come out poor, a second round tries safer ones on the same text, and the nearest that
// passes is named. kCancelled; kExhausted: the caches do not fit the memory that the engine may use; kBadInput: a context too
// short for any probe, or a cache that broke.
Result<std::vector<SelfCheck>> self_check(Engine& engine, std::span<const CacheSpec> specs, const ModelSuspects& suspects,
                                          const Engine::Progress& progress = {});

// One sentence for the user about a check that is not good; empty for good ones.
std::string self_check_sentence(const SelfCheck& check);

}  // namespace kvartet
