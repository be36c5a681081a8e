// One layer of a cache whose old rows lie in the slow tier: what is near to find them, and those that are near now.
//
// At the end of the prompt every row is written to the row store; the layer keeps an index per KV head, and the layer cache
// keeps the rows that attention always sees. Per step the queries choose candidates. Where the store lends rows as they were
// written, attention then reads those in place (offload/row_places.h); else missing rows are fetched, decoded, rotated where they
// lie unrotated, and staged as ordinary f16 tiles (offloading.md 1.3, 3.4, 4).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/retention.h"
#include "cache/sealed_prompt.h"
#include "cache/tile_run.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/rope_table.h"
#include "core/status.h"
#include "offload/presets.h"
#include "offload/row_places.h"
#include "offload/row_store.h"
#include "quantize/float_format.h"
#include "quantize/tile_format.h"

namespace kvartet {

// Scratch that layers share; grows to the largest use.
struct OffloadScratch {
  struct Worker {
    std::vector<float> queries, logits, scores, run_scores, lut, row;
    std::vector<std::int32_t> runs;
    std::vector<std::uint8_t> wanted;                          // per prompt position
    std::vector<F16Row> keys, values;                          // to be put into one tile
    std::vector<std::byte> f16_rows;                           // of these, what had to be decoded
    std::vector<const std::byte*> at;                          // where rows lie
    std::vector<std::pair<std::int32_t, std::int32_t>> order;  // positions and their slots
    SoftmaxPieces pieces;                                      // of `logits`
    TopSelector top;
  };
  std::vector<Worker> workers;
  std::vector<Worker> shared;  // of units that several workers score
};

// One layer's fetches between begin() and select(): rows may be on their way while the layer before computes.
struct OffloadFetches {
  static constexpr int kNone = -1;
  void reset(int of_layer, std::size_t count);

  int layer = kNone;                                // whose they are
  std::vector<std::vector<std::int32_t>> rows;      // per fetch
  std::vector<std::vector<std::byte>> bytes;        // per fetch: where the rows arrive, if the store does not lend them
  std::vector<std::vector<const std::byte*>> at;    // per fetch: where each row lies once the fetch is done
  std::vector<Status> status;                       // per fetch
  std::vector<std::optional<FetchTicket>> tickets;  // per fetch; behind `bytes`: waited for before those go
};

class OffloadLayer {
 public:
  // Formats that chosen rows are in when attention sees them: shown_format().
  OffloadLayer(std::shared_ptr<const SelectOptions> options, int layer, const LayerShape& shape, const TileFormat* shown_key,
               const TileFormat* shown_value);

  // kUsage: the options do not fit this layer.
  static Status check(const SelectOptions& options, const LayerShape& shape);
  // Attention reads chosen rows as they were written. Else they are staged as f16 tiles.
  static bool in_place(const SelectOptions& options);
  // It does so where they lie in the slow tier. Else they are fetched, and those chosen again stay near.
  static bool lends(const SelectOptions& options);
  static Result<TileFormat> shown_format(const SelectOptions& options, const LayerShape& shape, Side side);
  static LayerRowShape row_shape(const SelectOptions& options, const LayerShape& shape);
  static Segments segments(const SelectOptions& options, int layer, int prompt);
  // Fast-tier bytes beside the kept rows after a prompt and `generated` steps.
  static ByteAccount predict(const SelectOptions& options, int layer, const LayerShape& shape, int prompt, int generated);
  // Of the generated rows, those that have gone far.
  static int far_generated(const SelectOptions& options, int layer, int prompt, int generated);

  // At the end of the prompt. `kept` says which rows the layer cache has to keep: all of them if the prompt is too short to
  // select from. On failure nothing is kept here.
  // `store` may be null if segments() says that the prompt is too short.
  Status seal(Arena& fast, RowStore* store, const PromptRows& prompt, int threads, Arrival* kept);
  bool selects() const { return sealed_ != nullptr; }

  // The rows that are to go far now that a head keeps `kept` rows near: none, or a block of the oldest generated ones.
  struct Leaving {
    int first = 0;  // among the rows near
    int count = 0;
  };
  Leaving leaving(int kept) const;
  // These rows: keys after RoPE. From now on they compete with the prompt's. On failure nothing has changed here.
  Status take(Arena& fast, RowStore* store, const RopeShape& rope, HeadRows<const float> keys, HeadRows<const float> values,
              int threads);
  int far_tokens() const { return sealed_->tokens() + far_generated_; }  // those that have a row in the store

  // One decode step: queries [heads, head_dim] after RoPE. `kept` are the layer cache's views, the new row included.
  struct Step {
    MatView<const float> queries;
    std::shared_ptr<const RopeTable> rope = {};  // for keys that lie unrotated
    Arena* fast = nullptr;
    RowStore* store = nullptr;
    OffloadScratch* scratch = nullptr;
    OffloadFetches* fetches = nullptr;
    int threads = 1;
  };
  // Chooses rows and begins to fetch those that are not staged. An error shows in select(), which does this first if it was not
  // done.
  void begin(const Step& step);
  Status select(const Step& step, std::span<const HeadView> kept);
  void refresh_views(std::span<const HeadView> kept);
  // After attention: could it read all rows? kIo.
  Status attended(RowStore* store) const;

