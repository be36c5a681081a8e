// The engine as a user of the library sees it: open a model, prefill once for several caches, decode, ask again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/sequence_cache.h"
#include "core/arena.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "model/layer_observer.h"
#include "model/transformer.h"
#include "model/vocabulary.h"

namespace kvartet {

class KeptPrefills;

struct EngineOptions {
  std::string model_path = {};
  int threads = 1;
  bool bf16_copy = false;                       // linear layers from a BF16 copy (fidelity)
  std::size_t fast_tier_bytes = Arena::kNoCap;  // cap over all caches of this engine
  std::string tier_directory = {};              // for the files of tier=mmap and tier=disk; "": the system's temporary folder
  FileSystem* files = nullptr;                  // where that folder is; null: the real one
  const std::atomic<bool>* cancel = nullptr;    // set: the running call ends with kCancelled after the current chunk or token
};

// One sequence: its cache and the logits that predict its next token. Forks share tiles until they differ.
struct Sequence {
  SequenceCache cache;
  std::vector<float> logits;   // [vocab], of the last token seen
  double prefill_s = 0;        // of the (possibly shared) prefill, compression left out
  double compress_s = 0;       // this cache's own sealing
  std::vector<Token> pending;  // sampled, but not yet fed to the model: the next call feeds them first
  bool prefill_read = false;   // its prefill was a kept one: prefill_s is of the run that computed it
  int prefix_taken = 0;        // tokens whose rows an earlier prompt left: prefill_s counts what they took then
  Sequence fork() const { return {cache.fork(), logits, prefill_s, compress_s, pending, prefill_read, prefix_taken}; }
};

// Where decode steps spent their time, in seconds.
struct DecodeTimes {
  double linear = 0;     // norms, projections, feed-forward: reads the weights
  double attention = 0;  // reads the cache
  double cache = 0;      // appending, sealing, evicting
  double head = 0;       // logits
  int steps = 0;
};

struct SamplingOptions {
  double temperature = 0;  // 0: greedy, ties go to the lower token id
  double top_p = 1;
  std::uint64_t seed = 1;
};

struct GenerateOptions {
  int max_tokens = 128;
  SamplingOptions sampling = {};
  std::vector<std::string> stop = {};  // text that ends the answer; never part of it, also over token borders
  bool stop_at_newline = false;        // after at least one token (LongBench's samsum)
  bool ignore_end = false;             // go on after an end token (speed measurements need a fixed number of tokens)
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled", "failed"

struct Completion {
  std::string text;           // valid UTF-8
  std::vector<Token> tokens;  // as sampled, the end token left out
  FinishReason finish_reason = FinishReason::kLength;
  Status failure;               // kFailed: why; the sequence is of no more use, the others went on
  double decode_s = 0;          // first to last token
  std::vector<double> token_s;  // time of each token after the start of generation
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);
  ~Engine();

  const ModelShape& shape() const;
  const Vocabulary& vocabulary() const;
  std::size_t weight_bytes() const;  // held, converted copies included
  WeightReads weight_reads() const;  // by one decode step
  int threads() const;

  // One prefill, one sequence per spec. kUsage: a spec does not fit the model; kBadInput: empty prompt;
  // kExhausted: longer than the context, or over the byte cap.
  using Progress = std::function<void(double share)>;
  Result<std::vector<Sequence>> prefill(std::span<const Token> prompt, std::span<const CacheSpec> specs,
                                        const Progress& progress = {});

  // The same bits for a prompt whose first `shared_tokens` are those of other prompts as well (one document, several questions):
  // their exact rows stay in memory until another such prompt comes, and are computed only where they are not there yet. Fewer
  // than kLeastPrefixTokens, or more than half of the memory that is free (shared_prefix_tally), are not held.
  Result<std::vector<Sequence>> prefill_shared(std::span<const Token> prompt, int shared_tokens, std::span<const CacheSpec> specs,
                                               const Progress& progress = {});
  void drop_shared_prefix();
  std::size_t shared_prefix_bytes() const;  // held now
  struct SharedPrefixTally {
    int taken = 0;                // prompts whose prefix was there
    int not_held = 0;             // prompts whose prefix is too large for the memory
    std::size_t most_bytes = 0;   // held at once
    std::size_t least_bytes = 0;  // of those that are not held; 0: none
  };
  const SharedPrefixTally& shared_prefix_tally() const;

  // From now on prefill() looks here first, and keeps here what it computes: the bits are the same. Null: no more. What cannot
  // be read or kept fails no prefill; `kept` counts and reports it. It must outlive its use.
  void use_kept_prefills(KeptPrefills* kept);

  // A sequence of `tokens` tokens whose keys and values are random normal rows instead of a prompt's: as large and as fast
  // as a real one, without the prefill, for measuring deep caches. Its logits are zeros. kUsage: the spec does not fit the
  // model, or chooses rows by attention scores, which random rows do not have; kExhausted: over the context or the byte cap.
  Result<Sequence> fill(const CacheSpec& spec, int tokens, std::uint64_t seed = 1);

  // Sums over all decode steps so far.
  const DecodeTimes& decode_times() const;

  // More tokens on a sealed cache (a second question). After an error the sequence is of no more use.
  Status extend(Sequence& sequence, std::span<const Token> tokens);

  // Natural-log likelihood of each of `continuation`'s tokens after what the sequence has seen, teacher-forced in one pass.
  // Works on a fork: the sequence is unchanged.
  Result<std::vector<double>> log_likelihoods(const Sequence& sequence, std::span<const Token> continuation);

  // One decode step with given tokens, one for each sequence, as one batch: their logits are renewed (teacher forcing). If a
  // cache fails the step is finished for the others all the same.
  Status decode(std::span<Sequence* const> sequences, std::span<const Token> tokens);

  // The same for one sequence, with a look at every layer before its attention: the observer's failure ends the step.
  Status decode_observed(Sequence& sequence, Token token, const LayerObserver& observer);

  // What a layer's output matrix makes of attention outputs, its bias left out: attention [rows, heads * head_dim], after
  // every head's own, to out [rows, hidden]. For diagnostics; may be called by an observer.
  Status project_attention(int layer, MatView<const float> attention, MatView<float> out);

  // Decodes all sequences as one batch, each until its own end. on_text gets pieces of valid UTF-8 as they are certain.
  // A sequence whose cache fails (a disk that refuses, for instance) ends with kFailed if others go on, and ends the call if it
  // was the only one. kUsage: options that make no sense; kExhausted: no room for a single token, or over the byte cap. An
  // interruption is no error here: what was finished comes back with kCancelled.
  using OnText = std::function<void(int sequence, std::string_view piece)>;
  Result<std::vector<Completion>> generate(std::span<Sequence* const> sequences, const GenerateOptions& options,
                                           const OnText& on_text = {});

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvartet
