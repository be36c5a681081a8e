// What a cache costs on a machine: bytes exactly, times from calibrated rates, every figure as the sum of its named terms.
// A pure function: the same inputs give the same prediction. docs/plan.md derives the terms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "plan/spec_facts.h"
#include "plan/workload.h"
#include "results/calibration.h"

namespace kvartet {

// From a model file's metadata alone.
struct ModelCost {
  ModelShape shape;
  std::uint64_t file_bytes = 0;
  std::uint64_t parameters = 0;
  bool tied_embeddings = false;  // the token table is also the output matrix, so a decode step reads it
  std::string weight_type;       // of most parameters: "q4_1"
  bool native_attention = true;  // in a prefill, of rows in what this CPU multiplies fastest (attention/precision.h)

  double read_bytes_per_token() const;   // weights that one decode step reads
  double multiplied_parameters() const;  // that one token of a prefill is multiplied with, output matrix left out
};

struct CostTerm {
  std::string name;    // "weights", "attention", ...
  double value = 0;    // seconds or bytes
  std::string detail;  // how it came about: "92.0 MiB at 8.6 GB/s (calibrated)"
};

struct CostPrediction {
  ByteAccount after_prompt;
  ByteAccount at_end;          // after the answer
  std::size_t fast = 0;        // allocated in the fast tier, the larger of the two moments
  std::vector<CostTerm> ttft;  // seconds
  std::vector<CostTerm> step;  // seconds of one decode step in the middle of the answer
  std::vector<CostTerm> peak;  // bytes at the end of prefill
  double ttft_s = 0;
  double step_s = 0;
  double total_s = 0;     // one prompt, all its answers; the first token of the first one takes no step
  double time_error = 0;  // relative, about 95 %: times lie within value / (1 + e) .. value * (1 + e)

  std::size_t bytes() const { return std::max(after_prompt.allocated, at_end.allocated); }
  std::size_t fast_bytes() const { return fast; }
  double decode_tokens_per_s() const { return step_s > 0 ? 1 / step_s : 0; }
};

class CostModel {
 public:
  // `calibration` may be null: typical rates of a processor with this many threads then stand in, with a wide stated error.
  CostModel(const ModelCost& model, const Calibration* calibration, int threads);

  // kUsage: the spec does not fit the model, or the counts are absurd.
  Result<CostPrediction> predict(const SpecFacts& facts, const Workload& workload) const;
  // Seconds of one decode step with `depth` tokens seen, as terms.
  std::vector<CostTerm> step_terms(const SpecFacts& facts, int prompt_tokens, int depth) const;
  bool calibrated() const { return calibration_ != nullptr; }

 private:
  struct EqualLayers {
    LayerShape shape;
    int count = 0;
  };
  struct Figure {
    double value = 0;
    double error = 0;    // relative
    std::string source;  // "calibrated", "from q8_0 and kivi4.32", "assumed"
  };
  struct DoubtedTerm {
    CostTerm term;
    double error = 0;
  };
  // Every candidate asks for several rates, and a calibration has hundreds.
  using RateKey = std::pair<std::string_view, std::string_view>;  // what, subject
  std::span<const Rate* const> rates_of(std::string_view what, std::string_view subject) const;
  const Rate* find(std::string_view what, std::string_view subject, int head_dim, int group) const;
  Figure rate_of(std::string_view what, std::string_view subject, double assumed) const;
  Figure attend_seconds(const SpecFacts& facts, const LayerShape& layer, double rows) const;
  bool attend_points(const std::string& formats, const LayerShape& layer, double rows, double* seconds) const;
  // Of one row of one KV head: `what` is rate::kEncode or rate::kAppend.
  Figure encode_seconds(std::string_view what, const SpecFacts& facts, const LayerShape& layer) const;
  // Of what both sides of a row take in the two formats of `facts`, by rates of `what` that `points` reads.
  using PairSeconds = std::function<bool(const std::string& formats, double* seconds)>;
  std::optional<Figure> pair_seconds(std::string_view what, const SpecFacts& facts, const PairSeconds& points) const;
  std::optional<double> half_seconds(std::string_view what, const std::string& format, const PairSeconds& points) const;
  // Seconds per row, all KV heads and layers, of what was calibrated on a model; none: not calibrated.
  std::optional<Figure> per_row(std::string_view what, const SpecFacts& facts) const;
  std::optional<Figure> seal_seconds(const SpecFacts& facts, int tokens) const;
  bool knows_selection(const SpecFacts& facts) const;
  std::vector<DoubtedTerm> selection_terms(const SpecFacts& facts, int prompt_tokens, int far_generated) const;
  Figure fetch_seconds(const SelectOptions& options, double chosen) const;
  std::vector<CostTerm> ttft_terms(const SpecFacts& facts, const Workload& workload, double kept, double* error) const;
  std::vector<CostTerm> step_terms_with_error(const SpecFacts& facts, int prompt_tokens, int depth, double* error) const;

  const ModelCost& model_;
  const Calibration* calibration_;
  double threads_;
  std::vector<EqualLayers> layers_;  // most models have one or two kinds
  std::map<RateKey, std::vector<const Rate*>> rates_;
};

double sum(const std::vector<CostTerm>& terms);

}  // namespace kvartet
