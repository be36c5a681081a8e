#include "cache/layer_cache.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"
#include "core/parallel_for.h"
#include "quantize/row_check.h"

namespace kvartet {
namespace {

constexpr int kFewRows = 32;  // not worth waking threads for

Result<SideFormats> side_formats(const FormatRequest& request, Side side, int head_dim, int residual, int window) {
  SideFormats formats;
  formats.window = window;
  if (residual == 0 || (request.name != "kivi" && request.name != "turboquant" && request.name != "qjl")) {
    KV_ASSIGN(formats.open, make_tile_format(request, side, head_dim));
    return formats;
  }
  KV_ASSIGN(formats.open, make_tile_format({"f16", 0, 0}, side, head_dim));
  if (window > 0 && window <= residual) return formats;  // everything in the window is among the newest rows
  KV_ASSIGN(formats.sealed, make_tile_format(request, side, head_dim));
  formats.residual = residual;
  return formats;
}

// Runs task(head, side) for every side of every head and returns the first failure in that order, told where it was.
template <typename Task>
Status for_each_side(int kv_heads, int threads, const Task& task) {
  std::vector<Status> results(static_cast<std::size_t>(kv_heads) * 2);
  parallel_for(threads, kv_heads * 2, [&](int index, int) {
    results[static_cast<std::size_t>(index)] = task(index / 2, index % 2 == 0 ? Side::kKey : Side::kValue);
  });
  for (int index = 0; index < kv_heads * 2; ++index) {
    Status& status = results[static_cast<std::size_t>(index)];
    if (!status.ok())
      return std::move(status).within(fmt::format("KV head {}, {}", index / 2, index % 2 == 0 ? "keys" : "values"));
  }
  return {};
}

// The picked rows with those that merges changed: columns behind `old_rows` rows.
NewRows with_merged(const NewRows& fresh, int old_rows, const std::map<int, std::vector<float>>& merged,
                    std::vector<float>* storage) {
  const std::size_t cols = fresh.rows.cols;
  storage->reserve(static_cast<std::size_t>(fresh.count()) * cols);
  for (int i = 0; i < fresh.count(); ++i) {
    const auto changed = merged.find(old_rows + (fresh.picked ? fresh.pick[static_cast<std::size_t>(i)] : i));
    const float* const row = changed == merged.end() ? fresh.row(i) : changed->second.data();
    storage->insert(storage->end(), row, row + cols);
  }
  return {.rows = {storage->data(), static_cast<std::size_t>(fresh.count()), cols}, .picked = false, .pick = {}};
}

}  // namespace

Result<std::shared_ptr<const LayerFormats>> LayerFormats::create(const CacheSpec& spec, const FormatPlace& place, Arena* arena) {
  auto formats = std::make_shared<LayerFormats>();
  KV_ASSIGN(formats->key, side_formats(spec.key, Side::kKey, place.head_dim, spec.residual, place.window));
  KV_ASSIGN(formats->value, side_formats(spec.value, Side::kValue, place.head_dim, spec.residual, place.window));
  formats->key.centers = spec.center_keys;
  std::vector<TileFormat*> seen;
  for (TileFormat* format : {&formats->key.open, &formats->key.sealed, &formats->value.open, &formats->value.sealed}) {
    if (format->table_bytes == 0) continue;
    const auto equal = std::find_if(seen.begin(), seen.end(), [&](const TileFormat* other) {
      return other->table_bytes == format->table_bytes &&
             std::memcmp(other->tables.get(), format->tables.get(), format->table_bytes) == 0;
    });
    if (equal != seen.end()) {
      format->tables = (*equal)->tables;
      continue;
    }
    seen.push_back(format);
    formats->table_bytes += format->table_bytes;
    if (arena == nullptr) continue;
    KV_ASSIGN(Buffer buffer, arena->allocate(format->table_bytes));
    std::memcpy(buffer.data(), format->tables.get(), format->table_bytes);
    formats->tables.push_back(std::make_shared<Buffer>(std::move(buffer)));
    format->tables = std::shared_ptr<const std::byte>(formats->tables.back(), formats->tables.back()->data());
  }
  return std::shared_ptr<const LayerFormats>(std::move(formats));
}

LayerCache::LayerCache(std::shared_ptr<const CacheSpec> spec, const LayerShape& shape,
                       std::shared_ptr<const LayerFormats> formats, const LayerPlace& place,
                       std::shared_ptr<const RopeShape> rope)
    : spec_(std::move(spec)), formats_(std::move(formats)), place_(place), rope_(std::move(rope)) {
  for (int h = 0; h < shape.kv_heads; ++h)
    heads_.push_back(
        {HeadSide(&formats_->key), HeadSide(&formats_->value), RowPositions(), RowSums(), RowSums(), SinkKeys(shape.head_dim)});
  refresh_views();
}

LayerCache::LayerCache(const LayerCache& other)
    : spec_(other.spec_),
      formats_(other.formats_),
      place_(other.place_),
      rope_(other.rope_),
      heads_(other.heads_),
      seen_(other.seen_),
      first_prompt_(other.first_prompt_),
      unsettled_(other.unsettled_),
      last_key_(other.last_key_),
      last_value_(other.last_value_) {
  refresh_views();
}

Status LayerCache::seal(Arena& arena, const NewTokens& tokens, int threads) {
  const int count = count_of(tokens);
  if (count == 0) return {};
  const int before = first_prompt_;
  if (first_prompt_ < 0) first_prompt_ = count;
  Status status = arrive(arena, tokens, count < kFewRows ? 1 : threads, /*seals_now=*/true);
  if (!status.ok()) first_prompt_ = before;
  return status;
}

Status LayerCache::append(Arena& arena, const NewTokens& token) {
  const int before = first_prompt_;
  if (first_prompt_ < 0) first_prompt_ = 0;
  KV_CHECK(!spec_->drops_after_steps() || unsettled_ == 0);
  Status status = arrive(arena, token, 1, /*seals_now=*/false);
  if (!status.ok()) {
    first_prompt_ = before;
    return status;
  }
  if (!spec_->drops_after_steps()) return {};
  last_key_.clear();
  last_value_.clear();
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    last_key_.insert(last_key_.end(), token.keys[h].row(0), token.keys[h].row(0) + token.keys[h].cols);
    last_value_.insert(last_value_.end(), token.values[h].row(0), token.values[h].row(0) + token.values[h].cols);
  }
  return {};
}

