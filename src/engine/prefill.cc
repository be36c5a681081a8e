// One prompt into any number of caches: its layers are computed, or read from what an earlier run kept.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/file_system.h"
#include "core/freed_memory.h"
#include "engine/engine_impl.h"
#include "model/memory_limit.h"
#include "model/shared_prefix.h"

namespace kvartet {
namespace {

std::vector<SequenceCache*> caches_of(std::span<Sequence> sequences) {
  std::vector<SequenceCache*> caches;
  for (Sequence& sequence : sequences) caches.push_back(&sequence.cache);
  return caches;
}

// The last queries that some cache chooses its rows or makes its index by.
int widest_window(std::span<SequenceCache* const> caches) {
  ScoreNeed need;
  for (const SequenceCache* cache : caches) need.merge(cache->score_need());
  return need.last_queries();
}

// A prefill on its way to disk. The first failure ends the keeping, never the prefill.
class Keeping {
 public:
  Keeping(KeptPrefills* kept, const PrefillOrigin& origin, int queries) : kept_(kept), queries_(queries) {
    if (kept != nullptr) timed([&] { writer_ = kept->create(origin, queries); });
  }

  bool active() const { return writer_ != nullptr; }
  int queries() const { return active() ? queries_ : 0; }
  double seconds() const { return seconds_; }

  LayerKeeper keeper() {
    if (!active()) return {};
    return [this](int layer, const ExactLayer& exact) {
      if (active()) timed([&] { drop_if_failed(writer_->write_layer(layer, exact)); });
    };
  }

  void finish(MatView<const float> hidden, double prefill_seconds) {
    if (!active()) return;
    const Status status = writer_->finish(hidden, prefill_seconds);
    if (status.ok()) kept_->count_kept(status);
    drop_if_failed(status);
  }

 private:
  template <typename Work>
  void timed(const Work& work) {
    const double begin = Clock::real().seconds();
    work();
    seconds_ += Clock::real().seconds() - begin;
  }
  void drop_if_failed(const Status& status) {
    if (status.ok()) return;
    kept_->count_kept(status);
    writer_.reset();
  }

  KeptPrefills* kept_;
  int queries_;
  std::unique_ptr<PrefillFileWriter> writer_;
  double seconds_ = 0;
};

}  // namespace

// Its buffers go back to the system when it is done: what a session then holds is what its caches account for.
Result<std::vector<Sequence>> Engine::prefill(std::span<const Token> prompt, std::span<const CacheSpec> specs,
                                              const Progress& progress) {
  return impl_->prefill(prompt, 0, specs, progress);
}

Result<std::vector<Sequence>> Engine::prefill_shared(std::span<const Token> prompt, int shared_tokens,
                                                     std::span<const CacheSpec> specs, const Progress& progress) {
  return impl_->prefill(prompt, prefix_tokens(static_cast<int>(prompt.size()), shared_tokens), specs, progress);
}

void Engine::drop_shared_prefix() { impl_->prefix = {}; }

std::size_t Engine::shared_prefix_bytes() const { return impl_->prefix.bytes(); }

const Engine::SharedPrefixTally& Engine::shared_prefix_tally() const { return impl_->prefix_tally; }

Result<std::vector<Sequence>> Engine::Impl::prefill(std::span<const Token> prompt, int prefix_rows,
                                                    std::span<const CacheSpec> specs, const Progress& progress) {
  if (prompt.empty()) return bad_input("the prompt is empty; give some text");
  const auto context = static_cast<std::size_t>(shape().context);
  if (prompt.size() > context) {
    return exhausted(
        fmt::format("the prompt has {} tokens, the model's context holds {}; shorten or truncate it", prompt.size(), context));
  }
  KV_TRY(check_tokens(prompt));
  KV_TRY(check_specs(specs, prompt.size()));
  KV_ASSIGN(std::vector<Sequence> sequences, make_sequences(specs));
  if (const std::unique_ptr<PrefillFileReader> file = open_kept(prompt, sequences); file != nullptr) {
    KV_ASSIGN(const bool was_read, read_prefill(*file, prompt, sequences, progress));
    if (was_read) {
      return_freed_memory();
      return sequences;
    }
    sequences.clear();  // before the new ones: they may not fit the byte cap together
    KV_ASSIGN(sequences, make_sequences(specs));
  }
  KV_TRY(compute_prefill(prompt, prefix_rows, sequences, progress));
  return_freed_memory();
  return sequences;
}

bool Engine::Impl::can_hold(std::span<const Token> rows) {
  if (std::ranges::equal(prefix.tokens, rows)) return true;
  prefix = {};
  const std::size_t bytes = SharedPrefix::most_bytes(shape(), static_cast<int>(rows.size()));
  if (bytes <= available_memory(FileSystem::real()) / 2) return true;
  ++prefix_tally.not_held;
  prefix_tally.least_bytes = prefix_tally.least_bytes == 0 ? bytes : std::min(prefix_tally.least_bytes, bytes);
  return false;
}

PrefillOrigin Engine::Impl::origin_of(std::span<const Token> prompt) const {
  return {&shape(), prompt, fmt::format("{}, {}", kept->made_by(), options.bf16_copy ? "BF16 copy" : "stored weights")};
}

Status Engine::Impl::compute_prefill(std::span<const Token> prompt, int prefix_rows, std::span<Sequence> sequences,
                                     const Progress& progress) {
  const double begin = Clock::real().seconds();
  const std::vector<SequenceCache*> caches = caches_of(sequences);
  const int queries = std::min(std::max(KeptPrefills::kQueries, widest_window(caches)), static_cast<int>(prompt.size()));

  Keeping keeping(kept, kept == nullptr ? PrefillOrigin() : origin_of(prompt), queries);
  Prefill::Options prefill_options;
  prefill_options.threads = options.threads;
  prefill_options.keep = keeping.keeper();
  prefill_options.keep_queries = keeping.queries();
  prefill_options.prefix_rows = prefix_rows;
  if (prefix_rows > 0 && can_hold(prompt.first(static_cast<std::size_t>(prefix_rows)))) prefill_options.prefix = &prefix;
  KV_ASSIGN(Prefill prefill, Prefill::start(*transformer, prompt, caches, prefill_options));
  KV_TRY(run(prefill, progress));
  std::vector<float> logits(static_cast<std::size_t>(shape().vocab));
  KV_TRY(transformer->logits(prefill.hidden(), {logits.data(), 1, logits.size()}));

  double shared = Clock::real().seconds() - begin - keeping.seconds() - prefill.all_seal_seconds();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].compress_s = prefill.seal_seconds(static_cast<int>(i));
    sequences[i].logits = logits;
  }
  if (prefill.rows_taken() > 0) {
    ++prefix_tally.taken;
    shared += prefix.seconds;
  }
  if (prefill_options.prefix != nullptr) prefix_tally.most_bytes = std::max(prefix_tally.most_bytes, prefix.bytes());
  for (Sequence& sequence : sequences) {
    sequence.prefill_s = shared;
    sequence.prefix_taken = prefill.rows_taken();
  }
  keeping.finish(prefill.hidden(), shared);
  return {};
}

std::unique_ptr<PrefillFileReader> Engine::Impl::open_kept(std::span<const Token> prompt, std::span<Sequence> sequences) const {
  return kept == nullptr ? nullptr : kept->open(origin_of(prompt), widest_window(caches_of(sequences)));
}

Result<bool> Engine::Impl::read_prefill(PrefillFileReader& file, std::span<const Token> prompt, std::span<Sequence> sequences,
                                        const Progress& progress) const {
  const std::vector<SequenceCache*> caches = caches_of(sequences);
  LayerSealing sealing(caches, options.threads);
  const ScoreNeed need = sealing.need();
  const PrefillFileReader::Wanted wanted = {
      .key_pre = sealing.wants_pre_rope_keys(), .queries = need.last_queries() > 0, .column_sums = need.column_sums};
  for (int layer = 0; layer < shape().layer_count(); ++layer) {
    if (is_cancelled()) return cancelled("interrupted");
    const Result<ExactLayer> exact = file.read_layer(layer, wanted);
    if (!exact.ok()) {
      kept->refuse(exact.status());
      return false;
    }
    KV_TRY(sealing.seal(layer, shape().layers[static_cast<std::size_t>(layer)], *exact));
    if (progress) progress(static_cast<double>(layer + 1) / shape().layer_count());
  }
  const Result<MatView<const float>> hidden = file.read_hidden();
  if (!hidden.ok()) {
    kept->refuse(hidden.status());
    return false;
  }
  sealing.finish(static_cast<int>(prompt.size()));
  std::vector<float> logits(static_cast<std::size_t>(shape().vocab));
  KV_TRY(transformer->logits(*hidden, {logits.data(), 1, logits.size()}));
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].logits = logits;
    sequences[i].prefill_s = file.prefill_seconds();
    sequences[i].compress_s = sealing.seconds(static_cast<int>(i));
    sequences[i].prefill_read = true;
  }
  kept->count_read();
  return true;
}

}  // namespace kvartet
