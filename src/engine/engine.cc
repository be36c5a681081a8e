#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/counted.h"
#include "engine/engine_impl.h"
#include "engine/log_softmax.h"

namespace kvartet {

namespace {

constexpr std::size_t kLogitRows = 16;  // rows of logits at a time in log_likelihoods: 16 x 150,000 floats are 10 MB

Status cancelled_now() { return cancelled("interrupted"); }

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kFailed: return "failed";
  }
  return "unknown";
}

// --- what the calls share

Status Engine::Impl::check_tokens(std::span<const Token> tokens) const {
  for (const Token token : tokens) {
    if (token < 0 || token >= shape().vocab) {
      return bad_input(
          fmt::format("token {} is not in the vocabulary of {}; tokenize the text with this model", token, shape().vocab));
    }
  }
  return {};
}

Status Engine::Impl::check_specs(std::span<const CacheSpec> specs, std::size_t prompt_tokens) const {
  if (specs.empty()) return usage_error("no cache is asked for; give at least one spec, for example full");
  std::size_t needed = 0;
  for (const CacheSpec& spec : specs) {
    KV_TRY(check_spec(spec, shape()));
    KV_ASSIGN(const ByteAccount bytes, predict_bytes(spec, shape(), static_cast<int>(prompt_tokens), 0));
    needed += bytes.fast_allocated();
  }
  const std::size_t used = arena->allocated_bytes();
  const std::size_t free = arena->cap_bytes() - std::min(used, arena->cap_bytes());
  if (needed <= free) return {};
  return exhausted(
      fmt::format("the caches of {} need {} bytes, but only {} of {} are free; raise --fast-tier-bytes or choose a "
                  "smaller cache",
                  counted(prompt_tokens, "prompt token"), needed, free, arena->cap_bytes()));
}

Result<std::vector<Sequence>> Engine::Impl::make_sequences(std::span<const CacheSpec> specs) const {
  const CacheOptions cache_options = {
      .threads = options.threads, .tier_directory = options.tier_directory, .files = options.files};
  std::vector<Sequence> sequences;
  sequences.reserve(specs.size());
  for (const CacheSpec& spec : specs) {
    KV_ASSIGN(SequenceCache cache, SequenceCache::create(spec, shape(), arena, cache_options));
    sequences.push_back({std::move(cache), {}, 0, 0, {}, false, 0});
  }
  return sequences;
}

Status Engine::Impl::run(Prefill& prefill, const Progress& progress) const {
  while (!prefill.done()) {
    if (is_cancelled()) return cancelled_now();
    KV_TRY(prefill.step());
    if (progress) progress(prefill.progress());
  }
  return {};
}

Status Engine::Impl::extend(Sequence& sequence, std::span<const Token> tokens) {
  if (sequence.cache.selects()) return feed(sequence, tokens, {});
  SequenceCache* caches[] = {&sequence.cache};
  KV_ASSIGN(Prefill prefill, Prefill::start(*transformer, tokens, caches, {.threads = options.threads}));
  KV_TRY(run(prefill, {}));
  sequence.logits.resize(static_cast<std::size_t>(shape().vocab));
  return transformer->logits(prefill.hidden(), {sequence.logits.data(), 1, sequence.logits.size()});
}

// One by one: every token selects the rows it attends to.
Status Engine::Impl::feed(Sequence& sequence, std::span<const Token> tokens, const std::function<void(std::size_t)>& after) {
  if (static_cast<int>(tokens.size()) > shape().context - sequence.cache.next_position()) {
    return exhausted(fmt::format("no room for {} on top of {} in the model's context of {}; shorten the text",
                                 counted(tokens.size(), "token"), sequence.cache.next_position(), shape().context));
  }
  Sequence* const one[] = {&sequence};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (is_cancelled()) return cancelled_now();
    KV_TRY(decode(one, tokens.subspan(i, 1)));
    if (after) after(i);
  }
  return {};
}

Status Engine::Impl::decode(std::span<Sequence* const> sequences, std::span<const Token> tokens) {
  std::vector<DecodeItem> items;
  items.reserve(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->logits.resize(static_cast<std::size_t>(shape().vocab));
    items.push_back({tokens[i], &sequences[i]->cache, sequences[i]->logits});
  }
  KV_TRY(step->run(items));
  times.linear += step->last().linear;
  times.attention += step->last().attention;
  times.cache += step->last().cache;
  times.head += step->last().head;
  ++times.steps;
  return {};
}