Status LayerCache::arrive(Arena& arena, const NewTokens& tokens, int threads, bool seals_now) {
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    KV_CHECK(tokens.keys[h].cols == static_cast<std::size_t>(formats_->key.open.head_dim) &&
             tokens.keys[h].rows == tokens.keys[0].rows);
    KV_CHECK(tokens.values[h].cols == tokens.keys[h].cols && tokens.values[h].rows == tokens.keys[h].rows);
  }
  KV_TRY(check_rows(tokens, threads));
  const std::vector<KnownRows> known = seals_now && spec_->drops_after_steps() ? known_rows() : std::vector<KnownRows>();
  const ArrivalRequest request{.place = place_,
                               .kv_heads = kv_heads(),
                               .first_prompt = first_prompt_,
                               .seen = seen_,
                               .tokens = count_of(tokens),
                               .prompt = seals_now,
                               .scores = tokens.scores,
                               .known = known};
  KV_ASSIGN(const Arrival arrival, tokens.arrival != nullptr ? Result<Arrival>(*tokens.arrival) : plan_arrival(*spec_, request));
  merged_.assign(heads_.size(), {});
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    KV_ASSIGN(merged_[h], merged_values(h, arrival.merged(h), tokens));
  }
  std::vector<std::vector<float>> turned;
  if (rope_ != nullptr) {
    KV_ASSIGN(turned, turned_sinks(tokens));
  }
  Status status = stage_all(arena, tokens, arrival, threads, seals_now);
  if (status.ok()) status = own_numbers_and_replaced(arena, tokens, arrival);
  if (status.ok() && rope_ != nullptr) status = own_sinks(arena, tokens, turned);
  if (status.ok()) status = replace_rows(tokens, arrival);
  if (!status.ok()) {
    rollback_all();
    return status;
  }
  commit_all(tokens, arrival);
  unsettled_ = seals_now ? 0 : unsettled_ + 1;
  return rope_ == nullptr ? Status() : place_sinks(tokens, turned);
}

