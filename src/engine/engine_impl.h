// Inside the engine: what its calls share. Not for users of the library.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/clock.h"
#include "engine/engine.h"
#include "engine/kept_prefills.h"
#include "model/forward.h"
#include "model/transformer.h"

namespace kvartet {

struct Engine::Impl {
  EngineOptions options;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<Vocabulary> vocabulary;
  std::shared_ptr<Arena> arena;  // one for all caches: its cap is the fast tier's
  std::unique_ptr<DecodeStep> step;
  DecodeTimes times;
  KeptPrefills* kept = nullptr;  // null: prompts are always computed, and not kept
  SharedPrefix prefix;           // of the last prompt that has one
  SharedPrefixTally prefix_tally;

  const ModelShape& shape() const { return transformer->shape(); }
  bool is_cancelled() const { return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed); }

  Status check_tokens(std::span<const Token> tokens) const;
  // The caches a prefill would make, checked against model and byte cap before any work is done.
  Status check_specs(std::span<const CacheSpec> specs, std::size_t prompt_tokens) const;
  Result<std::vector<Sequence>> make_sequences(std::span<const CacheSpec> specs) const;

  // The sequences of one prompt, by whatever way; its first `prefix_rows` may be held from an earlier one.
  Result<std::vector<Sequence>> prefill(std::span<const Token> prompt, int prefix_rows, std::span<const CacheSpec> specs,
                                        const Progress& progress);
  // Is there memory to hold these rows, or are they held already?
  bool can_hold(std::span<const Token> rows);
  // What is kept of this prompt for these caches; null: nothing of use.
  std::unique_ptr<PrefillFileReader> open_kept(std::span<const Token> prompt, std::span<Sequence> sequences) const;
  // Both fill empty sequences with a prompt. `read_prefill` gives false where the file is damaged: the sequences are then spoilt.
  Status compute_prefill(std::span<const Token> prompt, int prefix_rows, std::span<Sequence> sequences, const Progress& progress);
  Result<bool> read_prefill(PrefillFileReader& file, std::span<const Token> prompt, std::span<Sequence> sequences,
                            const Progress& progress) const;
  PrefillOrigin origin_of(std::span<const Token> prompt) const;

  // Steps to the end, polling the cancel flag. On error the caches are of no more use.
  Status run(Prefill& prefill, const Progress& progress) const;
  // New tokens on one cache; `logits` get what the last token predicts.
  Status extend(Sequence& sequence, std::span<const Token> tokens);
  // The same by decode steps, for caches that select rows per token; after(i) follows token i.
  Status feed(Sequence& sequence, std::span<const Token> tokens, const std::function<void(std::size_t)>& after);
  Status decode(std::span<Sequence* const> sequences, std::span<const Token> tokens);
};

}  // namespace kvartet
