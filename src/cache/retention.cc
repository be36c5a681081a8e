#include "cache/retention.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

namespace kvartet {
namespace {

Arrival streaming_arrival(const StreamingOptions& options, const ArrivalRequest& request) {
  Arrival arrival;
  const int after = request.seen + request.tokens;
  const int old_rows = streaming_rows(request.seen, options);
  const int new_rows = streaming_rows(after, options);
  if (new_rows - old_rows == request.tokens) return arrival;
  arrival.all = false;
  for (int position = std::max(request.seen, after - options.window); position < after; ++position) {
    const int slot = streaming_slot(position, options);
    if (slot < old_rows) arrival.replace.push_back({slot, position - request.seen});
  }
  std::vector<std::int32_t> appended;
  for (int slot = old_rows; slot < new_rows; ++slot) appended.push_back(streaming_position(slot, after, options) - request.seen);
  arrival.pick.assign(static_cast<std::size_t>(request.kv_heads), appended);
  return arrival;
}

Result<Arrival> snapkv_arrival(const SnapKvOptions& options, const ArrivalRequest& request) {
  Arrival arrival;
  const bool first_prompt = request.seen == 0 && request.first_prompt > 0;
  if (!first_prompt || snapkv_is_idle(request.tokens, options)) return arrival;  // later rows are appended, never re-scored
  const LayerScores* scores = request.scores;
  if (scores == nullptr || scores->tokens != request.tokens || scores->window_rows < options.window) {
    return internal_error(fmt::format("snapkv has to choose {} of {} rows and got no attention scores of the last {} queries",
                                      options.capacity, request.tokens, options.window));
  }
  arrival.all = false;
  arrival.pick = snapkv_plan(*scores, request.kv_heads, options).rows;
  return arrival;
}

}  // namespace

SnapKvOptions snapkv_options(const CacheSpec& spec, int first_prompt) {
  return {.capacity = spec.budget.rows(first_prompt, spec.window + 1),
          .window = spec.window,
          .kernel = spec.kernel,
          .pool = spec.pool};
}

StreamingOptions streaming_options(const CacheSpec& spec, int first_prompt) {
  if (spec.window > 0) return {.sinks = spec.sinks, .window = spec.window};
  return {.sinks = spec.sinks, .window = spec.budget.rows(first_prompt, spec.sinks + 1) - spec.sinks};
}

CacheSpec windowed_layer_spec(const CacheSpec& spec) {
  CacheSpec windowed;
  windowed.canonical = spec.canonical;
  windowed.key = spec.key;
  windowed.value = spec.value;
  windowed.residual = spec.residual;
  return windowed;
}

int rows_after(const CacheSpec& spec, int first_prompt, int generated) {
  switch (spec.evict) {
    case Evict::kNone: return first_prompt + generated;
    case Evict::kStreaming: return streaming_rows(first_prompt + generated, streaming_options(spec, first_prompt));
    case Evict::kSnap: {
      const SnapKvOptions options = snapkv_options(spec, first_prompt);
      return (snapkv_is_idle(first_prompt, options) ? first_prompt : options.capacity) + generated;
    }
  }
  return 0;
}

Result<Arrival> plan_arrival(const CacheSpec& spec, const ArrivalRequest& request) {
  switch (spec.evict) {
    case Evict::kNone: return Arrival{};
    case Evict::kStreaming: return streaming_arrival(streaming_options(spec, request.first_prompt), request);
    case Evict::kSnap: return snapkv_arrival(snapkv_options(spec, request.first_prompt), request);
  }
  return Arrival{};
}

}  // namespace kvartet
