// A row-selecting method as independent answers (offloading.md 5), and the named methods as presets over them (8).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/bytes.h"
#include "offload/landmark_index.h"
#include "offload/projected_index.h"
#include "offload/row_codec.h"
#include "offload/select_segments.h"
#include "offload/select_top.h"

namespace kvartet {

enum class KeyRope : std::uint8_t { kPre, kPost };         // how keys lie in the slow tier
enum class Place : std::uint8_t { kFar, kNear };           // rows in the slow tier, or all in the fast one (Quest)
enum class Share : std::uint8_t { kGroup, kHead };         // one selection per KV head, or one per query head
enum class QuerySource : std::uint8_t { kOwn, kGuessed };  // which queries choose: the layer's, or a guess from the layer before
enum class RowGroup : std::uint8_t { kHead, kJoint };  // a far row is one KV head's, or all KV heads' of a token (4.1, design a)

struct SelectOptions {
  Amount budget = {0.03125, true};
  IndexOptions index = {};  // chunk included
  RowFormat keys = RowFormat::kF16;
  bool low_rank_keys = false;  // keys of candidates exist only as a factorization of `rank`
  int rank = 160;
  RowFormat values = RowFormat::kF16;
  KeyRope rope = KeyRope::kPost;
  RowGroup groups = RowGroup::kHead;
  Aggregate aggregate = Aggregate::kMaxSoftmax;
  Share share = Share::kGroup;
  QuerySource queries = QuerySource::kOwn;
  int run = 1;  // neighbouring chunks that are selected together, by the best of them
  Place place = Place::kFar;
  Amount sinks = {0, false};
  OutlierRule outliers = OutlierRule::kFirst;
  Amount local = {64, false};
  Segmentation segments = Segmentation::kChunks;
  int least_prompt = 0;
  int dense_layers = 0;  // first layers that keep everything
  Tier tier = Tier::kRam;
  double cache_share = 0;  // of a head's rows that stay near after they were fetched
  int generated = 0;       // of the answer's rows fewer than so many stay near, the older ones go far; 0: all stay near
  bool operator==(const SelectOptions&) const = default;

  SegmentRequest request(int prompt) const {
    return {.prompt = prompt,
            .chunk = index.chunk,
            .run = run,
            .budget = budget,
            .sinks = sinks,
            .local = local,
            .segmentation = segments,
            .rule = outliers,
            .least_prompt = least_prompt};
  }

  // How many of the answer's rows go far at once: whole runs, and whole groups of landmarks as the index writes them.
  int block_rows() const;
  // Of so many generated rows, those that have gone far: a block of the oldest whenever `generated` rows are near.
  int far_generated(int rows) const;
};

struct SelectPreset {
  std::string_view name;
  std::string_view summary;
  SelectOptions options;
};
std::span<const SelectPreset> select_presets();

}  // namespace kvartet
