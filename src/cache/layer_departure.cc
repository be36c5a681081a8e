// What happens in a layer after a decode step's attention when rows leave by its weights: sums grow, values merge, rows move.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "cache/layer_cache.h"
#include "quantize/row_check.h"

namespace kvartet {

std::vector<KnownRows> LayerCache::known_rows() const {
  std::vector<KnownRows> known;
  for (const Head& head : heads_)
    known.push_back({head.positions.all(), spec_->keeps_sums() ? head.sums.all() : std::vector<float>(),
                     spec_->keeps_window_sums() ? head.window_sums.all() : std::vector<float>()});
  return known;
}

Result<std::map<int, std::vector<float>>> LayerCache::merged_values(std::size_t kv_head, std::span<const Merge> merges,
                                                                    const NewTokens& tokens) const {
  const HeadSide& values = heads_[kv_head].value;
  const TileFormat& open = formats_->value.open;
  const auto cols = static_cast<std::size_t>(open.head_dim);
  const auto value_of = [&](int column) {
    std::vector<float> row(cols);
    if (column < values.rows()) {
      values.read_row(column, row);
    } else {
      const float* const from = tokens.values[kv_head].row(static_cast<std::size_t>(column - values.rows()));
      std::copy_n(from, cols, row.begin());
    }
    return row;
  };
  std::map<int, std::vector<float>> merged;
  int source = -1;
  std::vector<float> added;
  for (const Merge& merge : merges) {
    if (merge.source != source) added = value_of(source = merge.source);
    const auto [target, is_new] = merged.try_emplace(merge.target);
    if (is_new) target->second = value_of(merge.target);
    for (std::size_t c = 0; c < cols; ++c) target->second[c] += merge.weight * added[c];
  }
  for (const auto& [column, row] : merged) {
    KV_TRY(check_finite({row.data(), 1, cols}, open.name.c_str(), open.bits == 16 ? kF16Overflow : 0.0F)
               .within(fmt::format("KV head {}, values after merging", kv_head)));
  }
  return merged;
}

// What leaves one head after a step, ready to be carried out: nothing of it can fail but memory.
struct LayerCache::HeadDeparture {
  int count = 0;                           // rows that leave
  std::vector<std::pair<int, int>> moves;  // (row that stays, the leaving row whose place it takes)
  std::vector<Overwrite> keys;
  std::vector<Overwrite> values;
};

Result<LayerCache::HeadDeparture> LayerCache::prepare_departure(std::size_t kv_head, Departure departure) const {
  const Head& head = heads_[kv_head];
  const auto cols = static_cast<std::size_t>(formats_->value.open.head_dim);
  const int rows = head.key.rows();
  HeadDeparture out{.count = static_cast<int>(departure.leaving.size()), .moves = {}, .keys = {}, .values = {}};
  KV_ASSIGN(auto merged, merged_values(kv_head, departure.merges, {}));
  int mover = rows - out.count;
  for (const std::int32_t hole : departure.leaving) {
    if (hole >= rows - out.count) break;
    while (std::binary_search(departure.leaving.begin(), departure.leaving.end(), mover)) ++mover;
    out.moves.emplace_back(mover++, hole);
  }
  for (const auto& [from, to] : out.moves) {
    Overwrite key{to, std::vector<float>(cols)};
    Overwrite value{to, std::vector<float>(cols)};
    const auto changed = merged.find(from);
    if (from == rows - 1) {  // the newest row, as it came
      std::copy_n(last_key_.data() + kv_head * cols, cols, key.data.begin());
      std::copy_n(last_value_.data() + kv_head * cols, cols, value.data.begin());
    } else {
      head.key.read_row(from, key.data);
      if (changed == merged.end()) head.value.read_row(from, value.data);
    }
    if (changed != merged.end()) {
      value.data = std::move(changed->second);
      merged.erase(changed);
    }
    out.keys.push_back(std::move(key));
    out.values.push_back(std::move(value));
  }
  for (auto& [row, data] : merged) out.values.push_back({row, std::move(data)});
  return out;
}

// Sums grow by the step's weights, and rows over the bound leave: the last rows move into their places.
Status LayerCache::depart(Arena& arena, MatView<const float> weights) {
  const auto group = weights.rows / heads_.size();
  if (group == 0 || weights.cols < static_cast<std::size_t>(rows(0))) {
    return internal_error(fmt::format("{} ranks rows by the step's softmax weights and got none", spec_->canonical));
  }
  std::vector<KnownRows> known = known_rows();
  std::vector<std::vector<float>> means;
  const ObservedStep observed = observed_step(*spec_, std::max(0, first_prompt_), rows(0));
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    std::vector<float>& mean = means.emplace_back(known[h].positions.size(), 0.0F);
    for (std::size_t query = h * group; query < (h + 1) * group; ++query) {
      const float* const row = weights.row(query);
      for (std::size_t t = 0; t < mean.size(); ++t) mean[t] += row[t];
    }
    for (float& x : mean) x /= static_cast<float>(group);
    for (std::size_t t = 0; t < known[h].sums.size(); ++t) known[h].sums[t] += mean[t];
    for (std::size_t t = 0; t < known[h].window_sums.size() && observed.counts; ++t)
      known[h].window_sums[t] = (observed.begins ? 0.0F : known[h].window_sums[t]) + mean[t];
  }
  std::vector<Departure> departures = plan_departure(
      *spec_, {.place = place_, .first_prompt = std::max(0, first_prompt_), .seen = seen_, .known = known, .weights = means});
  std::vector<HeadDeparture> ready;
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    KV_ASSIGN(HeadDeparture prepared, prepare_departure(h, std::move(departures[h])));
    ready.push_back(std::move(prepared));
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    if (spec_->keeps_sums()) KV_TRY(head.sums.own(arena, 0, head.sums.rows()));
    if (spec_->keeps_window_sums()) KV_TRY(head.window_sums.own(arena, 0, head.window_sums.rows()));
    for (const auto& [from, to] : ready[h].moves) KV_TRY(head.positions.own(arena, to, to + 1));
    for (const Overwrite& change : ready[h].keys) KV_TRY(head.key.own_row(arena, change.row));
    for (const Overwrite& change : ready[h].values) KV_TRY(head.value.own_row(arena, change.row));
  }
  const auto cols = static_cast<std::size_t>(formats_->value.open.head_dim);
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    for (const Overwrite& change : ready[h].keys) KV_TRY(head.key.overwrite(change.row, {change.data.data(), 1, cols}));
    for (const Overwrite& change : ready[h].values) KV_TRY(head.value.overwrite(change.row, {change.data.data(), 1, cols}));
    for (const auto& [from, to] : ready[h].moves) {
      head.positions.set(to, head.positions.at(from));
      for (std::vector<float>* sums : {&known[h].sums, &known[h].window_sums}) {
        if (!sums->empty()) (*sums)[static_cast<std::size_t>(to)] = (*sums)[static_cast<std::size_t>(from)];
      }
    }
    if (spec_->keeps_sums()) {
      head.sums.set_all(known[h].sums);
      head.sums.drop_last(ready[h].count);
    }
    if (spec_->keeps_window_sums()) {
      head.window_sums.set_all(known[h].window_sums);
      head.window_sums.drop_last(ready[h].count);
    }
    head.positions.drop_last(ready[h].count);
    head.key.drop_last(ready[h].count);
    head.value.drop_last(ready[h].count);
  }
  refresh_views();
  return {};
}

// ---- rows that go elsewhere

void LayerCache::read_rows(int first, int count, std::vector<float>* keys, std::vector<float>* values) const {
  const auto dim = static_cast<std::size_t>(formats_->key.open.head_dim);
  keys->resize(static_cast<std::size_t>(count) * heads_.size() * dim);
  values->resize(keys->size());
  for (std::size_t t = 0; t < static_cast<std::size_t>(count); ++t) {
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      const std::size_t at = (t * heads_.size() + h) * dim;
      heads_[h].key.read_row(first + static_cast<int>(t), {keys->data() + at, dim});
      heads_[h].value.read_row(first + static_cast<int>(t), {values->data() + at, dim});
    }
  }
}

Status LayerCache::own_from(Arena& arena, int first) {
  KV_CHECK(!keeps_positions() && unsettled_ == 0);
  for (Head& head : heads_) {
    KV_TRY(head.key.own_from(arena, first));
    KV_TRY(head.value.own_from(arena, first));
  }
  refresh_views();
  return {};
}

void LayerCache::remove_rows(int first, int count) {
  for (Head& head : heads_) {
    head.key.remove(first, count);
    head.value.remove(first, count);
  }
  refresh_views();
}

}  // namespace kvartet
