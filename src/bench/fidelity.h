// Fidelity: how far the next-token distributions through a cache are from those through `full`, on real text.
//
// One prefill of a prefix feeds `full` and all caches; then the text goes on token by token through all of them as one
// decode batch (teacher forcing), the path that generation takes, so that caches which act while decoding show it. The
// first prediction comes straight from the prefill, where attention is exact for every cache (compression.md R6): it is
// the same for all and left out.
//
// Beside that: how long a cache writes what `full` writes when it is left to itself (bench/divergence.h), and in which layers
// it loses (bench/layer_errors.h). Of a long text several windows can be used, each as if it were a text of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/divergence.h"
#include "bench/layer_errors.h"
#include "cache/spec.h"
#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// Distance of one stream of logit rows to another over the same tokens.
class LogitComparison {
 public:
  // `reference` and `logits` predict `target`; equal sizes, target an index into them.
  void add(std::span<const float> reference, std::span<const float> logits, int target);

  int tokens() const { return static_cast<int>(kl_.size()); }
  double kl_mean() const;  // of KL(reference || logits), nats
  double kl_sd() const;    // of it, from position to position
  // Nearest rank: the smallest value that this share of the positions does not exceed; 1: the largest of all.
  double kl_quantile(double share) const;
  double top1_agreement() const;  // share of positions with the same most likely token (ties: the lower id)
  double perplexity() const;      // of the targets under `logits`
  double reference_perplexity() const;

 private:
  std::vector<double> kl_;
  int agreements_ = 0;
  double log_likelihood_ = 0;
  double reference_log_likelihood_ = 0;
};

struct FidelityRow {
  std::string spec;
  int tokens = 0;
  double kl_mean = 0;
  double kl_sd = 0;
  double kl_p95 = 0;
  double kl_p99 = 0;
  double kl_max = 0;
  double top1_agreement = 0;
  double perplexity = 0;
  double compression_ratio = 0;  // f16 / allocated bytes at the end
  bool acted = false;
  Divergence divergence = {};  // runs == 0: not asked for
  LayerErrors layers = {};     // empty: not asked for
};

struct FidelityReport {
  std::string reference_spec;
  int windows = 1;
  int prefix_tokens = 0;  // of a window, the longest
  int tokens = 0;         // compared positions, of all windows
  int free_tokens = 0;    // limit of the free runs
  double reference_perplexity = 0;
  std::vector<FidelityRow> rows;  // the reference is never a row
};

// A text to compare over: a prefix, then the compared tokens, which are read one by one, and the last one's target.
struct ComparedText {
  std::vector<Token> tokens;
  int compared = 0;
  std::vector<std::int32_t> gold = {};  // positions in the prefix that hold what the answer needs, ascending; empty: not known

  std::span<const Token> prefix() const {
    return std::span(tokens).first(tokens.size() - static_cast<std::size_t>(compared) - 1);
  }
};

struct FidelityRequest {
  int context = 4096;    // tokens of a window: prefix and compared ones
  int tokens = 256;      // compared ones, the last of each window
  int windows = 1;       // spread evenly over the text
  int free_starts = 0;   // of each window: places where all go on by themselves
  int free_tokens = 64;  // how far at most
  int layer_steps = 0;   // of each window: steps after the prefix at which layers are compared
};

// As many tokens as the model's context has behind the last of a window's free starts: free_tokens may be no more.
int free_room(const FidelityRequest& request, const ModelShape& shape);

// The request's windows of a raw text as tokens (with BOS where the model wants it: every window gets one). kBadInput: the text
// is shorter than the windows; kUsage: no room for a prefix; kExhausted: beyond the model's context, also by free runs.
Result<std::vector<ComparedText>> windows_of(const Engine& engine, std::span<const Token> text, const FidelityRequest& request);

// Of the request, free runs and layer steps apply: context and compared tokens are each text's own. Refusals as above;
// kCancelled; else as prefill.
Result<FidelityReport> compare_texts(Engine& engine, std::span<const ComparedText> texts, const FidelityRequest& request,
                                     std::span<const CacheSpec> specs, const std::function<void(double share)>& progress = {});

// compare_texts over windows_of.
Result<FidelityReport> measure_fidelity(Engine& engine, std::span<const Token> text, const FidelityRequest& request,
                                        std::span<const CacheSpec> specs, const std::function<void(double share)>& progress = {});

// {"reference": {spec, tokens, perplexity, ...}, "rows": [...]} (DESIGN 6).
nlohmann::json fidelity_json(const FidelityReport& report);
std::string fidelity_table(const FidelityReport& report);

}  // namespace kvartet
