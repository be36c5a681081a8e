#include "offload/presets.h"

#include <array>
#include <numeric>

namespace kvartet {
namespace {

constexpr Amount tokens(int n) { return {static_cast<double>(n), false}; }
constexpr Amount share(double of_prompt) { return {of_prompt, true}; }

}  // namespace

int SelectOptions::block_rows() const {
  constexpr int kLeastRows = 64;  // a tile of f16
  const int landmarks = (kLeastRows + index.chunk - 1) / index.chunk;
  const int group = std::lcm(landmark_group(index), run);
  return (landmarks + group - 1) / group * group * index.chunk;
}

int SelectOptions::far_generated(int rows) const {
  if (generated == 0 || rows < generated) return 0;
  return ((rows - generated) / block_rows() + 1) * block_rows();
}

std::span<const SelectPreset> select_presets() {
  static const std::array<SelectPreset, 9> kPresets = {{
      {"yakv",
       "Every token keeps a 2-bit landmark near; keys and values lie far in 4 bits and come back by selection.",
       {.keys = RowFormat::kHiggs4, .values = RowFormat::kHiggs4, .rope = KeyRope::kPre}},
      {"yakv-engine",
       "YAKV as its inference engine runs it: FP8 rows, mean query, sinks and a window as shares of the prompt.",
       {.budget = share(0.015625),
        .keys = RowFormat::kFp8,
        .values = RowFormat::kFp8,
        .aggregate = Aggregate::kMeanQuery,
        .sinks = share(0.00625),
        .local = share(0.00625),
        .segments = Segmentation::kInfix,
        .least_prompt = 512}},
      {"shadowkv",
       "Keys as a low-rank factorization near, values far; chunks of 8 found by their mean, outlier chunks kept.",
       {.budget = share(0.015625),
        .index = {.format = RowFormat::kBf16, .chunk = 8},
        .low_rank_keys = true,
        .values = RowFormat::kF16,
        .rope = KeyRope::kPre,
        .sinks = tokens(384),
        .outliers = OutlierRule::kCosine,
        .local = tokens(32)}},
      {"oracle",
       "Selects with the exact keys: the upper bound for every index at the same budget.",
       {.index = {.format = RowFormat::kF16}}},
      {"quest",
       "Everything stays near; per query head only the pages with the best upper bounds are read.",
       {.index = {.kind = IndexKind::kBounds, .format = RowFormat::kF16, .chunk = 16},
        .aggregate = Aggregate::kMaxLogit,
        .share = Share::kHead,
        .place = Place::kNear,
        .local = tokens(0),
        .dense_layers = 2}},
      {"arkvale",
       "Pages of 16 tokens found by a digest of center and radius; sink and window pages kept.",
       {.index = {.kind = IndexKind::kDigest, .format = RowFormat::kBf16, .chunk = 16},
        .aggregate = Aggregate::kMaxLogit,
        .sinks = tokens(32),
        .local = tokens(80)}},
      {"infinigen",
       "Chooses by the queries that the layer before suggests, on the channels that matter most; exact rows lie far.",
       {.budget = share(0.2),
        .index = {.kind = IndexKind::kPartial, .format = RowFormat::kBf16},
        .share = Share::kHead,
        .queries = QuerySource::kGuessed,
        .local = tokens(0),
        .dense_layers = 2}},
      {"lrqk",
       "Chooses by low-rank factors of keys and queries that were fitted together; exact rows lie far.",
       {.index = {.kind = IndexKind::kFactors, .format = RowFormat::kBf16}, .share = Share::kHead}},
      {"select", "A selecting cache with every axis free.", {}},
  }};
  return kPresets;
}

}  // namespace kvartet
