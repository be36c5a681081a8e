// Where model, cache and attention meet: the prefill machine and the decode step (DESIGN 4).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/decode_attention.h"
#include "attention/prefill_attention.h"
#include "cache/sequence_cache.h"
#include "core/clock.h"
#include "core/status.h"
#include "model/exact_layer.h"
#include "model/layer_observer.h"
#include "model/shared_prefix.h"
#include "model/transformer.h"

namespace kvartet {

// Layer-major prefill of new tokens, resumable over (layer, row chunk): peak memory is the caches, one exact layer and
// two hidden buffers. One prefill feeds any number of empty caches; a non-empty cache must be alone, since its sealed
// rows shape every layer after the first.
class Prefill {
 public:
  struct Options {
    int threads = 1;
    int chunk = 512;           // rows per step
    bool keep_hidden = false;  // keep the final hidden rows of all tokens (likelihoods), not only of the last
    // For empty caches only: is shown every layer with all that any cache may ask for, this many of the last queries included.
    LayerKeeper keep = {};
    int keep_queries = 0;
    // For empty caches only: the first rows are computed as if they were a prompt of their own, so that other prompts that begin
    // with them get the same bits. 0: none; else at least kLeastPrefixTokens, and two rows follow.
    int prefix_rows = 0;
    // With prefix_rows: where those rows are taken from if it serves this prompt, and else put. Null: computed, and not held.
    // After an error it may be incomplete, and then serves nobody. It must outlive the prefill.
    SharedPrefix* prefix = nullptr;
  };
  static Result<Prefill> start(Transformer& transformer, std::span<const std::int32_t> tokens,
                               std::span<SequenceCache* const> caches, const Options& options);
  Prefill(Prefill&&) noexcept;
  Prefill& operator=(Prefill&&) noexcept;
  ~Prefill();

  // One row chunk of one layer; after the last chunk of a layer the caches seal it. Work may be done between steps.
  Status step();
  bool done() const;
  double progress() const;               // share of all steps done
  double seal_seconds(int cache) const;  // what this cache's own compression took, column sums inside attention not counted
  double all_seal_seconds() const;       // what that of all caches took: scores that several of them need count once
  int rows_taken() const;                // of the prefix, that were not computed

  // After done(): final hidden rows [tokens or 1, hidden], before the output norm: input of Transformer::logits.
  MatView<const float> hidden() const;

 private:
  struct Impl;
  explicit Prefill(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct DecodeItem {
  std::int32_t token = 0;
  SequenceCache* cache = nullptr;
  std::span<float> logits;                  // [vocab], written
  const LayerObserver* observer = nullptr;  // called in every layer once the cache has the row, before attention
};

// One token for each of a list of sequences. Reusable scratch inside; not thread-safe.
class DecodeStep {
 public:
  DecodeStep(Transformer& transformer, int threads);
  ~DecodeStep();
  // A cache that fails drops out, and the others finish the step as if it were not there: the first failure is returned all the
  // same, and failures() says whose it is. A failure that is nobody's alone ends the step for all.
  Status run(std::span<const DecodeItem> items);
  std::span<const Status> failures() const;  // of the last run, one per item

  // Where the last run's time went, in seconds.
  struct Breakdown {
    double linear = 0;
    double attention = 0;
    double cache = 0;
    double head = 0;
  };
  const Breakdown& last() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvartet
