#include "bench/runner/estimate.h"

#include <algorithm>
#include <set>

#include "bench/runner/solo.h"
#include "bench/runner/solo_child.h"
#include "cache/sequence_cache.h"
#include "model/shared_prefix.h"

namespace kvartet {
namespace {

// One process: the model, the warm-up, the prompt and its longest answer.
double solo_seconds(const PreparedSample& sample, const RunRates& rates) {
  const int prompt = sample.record.prompt_tokens;
  const int answer = sample.sample.max_new_tokens;
  const double warm_up = std::min(prompt, kWarmUpPromptTokens) / rates.prefill_tokens_per_s +
                         std::min(answer, kWarmUpAnswerTokens) / rates.decode_tokens_per_s;
  return rates.open_s + kWarmUpRequests * warm_up + prompt / rates.prefill_tokens_per_s + answer / rates.decode_tokens_per_s;
}

}  // namespace

RunEstimate estimate_run(std::span<const PlannedTask> plan, std::span<const CacheSpec> specs, const ModelShape& shape,
                         const RunRates& rates, int solo) {
  RunEstimate out;
  double seconds = 0;
  int longest_prompt = 0;
  int longest_answer = 0;
  std::set<DocumentKey> begun;
  for (const PlannedTask& task : plan) {
    for (const PreparedSample& sample : task.samples) {
      const int answer = sample.sample.max_new_tokens;
      const auto gold = static_cast<double>(sample.gold.size());
      const bool first = sample.shared_tokens == 0 || begun.insert(document_key(sample)).second;
      out.shared_prompts += first ? 0 : 1;
      out.shared_bytes = std::max(out.shared_bytes, SharedPrefix::most_bytes(shape, sample.shared_tokens));
      seconds += (sample.record.prompt_tokens - (first ? 0 : sample.shared_tokens)) / rates.prefill_tokens_per_s;
      for (const CacheSpec& spec : specs) {
        // Selecting caches take the reference answer one token at a time.
        seconds +=
            answer / rates.decode_tokens_per_s + gold / (spec.offload ? rates.decode_tokens_per_s : rates.prefill_tokens_per_s);
      }
      if (std::int64_t{sample.record.prompt_tokens} + answer > std::int64_t{longest_prompt} + longest_answer) {
        longest_prompt = sample.record.prompt_tokens;
        longest_answer = answer;
      }
    }
  }
  double alone = 0;
  for (const PlannedTask* task : solo_tasks(plan)) {
    const PreparedSample* sample = solo > 0 ? representative_sample(*task) : nullptr;
    if (sample == nullptr) continue;
    const std::int64_t runs = std::int64_t{solo} * std::ssize(specs);
    out.solo_runs += runs;
    alone += static_cast<double>(runs) * solo_seconds(*sample, rates);
  }
  out.solo_hours = alone / 3600;
  out.hours = (seconds + alone) / 3600;
  for (const CacheSpec& spec : specs) {
    const Result<ByteAccount> bytes = predict_bytes(spec, shape, longest_prompt, longest_answer);
    if (!bytes.ok()) continue;  // a spec that does not fit was refused before
    out.cache_bytes += bytes->allocated;
    out.fast_bytes += bytes->fast_allocated();
  }
  return out;
}

}  // namespace kvartet
