// Which prompt tokens are always kept, which are candidates, and how many of these are selected (offloading.md 1.4, 1.5).
#pragma once

#include <cstdint>

namespace kvartet {

// Tokens: a whole number, or a share of the prompt.
struct Amount {
  double value = 0;
  bool share = false;
  bool operator==(const Amount&) const = default;
};

enum class Segmentation : std::uint8_t {
  kChunks,  // ShadowKV and YAKV's accuracy code: floor, whole chunks, the rest of a chunk joins the local window
  kInfix,   // YAKV's engine: prefix and suffix as shares rounded up
};
enum class OutlierRule : std::uint8_t {
  kFirst,   // the first tokens of the prompt (attention sinks)
  kCosine,  // per head the chunks that their mean represents worst
};

struct SegmentRequest {
  int prompt = 0;
  int chunk = 1;
  int run = 1;  // chunks that are selected together
  Amount budget = {};
  Amount sinks = {};  // tokens always kept at the head, or in outlier chunks
  Amount local = {};
  Segmentation segmentation = Segmentation::kChunks;
  OutlierRule rule = OutlierRule::kFirst;
  int least_prompt = 0;      // prompts up to this stay whole
  bool at_least_one = true;  // a share above 0 that rounds to nothing selects one chunk
};

// front + candidates * chunk + local == prompt. Candidates and selected ones are whole runs.
struct Segments {
  bool dense = true;       // the whole prompt is kept; everything else is 0 then
  int front = 0;           // tokens 0..front-1 are always kept
  int candidates = 0;      // chunks that follow, outlier chunks included
  int outlier_chunks = 0;  // of the candidates, chosen per head
  int selected = 0;        // chunks per head and step, at most candidates - outlier_chunks
  int local = 0;           // last tokens of the prompt
  bool operator==(const Segments&) const = default;
  int kept_tokens(int chunk) const { return front + outlier_chunks * chunk + local; }
};
Segments segment_prompt(const SegmentRequest& request);

}  // namespace kvartet