// Before anything is touched, so that a bad row changes nothing; and of dropped rows too, since their attention weights
// have spoilt the scores (R8).
Status LayerCache::check_rows(const NewTokens& tokens, int threads) const {
  return for_each_side(kv_heads(), threads, [&](int h, Side side) {
    const auto head = static_cast<std::size_t>(h);
    const TileFormat& open = (side == Side::kKey ? formats_->key : formats_->value).open;
    return check_finite((side == Side::kKey ? tokens.keys : tokens.values)[head], open.name.c_str(),
                        open.bits == 16 ? kF16Overflow : 0.0F);
  });
}

Status LayerCache::stage_all(Arena& arena, const NewTokens& tokens, const Arrival& arrival, int threads, bool seals_now) {
  return for_each_side(kv_heads(), threads, [&](int h, Side side) {
    const auto index = static_cast<std::size_t>(h);
    NewRows fresh;
    fresh.rows = (side == Side::kKey ? tokens.keys : tokens.values)[index];
    fresh.picked = !arrival.all;
    if (fresh.picked) fresh.pick = arrival.pick[index];
    std::vector<float> merged;
    if (side == Side::kValue && !merged_[index].empty())
      fresh = with_merged(fresh, heads_[index].value.rows(), merged_[index], &merged);
    HeadSide& head_side = side == Side::kKey ? heads_[index].key : heads_[index].value;
    const int sealed = seals_now ? head_side.formats().sealed_rows(head_side.rows() + fresh.count()) : head_side.sealed();
    std::vector<float> scratch;
    return head_side.stage(arena, fresh, sealed, &scratch);
  });
}

Status LayerCache::own_numbers_and_replaced(Arena& arena, const NewTokens& tokens, const Arrival& arrival) {
  if (!keeps_positions()) return {};
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    const int appended = arrival.all ? count_of(tokens) : static_cast<int>(arrival.pick[h].size());
    const int rows = head.positions.rows();
    KV_TRY(head.positions.own(arena, rows, rows + appended));
    if (spec_->keeps_sums()) KV_TRY(head.sums.own(arena, arrival.sums.empty() ? rows : 0, rows + appended));
    if (spec_->keeps_window_sums()) KV_TRY(head.window_sums.own(arena, arrival.sums.empty() ? rows : 0, rows + appended));
    for (const Arrival::Replacement& replaced : arrival.replaced(h)) {
      KV_TRY(head.key.own_row(arena, replaced.row));
      KV_TRY(head.value.own_row(arena, replaced.row));
      KV_TRY(head.positions.own(arena, replaced.row, replaced.row + 1));
    }
    for (const auto& [column, row] : merged_[h]) {
      if (column < rows) KV_TRY(head.value.own_row(arena, column));
    }
  }
  return {};
}

Status LayerCache::replace_rows(const NewTokens& tokens, const Arrival& arrival) {
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    const std::size_t cols = tokens.values[h].cols;
    for (const auto& [column, row] : merged_[h]) {
      if (column < head.positions.rows()) KV_TRY(head.value.overwrite(column, {row.data(), 1, cols}));
    }
    for (const Arrival::Replacement& replaced : arrival.replaced(h)) {
      const auto token = static_cast<std::size_t>(replaced.token);
      const auto merged = merged_[h].find(head.positions.rows() + replaced.token);
      KV_TRY(head.key.overwrite(replaced.row, tokens.keys[h].row_range(token, token + 1)));
      KV_TRY(head.value.overwrite(replaced.row, merged == merged_[h].end()
                                                    ? tokens.values[h].row_range(token, token + 1)
                                                    : MatView<const float>(merged->second.data(), 1, cols)));
    }
  }
  return {};
}

