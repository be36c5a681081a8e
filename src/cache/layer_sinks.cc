// Angles by row (compression.md 6.1 a, the paper's StreamingLLM): the first S tokens stand right before the window, whatever was
// dropped between.
//
// In the paper a key has the angle of its row and the query that of the last row. A logit depends on the difference of the two
// alone, so only keys whose distance to the query differs from that of their positions have to be turned: those are the first
// S, by as many steps as tokens were dropped. The window and the queries keep the angles of their positions, and a step turns S
// keys of a head instead of S + W. Always from the keys as they came, so nothing drifts.
#include <algorithm>

#include <fmt/format.h>

#include "cache/layer_cache.h"
#include "core/check.h"
#include "core/rope_table.h"
#include "quantize/row_check.h"

namespace kvartet {

int LayerCache::sinks_of(int seen) const { return rope_ == nullptr ? 0 : std::min(seen, spec_->sinks); }

Result<std::vector<std::vector<float>>> LayerCache::turned_sinks(const NewTokens& tokens) const {
  const int after = seen_ + count_of(tokens);
  const int sinks = sinks_of(after);
  std::vector<std::vector<float>> turned(heads_.size());
  const int dropped = after - streaming_rows(after, streaming_options(*spec_, first_prompt_));
  if (dropped == 0) return turned;
  const RopeTurn turn(*rope_, dropped);
  const TileFormat& open = formats_->key.open;
  const auto cols = static_cast<std::size_t>(open.head_dim);
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    for (int row = 0; row < sinks; ++row) {
      const bool is_new = row >= seen_;
      const float* const key = is_new ? tokens.keys[h].row(static_cast<std::size_t>(row - seen_)) : heads_[h].sinks.at(row);
      turned[h].insert(turned[h].end(), key, key + cols);
      turn.apply(turned[h].data() + static_cast<std::size_t>(row) * cols);
    }
    // A turn can make one channel larger by the square root of two.
    KV_TRY(check_finite({turned[h].data(), static_cast<std::size_t>(sinks), cols}, open.name.c_str(),
                        open.bits == 16 ? kF16Overflow : 0.0F)
               .within(fmt::format("KV head {}, keys turned by {} positions", h, dropped)));
  }
  return turned;
}

Status LayerCache::own_sinks(Arena& arena, const NewTokens& tokens, const std::vector<std::vector<float>>& turned) {
  const int sinks = sinks_of(seen_ + count_of(tokens));
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    KV_TRY(head.sinks.own(arena, head.sinks.rows(), sinks));
    if (turned[h].empty()) continue;
    for (int row = 0; row < std::min(sinks, head.key.rows()); ++row) KV_TRY(head.key.own_row(arena, row));
  }
  return {};
}

Status LayerCache::place_sinks(const NewTokens& tokens, const std::vector<std::vector<float>>& turned) {
  const int sinks = sinks_of(seen_);
  const int before = seen_ - count_of(tokens);
  const auto cols = static_cast<std::size_t>(formats_->key.open.head_dim);
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    for (int row = head.sinks.rows(); row < sinks; ++row)
      head.sinks.append(tokens.keys[h].row(static_cast<std::size_t>(row - before)));
    if (turned[h].empty()) continue;
    for (int row = 0; row < sinks; ++row)
      KV_TRY(head.key.overwrite(row, {turned[h].data() + static_cast<std::size_t>(row) * cols, 1, cols}));
  }
  return {};
}

}  // namespace kvartet
