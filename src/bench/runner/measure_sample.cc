#include "bench/runner/measure_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/clock.h"

namespace kvartet {
namespace {

struct Bytes {
  std::int64_t live = 0;
  std::int64_t allocated = 0;
  std::int64_t fast = 0;
  std::int64_t f16 = 0;
};

Bytes bytes_of(const SequenceCache& cache, const ModelShape& shape) {
  Bytes out;
  const ByteAccount account = cache.bytes();
  out.live = static_cast<std::int64_t>(account.live);
  out.allocated = static_cast<std::int64_t>(account.allocated);
  out.fast = static_cast<std::int64_t>(account.fast_allocated());
  out.f16 = f16_bytes(shape, cache.next_position());
  return out;
}

Result<std::vector<Sequence>> prefill(Engine& engine, const PreparedSample& sample, std::span<const CacheSpec> specs,
                                      QuestionPosition position, const Engine::Progress& progress) {
  if (position == QuestionPosition::kSeen) {
    return engine.prefill_shared(sample.prompt(), sample.shared_tokens, specs, progress);
  }
  // Unseen or second: what the caches are sealed after does not have the question in it.
  KV_ASSIGN(std::vector<Sequence> sequences, engine.prefill_shared(sample.document, sample.shared_tokens, specs, progress));
  for (Sequence& sequence : sequences) {
    const double begin = Clock::real().seconds();
    KV_TRY(engine.extend(sequence, sample.question));
    sequence.prefill_s += Clock::real().seconds() - begin;
  }
  return sequences;
}

Status add_likelihood(Engine& engine, const PreparedSample& sample, const Sequence& sequence, Outcome& out) {
  if (sample.gold.empty()) return {};
  KV_ASSIGN(const std::vector<double> log_likelihoods, engine.log_likelihoods(sequence, sample.gold));
  double sum = 0;
  for (double x : log_likelihoods) sum += x;
  const double mean = sum / static_cast<double>(log_likelihoods.size());
  if (!std::isfinite(mean))
    return internal_error(fmt::format("the likelihood of the reference answer is {}, not a finite number", mean));
  out.gold_log_likelihood = mean;
  return {};
}

// Hundredths of a millisecond suffice, and keep 500 tokens within 4 kB.
std::string gaps_json(const std::vector<double>& token_s) {
  std::string out;
  for (std::size_t i = 1; i < token_s.size(); ++i) {
    out += fmt::format("{}{:.2f}", i == 1 ? "" : ",", 1000 * std::max(0.0, token_s[i] - token_s[i - 1]));
  }
  return "[" + out + "]";
}

void add_completion(const Completion& completion, Outcome& out) {
  out.prediction = completion.text;
  out.completion_tokens = static_cast<int>(completion.tokens.size());
  out.finish_reason = finish_reason_name(completion.finish_reason);
  if (!completion.token_s.empty()) out.ttft_s += completion.token_s.front();
  out.token_gaps_json = gaps_json(completion.token_s);
  const std::size_t timed = completion.token_s.size();
  if (timed >= 2 && completion.decode_s > 0) out.decode_tokens_per_s = static_cast<double>(timed - 1) / completion.decode_s;
}

// Everything at once; any failure is the whole list's.
Result<std::vector<Outcome>> measure_together(Engine& engine, const PreparedSample& sample, std::span<const CacheSpec> specs,
                                              QuestionPosition position, const Engine::Progress& progress) {
  KV_ASSIGN(std::vector<Sequence> sequences, prefill(engine, sample, specs, position, progress));
  std::vector<Outcome> out(specs.size());
  std::vector<Sequence*> all;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    Sequence& sequence = sequences[i];
    Outcome& o = out[i];
    o.key = sample.record.key;
    o.spec = specs[i].canonical;
    o.shared = specs.size() > 1 || sequence.prefill_read || sequence.prefix_taken > 0;
    o.prefill_s = sequence.prefill_s;
    o.compress_s = sequence.compress_s;
    o.ttft_s = sequence.prefill_s + sequence.compress_s;
    const Bytes bytes = bytes_of(sequence.cache, engine.shape());
    o.live_bytes = bytes.live;
    o.allocated_bytes = bytes.allocated;
    o.fast_bytes = bytes.fast;
    o.f16_bytes = bytes.f16;
    o.rows_kept = sequence.cache.mean_rows();
    KV_TRY(add_likelihood(engine, sample, sequence, o));
    all.push_back(&sequence);
  }