void LayerCache::commit_all(const NewTokens& tokens, const Arrival& arrival) {
  for (int h = 0; h < kv_heads(); ++h) {
    const auto index = static_cast<std::size_t>(h);
    Head& head = heads_[index];
    const int old_rows = head.key.rows();
    head.key.commit();
    head.value.commit();
    if (!keeps_positions()) continue;
    for (const Arrival::Replacement& replaced : arrival.replaced(index)) head.positions.set(replaced.row, seen_ + replaced.token);
    for (int row = old_rows; row < head.key.rows(); ++row) head.positions.set(row, seen_ + arrival.token(h, row - old_rows));
    // A prompt ends whatever window was running.
    for (int row = arrival.sums.empty() ? old_rows : 0; spec_->keeps_window_sums() && row < head.key.rows(); ++row)
      head.window_sums.set(row, 0);
    if (!spec_->keeps_sums()) continue;
    const auto sum_of = [&](int column) {
      return arrival.sums.empty() ? 0.0F : arrival.sums[index][static_cast<std::size_t>(column)];
    };
    for (int row = 0; row < old_rows && !arrival.sums.empty(); ++row) head.sums.set(row, sum_of(row));
    for (const Arrival::Replacement& replaced : arrival.replaced(index))
      head.sums.set(replaced.row, sum_of(old_rows + replaced.token));
    for (int row = old_rows; row < head.key.rows(); ++row)
      head.sums.set(row, sum_of(old_rows + arrival.token(h, row - old_rows)));
  }
  merged_.clear();
  seen_ += count_of(tokens);
  refresh_views();
}

void LayerCache::rollback_all() {
  for (Head& head : heads_) {
    head.key.rollback();
    head.value.rollback();
    head.positions.trim();
    head.sums.trim();
    head.window_sums.trim();
    head.sinks.trim();
  }
  merged_.clear();
  refresh_views();
}

Status LayerCache::settle(Arena& arena, MatView<const float> weights) {
  if (spec_->drops_after_steps() && unsettled_ > 0) {
    Status status = depart(arena, weights);
    if (!status.ok()) {
      rollback_all();
      return status;
    }
  }
  bool due = false;
  for (const Head& head : heads_) {
    for (const HeadSide* side : {&head.key, &head.value}) due = due || side->formats().sealed_rows(side->rows()) > side->sealed();
  }
  if (due) {
    std::vector<float> scratch;
    const Status status = for_each_side(kv_heads(), 1, [&](int h, Side which) {
      Head& head = heads_[static_cast<std::size_t>(h)];
      HeadSide& side = which == Side::kKey ? head.key : head.value;
      return side.stage(arena, NewRows{}, side.formats().sealed_rows(side.rows()), &scratch);
    });
    if (!status.ok()) {
      rollback_all();
      return status;
    }
    for (Head& head : heads_) {
      head.key.commit();
      head.value.commit();
    }
    refresh_views();
  }
  unsettled_ = 0;
  return {};
}

void LayerCache::refresh_views() {
  views_.resize(heads_.size());
  for (std::size_t h = 0; h < heads_.size(); ++h)
    views_[h] = {heads_[h].key.pieces(), heads_[h].value.pieces(), heads_[h].key.rows(), heads_[h].key.first(),
                 heads_[h].key.mean()};
}

std::vector<std::int32_t> LayerCache::positions(int kv_head) const {
  if (keeps_positions()) return heads_[static_cast<std::size_t>(kv_head)].positions.all();
  std::vector<std::int32_t> contiguous(static_cast<std::size_t>(rows(kv_head)));
  std::iota(contiguous.begin(), contiguous.end(), heads_[static_cast<std::size_t>(kv_head)].key.first());
  return contiguous;
}

bool LayerCache::acted() const {
  return std::any_of(heads_.begin(), heads_.end(), [&](const Head& head) {
    if (head.key.rows() < seen_) return true;
    const auto fewer_bits = [](const HeadSide& side) {
      return side.sealed() > 0 || (side.rows() > 0 && side.formats().open.bits < 16);
    };
    return fewer_bits(head.key) || fewer_bits(head.value);
  });
}

ByteAccount LayerCache::bytes() const {
  ByteAccount sum;
  for (const Head& head : heads_) {
    sum += head.key.bytes();
    sum += head.value.bytes();
    sum += head.positions.bytes();
    sum += head.sums.bytes();
    sum += head.window_sums.bytes();
    sum += head.sinks.bytes();
  }
  return sum;
}

void LayerCache::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const std::string head = fmt::format("{} head {}", prefix, h);
    heads_[h].key.list_state(head + " key", out);
    heads_[h].value.list_state(head + " value", out);
    heads_[h].positions.list_state(head + " positions", out);
    heads_[h].sums.list_state(head + " sums", out);
    heads_[h].window_sums.list_state(head + " window sums", out);
    heads_[h].sinks.list_state(head + " sinks", out);
  }
}

