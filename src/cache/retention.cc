#include "cache/retention.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

#include "core/check.h"
#include "evict/adakv.h"
#include "evict/h2o.h"
#include "evict/pyramidkv.h"
#include "evict/ranking.h"
#include "evict/tova.h"

namespace kvartet {
namespace {

// Rows that pyramidkv keeps of a first prompt that it cuts.
int layer_capacity(const CacheSpec& spec, const LayerPlace& place, int first_prompt) {
  return pyramid_capacity(first_prompt, {.snap = snapkv_options(spec, first_prompt), .beta = spec.beta}, place.index,
                          place.count);
}

Arrival streaming_arrival(const StreamingOptions& options, const ArrivalRequest& request) {
  Arrival arrival;
  const int after = request.seen + request.tokens;
  const int old_rows = streaming_rows(request.seen, options);
  const int new_rows = streaming_rows(after, options);
  if (new_rows - old_rows == request.tokens) return arrival;
  arrival.all = false;
  std::vector<Arrival::Replacement> replaced;
  for (int position = std::max(request.seen, after - options.window); position < after; ++position) {
    const int slot = streaming_slot(position, options);
    if (slot < old_rows) replaced.push_back({slot, position - request.seen});
  }
  arrival.replace.assign(static_cast<std::size_t>(request.kv_heads), replaced);
  std::vector<std::int32_t> appended;
  for (int slot = old_rows; slot < new_rows; ++slot) appended.push_back(streaming_position(slot, after, options) - request.seen);
  arrival.pick.assign(static_cast<std::size_t>(request.kv_heads), appended);
  return arrival;
}

Status missing_scores(const CacheSpec& spec, const ArrivalRequest& request) {
  return internal_error(
      fmt::format("{} has to choose among {} new rows and got no attention scores for them", spec.canonical, request.tokens));
}

// snapkv, pyramidkv, adakv: once, at the end of the first prompt.
Result<Arrival> observed_arrival(const CacheSpec& spec, const ArrivalRequest& request) {
  Arrival arrival;
  SnapKvOptions options = snapkv_options(spec, request.first_prompt);
  const bool first_prompt = request.seen == 0 && request.first_prompt > 0;
  if (!first_prompt || snapkv_is_idle(request.tokens, options)) return arrival;  // later rows are appended, never re-scored
  const LayerScores* scores = request.scores;
  if (scores == nullptr || scores->tokens != request.tokens || scores->window_rows < options.window) {
    return missing_scores(spec, request);
  }
  arrival.all = false;
  if (spec.evict == Evict::kAda) {
    arrival.pick = adakv_plan(*scores, request.kv_heads, options, spec.alpha).rows;
    return arrival;
  }
  if (spec.evict == Evict::kPyramid) options.capacity = layer_capacity(spec, request.place, request.first_prompt);
  arrival.pick = snapkv_plan(*scores, request.kv_heads, options).rows;
  return arrival;
}

// By what rows leave between steps: h2o's, tova's, or that of what cam is put over.
enum class Rule { kStreaming, kH2o, kTova, kSnap };
Rule rule_of(const CacheSpec& spec) {
  if (spec.evict == Evict::kTova) return Rule::kTova;
  if (spec.evict == Evict::kH2o) return Rule::kH2o;
  KV_CHECK(spec.evict == Evict::kCam);
  switch (spec.base) {
    case CamBase::kStreaming: return Rule::kStreaming;
    case CamBase::kH2o: return Rule::kH2o;
    case CamBase::kTova: return Rule::kTova;
    case CamBase::kSnap: return Rule::kSnap;
  }
  return Rule::kStreaming;
}

std::vector<std::int32_t> all_but(const std::vector<std::int32_t>& staying, int rows) {
  std::vector<std::int32_t> leaving;
  for (std::int32_t row = 0; row < rows; ++row) {
    if (!std::binary_search(staying.begin(), staying.end(), row)) leaving.push_back(row);
  }
  return leaving;
}

SnapKvOptions pass_options(const CacheSpec& spec, int keep) {
  return {.capacity = keep, .window = std::min(spec.window, spec.interval), .kernel = spec.kernel, .pool = spec.pool};
}

// The rows that leave when `keep` of them stay, ascending. `scores`: of what the rule ranks by.
std::vector<std::int32_t> leaving_rows(const CacheSpec& spec, std::span<const float> scores,
                                       std::span<const std::int32_t> positions, int seen, int keep) {
  const int rows = static_cast<int>(positions.size());
  const H2oOptions h2o = h2o_options(keep, spec.recent);
  switch (rule_of(spec)) {
    case Rule::kStreaming: {
      const int first_recent = seen - (keep - spec.sinks);
      std::vector<std::int32_t> leaving;
      for (std::int32_t row = 0; row < rows; ++row) {
        const std::int32_t position = positions[static_cast<std::size_t>(row)];
        if (position >= spec.sinks && position < first_recent) leaving.push_back(row);
      }
      return leaving;
    }
    case Rule::kSnap: return all_but(snapkv_rows(scores, positions, seen, pass_options(spec, keep)), rows);
    case Rule::kTova:
      if (rows == keep + 1)
        return {worst_row(scores, positions, std::numeric_limits<int>::max())};  // most steps: without sorting
      return all_but(tova_rows(scores, positions, keep), rows);
    case Rule::kH2o:
      if (rows == keep + 1) return {worst_row(scores, positions, seen - h2o.recent)};
      return all_but(h2o_rows(scores, positions, seen, h2o), rows);
  }
  return {};
}

CamOptions cam_options(const CacheSpec& spec, const LayerPlace& place, std::size_t kv_head) {
  return {.merge = spec.merge,
          .seed = static_cast<std::uint64_t>(spec.seed),
          .layer = place.index,
          .kv_head = static_cast<int>(kv_head)};
}

// Columns that leave become holes; the new tokens that stay fill them in order, and the others are appended.
void place_tokens(std::span<const std::int32_t> leaving, int old_rows, int tokens, Arrival* arrival) {
  std::vector<Arrival::Replacement>& replaced = arrival->replace.emplace_back();
  std::vector<std::int32_t>& appended = arrival->pick.emplace_back();
  auto hole = leaving.begin();
  for (std::int32_t token = 0; token < tokens; ++token) {
    if (std::binary_search(leaving.begin(), leaving.end(), old_rows + token)) continue;
    if (hole != leaving.end() && *hole < old_rows) {
      replaced.push_back({*hole++, token});
    } else {
      appended.push_back(token);
    }
  }
  KV_CHECK(hole == leaving.end() || *hole >= old_rows);
}

// Of every query head's last query, over all columns.
std::vector<float> last_query_scores(const LayerScores& scores) {
  const auto columns = static_cast<std::size_t>(scores.tokens);
  const auto stride = static_cast<std::size_t>(scores.window_rows) * columns;
  const float* const last = scores.window.data() + (scores.window_rows - 1) * static_cast<std::ptrdiff_t>(scores.tokens);
  return tova_scores({last, static_cast<std::size_t>(scores.heads), columns, stride});
}

std::vector<float> mean_over_heads(const std::vector<std::vector<float>>& of_heads) {
  std::vector<float> mean(of_heads.front().size(), 0.0F);
  for (const std::vector<float>& head : of_heads) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += head[i];
  }
  for (float& x : mean) x /= static_cast<float>(of_heads.size());
  return mean;
}

// What a prompt's columns are ranked by, per KV head, and what their sums are from now on.
struct PromptRanks {
  std::vector<std::vector<float>> ranks;  // [kv_heads]; unused by rules that rank by position, or once by the window
  std::vector<std::vector<float>> sums;   // [kv_heads]; empty unless the spec keeps them
};

PromptRanks prompt_ranks(const CacheSpec& spec, const ArrivalRequest& request) {
  const LayerScores& scores = *request.scores;
  const auto kv_heads = static_cast<std::size_t>(request.kv_heads);
  PromptRanks out;
  if (!spec.keeps_sums()) {
    out.ranks.assign(kv_heads, last_query_scores(scores));
    return out;
  }
  const std::vector<std::vector<float>> of_prompt = group_means(scores, request.kv_heads);
  out.sums = of_prompt;
  for (std::size_t h = 0; h < kv_heads; ++h) {
    for (std::size_t row = 0; row < request.known[h].sums.size(); ++row) out.sums[h][row] += request.known[h].sums[row];
  }
  switch (rule_of(spec)) {
    case Rule::kStreaming:
    case Rule::kH2o: out.ranks = out.sums; break;
    // Of a later prompt attention exports no window: all its queries stand for the last ones.
    case Rule::kSnap: out.ranks = of_prompt; break;
    case Rule::kTova:
      out.ranks.assign(kv_heads, request.seen == 0 ? last_query_scores(scores) : mean_over_heads(of_prompt));
      break;
  }
  return out;
}

// Are the scores there that the spec asks for, over these columns?
bool scores_fit(const CacheSpec& spec, const ArrivalRequest& request, int old_rows) {
  const LayerScores* const scores = request.scores;
  if (scores == nullptr || scores->tokens != old_rows + request.tokens || scores->sealed != old_rows) return false;
  if (spec.keeps_sums() && scores->column_sums.empty()) return false;
  const bool later = spec.keeps_sums() && request.seen > 0;
  const Rule rule = rule_of(spec);
  if (rule == Rule::kTova && !later) return scores->window_rows >= 1;
  if (rule == Rule::kSnap && !later) return scores->window_rows >= std::min(spec.window, request.tokens);
  return true;
}

// h2o, tova, cam at the end of a prompt, first or later.
Result<Arrival> ranked_arrival(const CacheSpec& spec, const ArrivalRequest& request) {
  Arrival arrival;
  if (!request.prompt) return arrival;
  const int old_rows = static_cast<int>(request.known.front().positions.size());
  const int columns = old_rows + request.tokens;
  const int keep = std::max(old_rows, std::min(columns, row_bound(spec, request.first_prompt)));
  if (!scores_fit(spec, request, old_rows)) {
    if (!spec.keeps_sums() && keep == columns) return arrival;
    return missing_scores(spec, request);
  }
  PromptRanks prompt = prompt_ranks(spec, request);
  if (keep < columns) {
    arrival.all = false;
    // The first prompt's window is there in full: exactly snapkv's choice.
    const bool by_window = rule_of(spec) == Rule::kSnap && request.seen == 0;
    KeepPlan observed;
    if (by_window) {
      observed = snapkv_plan(*request.scores, request.kv_heads,
                             {.capacity = keep, .window = spec.window, .kernel = spec.kernel, .pool = spec.pool});
    }
    for (std::size_t h = 0; h < static_cast<std::size_t>(request.kv_heads); ++h) {
      std::vector<std::int32_t> positions = request.known[h].positions;
      for (int token = 0; token < request.tokens; ++token) positions.push_back(request.seen + token);
      const std::vector<std::int32_t> leaving =
          by_window ? all_but(observed.rows[h], columns)
                    : leaving_rows(spec, prompt.ranks[h], positions, request.seen + request.tokens, keep);
      place_tokens(leaving, old_rows, request.tokens, &arrival);
      if (spec.evict == Evict::kCam)
        arrival.merges.push_back(cam_plan(prompt.sums[h], positions, leaving, cam_options(spec, request.place, h)));
    }
  }
  arrival.sums = std::move(prompt.sums);
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

int row_bound(const CacheSpec& spec, int first_prompt) { return spec.budget.rows(first_prompt, 1); }

int rows_after(const CacheSpec& spec, const LayerPlace& place, int first_prompt, int generated) {
  const int tokens = first_prompt + generated;
  switch (spec.evict) {
    case Evict::kNone: return tokens;
    case Evict::kStreaming: return streaming_rows(tokens, streaming_options(spec, first_prompt));
    case Evict::kSnap:
    case Evict::kPyramid:
    case Evict::kAda: {
      const SnapKvOptions options = snapkv_options(spec, first_prompt);
      if (snapkv_is_idle(first_prompt, options)) return tokens;
      return (spec.evict == Evict::kPyramid ? layer_capacity(spec, place, first_prompt) : options.capacity) + generated;
    }
    case Evict::kH2o:
    case Evict::kTova: return std::min(tokens, row_bound(spec, first_prompt));
    case Evict::kCam: {
      const int target = row_bound(spec, first_prompt);
      const int rows = std::min(first_prompt, target) + generated;
      return rows <= target ? rows : target + (rows - target) % spec.interval;
    }
  }
  return 0;
}

Result<Arrival> plan_arrival(const CacheSpec& spec, const ArrivalRequest& request) {
  switch (spec.evict) {
    case Evict::kNone: return Arrival{};
    case Evict::kStreaming: return streaming_arrival(streaming_options(spec, request.first_prompt), request);
    case Evict::kSnap:
    case Evict::kPyramid:
    case Evict::kAda: return observed_arrival(spec, request);
    case Evict::kH2o:
    case Evict::kTova:
    case Evict::kCam: return ranked_arrival(spec, request);
  }
  return Arrival{};
}

ObservedStep observed_step(const CacheSpec& spec, int first_prompt, int rows) {
  if (!spec.keeps_window_sums()) return {};
  const int window = std::min(spec.window, spec.interval);
  const int left = row_bound(spec, first_prompt) + spec.interval - rows;  // steps until the next pass; 0: after this one
  return {.counts = left < window, .begins = left == window - 1};
}

std::vector<Departure> plan_departure(const CacheSpec& spec, const DepartureRequest& request) {
  const int rows = static_cast<int>(request.known.front().positions.size());
  const int keep = row_bound(spec, request.first_prompt);
  const int pass = spec.evict == Evict::kCam ? spec.interval : 1;
  std::vector<Departure> departures(request.known.size());
  if (rows < keep + pass) return departures;
  const Rule rule = rule_of(spec);
  std::vector<float> layer_mean;
  if (rule == Rule::kTova) {
    layer_mean.assign(static_cast<std::size_t>(rows), 0.0F);
    for (const std::vector<float>& weights : request.weights) {
      for (std::size_t row = 0; row < layer_mean.size(); ++row) layer_mean[row] += weights[row];
    }
  }
  for (std::size_t h = 0; h < request.known.size(); ++h) {
    const KnownRows& known = request.known[h];
    const std::vector<float>& rank = rule == Rule::kTova ? layer_mean : rule == Rule::kSnap ? known.window_sums : known.sums;
    departures[h].leaving = leaving_rows(spec, rank, known.positions, request.seen, keep);
    if (spec.evict == Evict::kCam) {
      departures[h].merges = cam_plan(known.sums, known.positions, departures[h].leaving, cam_options(spec, request.place, h));
    }
  }
  return departures;
}

}  // namespace kvartet