  GenerateOptions options;
  options.max_tokens = sample.sample.max_new_tokens;
  options.stop_at_newline = sample.sample.stop_at_newline;
  KV_ASSIGN(const std::vector<Completion> completions, engine.generate(all, options));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (completions[i].finish_reason == FinishReason::kCancelled) return cancelled("The benchmark was interrupted.");
    KV_TRY(completions[i].failure);
    add_completion(completions[i], out[i]);
    const Bytes bytes = bytes_of(sequences[i].cache, engine.shape());
    out[i].end_live_bytes = bytes.live;
    out[i].end_allocated_bytes = bytes.allocated;
    out[i].end_fast_bytes = bytes.fast;
    out[i].end_f16_bytes = bytes.f16;
    out[i].acted = sequences[i].cache.acted();
  }
  return out;
}

Outcome failed_outcome(const PreparedSample& sample, const CacheSpec& spec, const Status& status) {
  Outcome out;
  out.key = sample.record.key;
  out.spec = spec.canonical;
  out.error = status.message().empty() ? "unknown error" : status.message();
  return out;
}

}  // namespace

std::int64_t f16_bytes(const ModelShape& shape, int tokens) {
  std::int64_t sum = 0;
  for (const LayerShape& layer : shape.layers) {
    const int seen = layer.window > 0 ? std::min(layer.window, tokens) : tokens;
    sum += std::int64_t{4} * layer.kv_heads * layer.head_dim * seen;
  }
  return sum;
}

Result<std::vector<Outcome>> measure_capped_sample(Engine& engine, const PreparedSample& sample, std::span<const CacheSpec> specs,
                                                   QuestionPosition position, const AnswerCaps& caps,
                                                   const Engine::Progress& progress) {
  const auto limit_of = [&](const CacheSpec& spec) {
    const auto cap = caps.find(spec.canonical);
    return cap == caps.end() ? sample.sample.max_new_tokens : std::min(cap->second, sample.sample.max_new_tokens);
  };
  std::map<int, std::vector<std::size_t>> by_limit;
  for (std::size_t i = 0; i < specs.size(); ++i) by_limit[limit_of(specs[i])].push_back(i);
  std::vector<Outcome> out(specs.size());
  for (const auto& [limit, members] : by_limit) {
    PreparedSample cut = sample;
    cut.sample.max_new_tokens = limit;
    std::vector<CacheSpec> together;
    for (const std::size_t i : members) together.push_back(specs[i]);
    KV_ASSIGN(std::vector<Outcome> some, measure_sample(engine, cut, together, position, progress));
    for (std::size_t i = 0; i < members.size(); ++i) out[members[i]] = std::move(some[i]);
  }
  return out;
}

Result<std::vector<Outcome>> measure_sample(Engine& engine, const PreparedSample& sample, std::span<const CacheSpec> specs,
                                            QuestionPosition position, const Engine::Progress& progress) {
  Result<std::vector<Outcome>> together = measure_together(engine, sample, specs, position, progress);
  if (together.ok() || together.status().code() == Code::kCancelled) return together;
  if (specs.size() == 1) return std::vector<Outcome>{failed_outcome(sample, specs[0], together.status())};

  std::vector<Outcome> out;
  for (const CacheSpec& spec : specs) {
    Result<std::vector<Outcome>> alone = measure_together(engine, sample, {&spec, 1}, position, progress);
    if (!alone.ok() && alone.status().code() == Code::kCancelled) return alone;
    out.push_back(alone.ok() ? std::move(alone->front()) : failed_outcome(sample, spec, alone.status()));
  }
  return out;
}

}  // namespace kvartet