  // Per KV head, or per query head if every one has its own selection.
  std::span<const HeadView> views() const { return views_; }
  // Chosen positions that attention sees of a unit, ascending; for tests and diagnostics.
  std::vector<std::int32_t> shown_positions(int unit) const;
  // For diagnostics, while selects(): prompt positions of a head that are always kept, those that compete, and how many of
  // these a step takes.
  std::vector<std::int32_t> kept_positions(int kv_head) const { return sealed_->kept_positions(kv_head); }
  std::vector<std::int32_t> candidate_positions(int kv_head) const;
  int selected_rows() const { return sealed_->selected_rows(); }
  // Rows as attention would see them: keys rotated. Positions ascending; keys, values: [positions, head_dim].
  Status read_rows(const Step& step, int kv_head, std::span<const std::int32_t> positions, MatView<float> keys,
                   MatView<float> values) const;
  std::uint64_t rows_reused() const { return rows_reused_; }

  ByteAccount bytes() const;
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;

 private:
  // One selection: a KV head's or a query head's.
  struct Unit {
    TileRun keys;                                // or the places of rows
    TileRun values;                              // or rows as they were written, unless they are lent
    bool placed = false;                         // places are valid
    std::shared_ptr<const RopeTable> rope = {};  // theirs: a longer table may be made before attention has walked them
    std::vector<std::int32_t> slots;             // position shown in each; -1: nothing yet
    std::vector<std::int32_t> chosen;            // positions of this step, ascending
    std::vector<std::int32_t> missing;           // of these, not staged
    std::vector<std::int32_t> free;              // slots to put them in
    std::vector<TilePiece> key_pieces;
    std::vector<TilePiece> value_pieces;
  };

  // begin() and, where `staged` [units] is given, what select() does with each unit's rows: no fetch may take time, and none may
  // bring rows of several units.
  void choose_rows(const Step& step, std::span<Status> staged);
  int kv_heads() const { return shape_.kv_heads; }
  int fetches() const { return options_->groups == RowGroup::kJoint ? 1 : kv_heads(); }
  int units_per_fetch() const { return kv_heads() * units_per_head() / fetches(); }
  int units_per_head() const { return options_->share == Share::kGroup ? 1 : shape_.group(); }
  Result<std::vector<Unit>> empty_units(Arena& fast, int slots) const;
  // The queries that choose for a unit: how many, and which.
  std::size_t queries_asking() const;
  MatView<const float> asking(const Step& step, int unit, OffloadScratch::Worker& worker) const;
  struct Part {
    int index = 0;
    int count = 1;
  };
  void score(const Step& step, int unit, Part part, OffloadScratch::Worker& worker, OffloadScratch::Worker& into) const;
  void choose(int unit, OffloadScratch::Worker& worker, OffloadScratch::Worker& from);
  bool scores_at_once() const;  // no logits between
  void make_room(OffloadScratch::Worker* scores) const;
  int candidates() const { return sealed_->candidates() + far_generated_ / options_->index.chunk; }
  int first_position(int kv_head, int candidate) const;
  void compare(Unit& unit, OffloadScratch::Worker& worker);
  Status place_lent(const Step& step, int unit, OffloadScratch::Worker& worker);
  Status place_fetched(const Step& step, int unit, OffloadScratch::Worker& worker);
  void fill_places(const Step& step, Unit& unit, std::span<const std::byte* const> at, std::span<const std::byte> mapped) const;
  Status begin_fetch(const Step& step, int index, bool may_lend, std::optional<FetchTicket>* ticket);
  Status stage(const Step& step, int unit, OffloadScratch::Worker& worker);
  void read_key(const Step& step, int head, std::int32_t position, const std::byte* row, float* out) const;

  Result<const std::byte*> staged_key(const Step& step, int head, std::int32_t position, const std::byte* row,
                                      std::span<float> numbers, std::byte* room) const;
  Result<const std::byte*> staged_value(int head, const std::byte* row, std::span<float> numbers, std::byte* room) const;

  std::shared_ptr<const SelectOptions> options_;
  int layer_;
  LayerShape shape_;
  bool in_place_;
  bool lends_;
  const TileFormat* shown_key_;
  const TileFormat* shown_value_;
  std::shared_ptr<const SealedPrompt> sealed_;  // null: everything is kept near
  // Landmarks of generated rows that went far, per KV head; null: none did. Forks share them until one generates more.
  std::shared_ptr<const std::vector<LandmarkIndex>> generated_;
  int far_generated_ = 0;  // they lie behind the prompt's
  std::vector<Unit> units_;
  std::vector<HeadView> views_;
  std::uint64_t rows_reused_ = 0;
};

}  // namespace kvartet
