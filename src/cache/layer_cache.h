// One layer of one sequence's cache: all KV heads, changed together or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/head_side.h"
#include "cache/retention.h"
#include "cache/row_numbers.h"
#include "cache/sink_keys.h"
#include "cache/spec.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/rope_table.h"
#include "core/scores.h"
#include "core/status.h"
#include "quantize/tile_format.h"

namespace kvartet {

// What of a layer its formats depend on.
struct FormatPlace {
  int head_dim = 0;
  int window = 0;  // in tokens; 0: none
  bool operator==(const FormatPlace&) const = default;
};

// The formats of both sides of a layer; shared by layers of equal shape and by forks, since pieces point to them.
struct LayerFormats {
  SideFormats key;
  SideFormats value;
  // Rotation and sketch matrices of all formats, each once: equal ones are one (compression.md R7).
  std::vector<std::shared_ptr<Buffer>> tables;
  std::size_t table_bytes = 0;
  // `arena` holds the tables; null (for predictions): the formats' own. kUsage: the spec does not fit `place.head_dim`.
  static Result<std::shared_ptr<const LayerFormats>> create(const CacheSpec& spec, const FormatPlace& place,
                                                            Arena* arena = nullptr);
};

inline constexpr float kF16Overflow = 65520.0F;  // rounds to 65,536, which f16 does not have

class LayerCache {
 public:
  // `rope`: the model's rotation where the spec gives rows angles by their number; null where keys keep theirs.
  LayerCache(std::shared_ptr<const CacheSpec> spec, const LayerShape& shape, std::shared_ptr<const LayerFormats> formats,
             const LayerPlace& place, std::shared_ptr<const RopeShape> rope = nullptr);
  LayerCache(const LayerCache& other);  // a fork: shares tiles, has its own views
  LayerCache(LayerCache&&) noexcept = default;
  LayerCache& operator=(const LayerCache&) = delete;
  LayerCache& operator=(LayerCache&&) noexcept = default;
  ~LayerCache() = default;

  // New tokens; per KV head a matrix [tokens, head_dim].
  struct NewTokens {
    std::span<const MatView<const float>> keys;  // [kv_heads]
    std::span<const MatView<const float>> values;
    const LayerScores* scores = nullptr;
    const Arrival* arrival = nullptr;  // decided already by who offloads the rest; null: the spec decides
  };
  // A prompt: rows are chosen, appended and sealed at once. On failure the layer is as it was.
  Status seal(Arena& arena, const NewTokens& tokens, int threads);
  // One decoded token: shown to attention in the open format; settle() seals what is due after attention, and lets rows leave
  // by the step's weights, [heads, rows] (empty unless the spec drops rows after steps).
  Status append(Arena& arena, const NewTokens& token);
  Status settle(Arena& arena, MatView<const float> weights);

  // Rows that go elsewhere, in layers whose rows have no numbers of their own: [first, first + count) as they are written,
  // per token the heads side by side; then they leave, and those behind them move up. Only own_from() can fail.
  void read_rows(int first, int count, std::vector<float>* keys, std::vector<float>* values) const;
  Status own_from(Arena& arena, int first);
  void remove_rows(int first, int count);

  std::span<const HeadView> views() const { return views_; }
  int rows(int kv_head) const {
    const HeadSide& key = heads_[static_cast<std::size_t>(kv_head)].key;
    return key.rows() - key.first();
  }
  int kv_heads() const { return static_cast<int>(heads_.size()); }
  int seen() const { return seen_; }
  std::vector<std::int32_t> positions(int kv_head) const;
  bool acted() const;  // has anything been dropped, or written in fewer bits than f16?

  ByteAccount bytes() const;
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;
  Status check_integrity() const;

 private:
  struct Head {
    HeadSide key;
    HeadSide value;
    RowPositions positions;  // only if the spec evicts
    RowSums sums;            // only if it ranks rows by them
    RowSums window_sums;     // only if it ranks rows by those of the last steps
    SinkKeys sinks;          // only if it gives rows angles by their number
  };
  // What a change writes over one open row of a side.
  struct Overwrite {
    int row = 0;
    std::vector<float> data;
  };
  struct HeadDeparture;

  bool keeps_positions() const { return spec_->evict != Evict::kNone; }
  int count_of(const NewTokens& tokens) const { return static_cast<int>(tokens.keys.front().rows); }
  Status check_rows(const NewTokens& tokens, int threads) const;
  Status arrive(Arena& arena, const NewTokens& tokens, int threads, bool seals_now);
  Status stage_all(Arena& arena, const NewTokens& tokens, const Arrival& arrival, int threads, bool seals_now);
  std::vector<KnownRows> known_rows() const;
  // Values that merges change, by column (an old row, or behind them a new token), as they will be.
  Result<std::map<int, std::vector<float>>> merged_values(std::size_t kv_head, std::span<const Merge> merges,
                                                          const NewTokens& tokens) const;
  Status own_numbers_and_replaced(Arena& arena, const NewTokens& tokens, const Arrival& arrival);
  Status replace_rows(const NewTokens& tokens, const Arrival& arrival);
  Status depart(Arena& arena, MatView<const float> weights);
  Result<HeadDeparture> prepare_departure(std::size_t kv_head, Departure departure) const;
  void commit_all(const NewTokens& tokens, const Arrival& arrival);
  // layer_sinks.cc. How many of the first tokens are kept for ever and may be turned.
  int sinks_of(int seen) const;
  // Their keys at the angles they have once `tokens` are there, per KV head [sinks, head_dim]; empty: nothing was dropped yet.
  Result<std::vector<std::vector<float>>> turned_sinks(const NewTokens& tokens) const;
  Status own_sinks(Arena& arena, const NewTokens& tokens, const std::vector<std::vector<float>>& turned);
  Status place_sinks(const NewTokens& tokens, const std::vector<std::vector<float>>& turned);
  void rollback_all();
  void refresh_views();
  Status check_row_count(int rows) const;
  Status check_head(const Head& head) const;

  std::shared_ptr<const CacheSpec> spec_;
  std::shared_ptr<const LayerFormats> formats_;
  LayerPlace place_;
  std::shared_ptr<const RopeShape> rope_;
  std::vector<Head> heads_;
  std::vector<HeadView> views_;
  int seen_ = 0;           // tokens that passed, kept or not
  int first_prompt_ = -1;  // tokens of the first prompt; -1: none yet
  int unsettled_ = 0;      // rows appended since the last settle()
  // Of the running change, per KV head: values that merges changed.
  std::vector<std::map<int, std::vector<float>>> merged_;
  // The row appended last, exactly as it came ([kv_heads, head_dim] each): if it moves into the place of a row that leaves, it is
  // encoded from here and not from its codes. Only between append() and settle().
  std::vector<float> last_key_;
  std::vector<float> last_value_;
};

}  // namespace kvartet