// --- the library's calls

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  if (options.threads < 1) return usage_error(fmt::format("{} threads make no sense; give at least 1", options.threads));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  KV_ASSIGN(impl->transformer,
            Transformer::load(options.model_path, {.threads = options.threads, .bf16_copy = options.bf16_copy}));
  KV_ASSIGN(impl->vocabulary, Vocabulary::load(options.model_path));
  if (impl->vocabulary->size() != impl->shape().vocab) {
    return bad_input(fmt::format("{} has {} tokens but embeddings for {}; convert the model again", options.model_path,
                                 impl->vocabulary->size(), impl->shape().vocab));
  }
  impl->arena = Arena::create(options.fast_tier_bytes);
  impl->step = std::make_unique<DecodeStep>(*impl->transformer, options.threads);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const ModelShape& Engine::shape() const { return impl_->shape(); }
const Vocabulary& Engine::vocabulary() const { return *impl_->vocabulary; }
std::size_t Engine::weight_bytes() const { return impl_->transformer->weight_bytes(); }
WeightReads Engine::weight_reads() const { return impl_->transformer->weight_reads(); }
int Engine::threads() const { return impl_->options.threads; }
const DecodeTimes& Engine::decode_times() const { return impl_->times; }
void Engine::use_kept_prefills(KeptPrefills* kept) { impl_->kept = kept; }

Status Engine::extend(Sequence& sequence, std::span<const Token> tokens) {
  KV_TRY(impl_->check_tokens(tokens));
  std::vector<Token> all = std::exchange(sequence.pending, {});
  all.insert(all.end(), tokens.begin(), tokens.end());
  if (all.empty()) return {};
  return impl_->extend(sequence, all);
}

Status Engine::decode(std::span<Sequence* const> sequences, std::span<const Token> tokens) {
  KV_CHECK(sequences.size() == tokens.size());
  if (sequences.empty()) return {};
  if (impl_->is_cancelled()) return cancelled_now();
  KV_TRY(impl_->check_tokens(tokens));
  for (Sequence* sequence : sequences) {
    if (sequence->cache.is_endless()) continue;
    if (sequence->cache.next_position() + static_cast<int>(sequence->pending.size()) < shape().context) continue;
    return exhausted(fmt::format("the sequence fills the model's context of {} tokens; shorten the prompt", shape().context));
  }
  for (Sequence* sequence : sequences) {
    if (!sequence->pending.empty()) KV_TRY(extend(*sequence, {}));
  }
  return impl_->decode(sequences, tokens);
}

Status Engine::decode_observed(Sequence& sequence, Token token, const LayerObserver& observer) {
  const Token tokens[] = {token};
  KV_TRY(impl_->check_tokens(tokens));
  KV_TRY(extend(sequence, {}));
  sequence.logits.resize(static_cast<std::size_t>(shape().vocab));
  const DecodeItem item{token, &sequence.cache, sequence.logits, &observer};
  return impl_->step->run({&item, 1});
}

Status Engine::project_attention(int layer, MatView<const float> attention, MatView<float> out) {
  return impl_->transformer->project_attention(layer, attention, out);
}

Result<std::vector<double>> Engine::log_likelihoods(const Sequence& sequence, std::span<const Token> continuation) {
  KV_TRY(impl_->check_tokens(continuation));
  if (continuation.empty()) return std::vector<double>();
  std::vector<double> likelihoods;
  likelihoods.reserve(continuation.size());

  // Row r of the pass over `fed` predicts fed[r + 1]; without pending tokens the first gold token is predicted already.
  if (sequence.pending.empty()) likelihoods.push_back(log_probability(sequence.logits, continuation[0]));
  std::vector<Token> fed = sequence.pending;
  fed.insert(fed.end(), continuation.begin(), continuation.end() - 1);
  if (fed.empty()) return likelihoods;

  Sequence fork = sequence.fork();
  const std::size_t first_row = sequence.pending.empty() ? 0 : sequence.pending.size() - 1;
  if (fork.cache.selects()) {
    KV_TRY(impl_->feed(fork, fed, [&](std::size_t i) {
      if (i >= first_row) likelihoods.push_back(log_probability(fork.logits, continuation[likelihoods.size()]));
    }));
    return likelihoods;
  }
  SequenceCache* caches[] = {&fork.cache};
  KV_ASSIGN(Prefill prefill,
            Prefill::start(*impl_->transformer, fed, caches, {.threads = impl_->options.threads, .keep_hidden = true}));
  KV_TRY(impl_->run(prefill, {}));

  const MatView<const float> hidden = prefill.hidden();
  const auto vocab = static_cast<std::size_t>(shape().vocab);
  std::vector<float> logits(std::min(kLogitRows, hidden.rows) * vocab);
  for (std::size_t begin = first_row; begin < hidden.rows; begin += kLogitRows) {
    const std::size_t end = std::min(begin + kLogitRows, hidden.rows);
    const MatView<float> rows(logits.data(), end - begin, vocab);
    KV_TRY(impl_->transformer->logits(hidden.row_range(begin, end), rows));
    for (std::size_t r = 0; r < rows.rows; ++r) {
      likelihoods.push_back(log_probability(rows.row_span(r), continuation[likelihoods.size()]));
    }
  }
  return likelihoods;
}

}  // namespace kvartet
