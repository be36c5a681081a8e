#include "offload/select_segments.h"

#include <algorithm>
#include <cmath>

namespace kvartet {
namespace {

int whole_chunks(int tokens, int chunk) { return tokens / chunk * chunk; }

int floor_tokens(const Amount& amount, int prompt) {
  return static_cast<int>(amount.share ? std::floor(amount.value * prompt) : std::min(amount.value, 1.0 * (1 << 24)));
}

// The engine computes shares in f32 and rounds them up.
int ceil_tokens(const Amount& amount, int prompt) {
  if (!amount.share) return static_cast<int>(amount.value);
  return static_cast<int>(std::ceil(static_cast<float>(amount.value) * static_cast<float>(prompt)));
}

Segments by_chunks(const SegmentRequest& r) {
  const int c = r.chunk;
  int sparse = whole_chunks(floor_tokens(r.budget, r.prompt), c) / c;
  if (sparse == 0 && r.at_least_one && r.budget.share && r.budget.value > 0) sparse = 1;
  const int local_chunks = floor_tokens(r.local, r.prompt) / c;
  const int outlier_chunks = floor_tokens(r.sinks, r.prompt) / c;
  const int chunks = r.prompt / c - local_chunks;
  if (chunks <= outlier_chunks) return {};
  Segments s;
  s.dense = false;
  if (r.rule == OutlierRule::kFirst || c == 1) {  // cosine to the mean of one token is always 1
    s.front = outlier_chunks * c;
    s.candidates = chunks - outlier_chunks;
  } else {
    s.candidates = chunks;
    s.outlier_chunks = outlier_chunks;
  }
  s.local = r.prompt - chunks * c;
  s.selected = std::min(sparse, chunks - outlier_chunks);
  return s;
}

Segments by_infix(const SegmentRequest& r) {
  const int n = r.prompt;
  const int c = r.chunk;
  if (n <= r.least_prompt) return {};
  const int prefix = std::min(ceil_tokens(r.sinks, n), n);
  int suffix = std::min(ceil_tokens(r.local, n), n - prefix);
  int infix = n - prefix - suffix;
  suffix += infix % c;
  infix -= infix % c;
  const int wanted = r.budget.share ? static_cast<int>(std::floor(static_cast<float>(r.budget.value) * static_cast<float>(n)))
                                    : static_cast<int>(r.budget.value);
  int pruned = std::min(whole_chunks(wanted, c), infix);
  const int kept = prefix + pruned + suffix;
  if (kept < n && kept < r.least_prompt) pruned = std::min(whole_chunks(r.least_prompt - prefix - suffix, c), infix);
  return {.dense = false, .front = prefix, .candidates = infix / c, .outlier_chunks = 0, .selected = pruned / c, .local = suffix};
}

// A run is cut from the prompt as a larger chunk is.
SegmentRequest of_runs(SegmentRequest request) {
  request.chunk *= request.run;
  request.run = 1;
  return request;
}

Segments in_chunks(Segments s, int run) {
  s.candidates *= run;
  s.outlier_chunks *= run;
  s.selected *= run;
  return s;
}

}  // namespace

Segments segment_prompt(const SegmentRequest& request) {
  if (request.prompt <= request.least_prompt) return {};
  if (request.run > 1) return in_chunks(segment_prompt(of_runs(request)), request.run);
  const Segments s = request.segmentation == Segmentation::kChunks ? by_chunks(request) : by_infix(request);
  if (s.dense || s.kept_tokens(request.chunk) + s.selected * request.chunk >= request.prompt) return {};
  return s;
}

}  // namespace kvartet