Status LayerCache::check_integrity() const {
  if (spec_->evict == Evict::kAda && first_prompt_ >= 0) {  // only the layer's total is fixed (6.5)
    int rows = 0;
    for (const Head& head : heads_) rows += head.key.rows();
    const int expected = kv_heads() * rows_after(*spec_, place_, first_prompt_, seen_ - first_prompt_);
    if (rows != expected) return internal_error(fmt::format("{} rows are kept over all heads, the spec says {}", rows, expected));
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const std::string place = fmt::format("KV head {}", h);
    KV_TRY(check_head(heads_[h]).within(place));
    const HeadView& view = views_[h];
    if (view.keys.data() != heads_[h].key.pieces().data() || view.values.data() != heads_[h].value.pieces().data() ||
        view.keys.size() != heads_[h].key.pieces().size() || view.values.size() != heads_[h].value.pieces().size() ||
        view.rows != heads_[h].key.rows() || view.begin != heads_[h].key.first()) {
      return internal_error("the view does not show the head's pieces").within(place);
    }
  }
  return {};
}

// The bound of the spec (R4), exactly where the count follows from the tokens.
Status LayerCache::check_row_count(int rows) const {
  if (first_prompt_ < 0 || spec_->evict == Evict::kAda) return {};
  if (spec_->drops_after_steps()) {
    const int bound = row_bound(*spec_, first_prompt_) + (spec_->evict == Evict::kCam ? spec_->interval - 1 : 0) + unsettled_;
    const int least = std::min(seen_, row_bound(*spec_, first_prompt_));
    if (rows >= least && rows <= bound) return {};
    return internal_error(fmt::format("{} rows are kept after {} tokens, the bounds are {} and {}", rows, seen_, least, bound));
  }
  const int expected = rows_after(*spec_, place_, first_prompt_, seen_ - first_prompt_);
  if (rows == expected) return {};
  return internal_error(fmt::format("{} rows are kept after {} tokens, the spec says {}", rows, seen_, expected));
}

Status LayerCache::check_head(const Head& head) const {
  KV_TRY(head.key.check_integrity().within("keys"));
  KV_TRY(head.value.check_integrity().within("values"));
  const int rows = head.key.rows();
  if (head.value.rows() != rows) return internal_error(fmt::format("{} key rows and {} value rows", rows, head.value.rows()));
  for (const HeadSide* side : {&head.key, &head.value}) {
    const int due = side->formats().sealed_rows(rows - unsettled_);
    if (side->sealed() != due)
      return internal_error(fmt::format("{} of {} rows are sealed, {} are due", side->sealed(), rows, due));
  }
  if (!keeps_positions()) {
    return rows == seen_ || spec_->offload ? Status() : internal_error(fmt::format("{} rows after {} tokens", rows, seen_));
  }
  if (head.positions.rows() != rows) return internal_error(fmt::format("{} positions for {} rows", head.positions.rows(), rows));
  if (head.positions.bytes().allocated != RowPositions::bytes_of(rows).allocated)
    return internal_error("positions hold tiles without rows");
  if (head.sums.rows() != (spec_->keeps_sums() ? rows : 0) ||
      head.sums.bytes().allocated != RowSums::bytes_of(head.sums.rows()).allocated)
    return internal_error(fmt::format("{} sums for {} rows", head.sums.rows(), rows));
  if (head.window_sums.rows() != (spec_->keeps_window_sums() ? rows : 0) ||
      head.window_sums.bytes().allocated != RowSums::bytes_of(head.window_sums.rows()).allocated)
    return internal_error(fmt::format("{} window sums for {} rows", head.window_sums.rows(), rows));
  if (head.sinks.rows() != sinks_of(seen_) ||
      head.sinks.bytes() != SinkKeys::bytes_of(head.sinks.rows(), formats_->key.open.head_dim))
    return internal_error(fmt::format("{} first keys are kept after {} tokens", head.sinks.rows(), seen_));
  KV_TRY(check_row_count(rows));
  std::vector<std::int32_t> sorted = head.positions.all();
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return internal_error("two rows have the same position");
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= seen_)) {
    return internal_error(fmt::format("positions {}..{} after {} tokens", sorted.front(), sorted.back(), seen_));
  }
  return {};
}

}  // namespace kvartet
