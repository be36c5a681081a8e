#include "bench/runner/estimate.h"

#include <algorithm>

#include "cache/sequence_cache.h"

namespace kvartet {

RunEstimate estimate_run(std::span<const PlannedTask> plan, std::span<const CacheSpec> specs, const ModelShape& shape,
                         const RunRates& rates) {
  RunEstimate out;
  double seconds = 0;
  int longest_prompt = 0;
  int longest_answer = 0;
  for (const PlannedTask& task : plan) {
    for (const PreparedSample& sample : task.samples) {
      const int answer = sample.sample.max_new_tokens;
      const auto gold = static_cast<double>(sample.gold.size());
      seconds += sample.record.prompt_tokens / rates.prefill_tokens_per_s;
      for (const CacheSpec& spec : specs) {
        // Selecting caches take the reference answer one token at a time.
        seconds +=
            answer / rates.decode_tokens_per_s + gold / (spec.offload ? rates.decode_tokens_per_s : rates.prefill_tokens_per_s);
      }
      if (sample.record.prompt_tokens + answer > longest_prompt + longest_answer) {
        longest_prompt = sample.record.prompt_tokens;
        longest_answer = answer;
      }
    }
  }
  out.hours = seconds / 3600;
  for (const CacheSpec& spec : specs) {
    const Result<ByteAccount> bytes = predict_bytes(spec, shape, longest_prompt, longest_answer);
    if (!bytes.ok()) continue;  // a spec that does not fit was refused before
    out.cache_bytes += bytes->allocated;
    out.fast_bytes += bytes->fast_allocated();
  }
  return out;
}

}  // namespace kvartet
