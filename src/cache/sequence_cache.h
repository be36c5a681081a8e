// One sequence's cache: for every layer and KV head the rows that stay, in their formats, with their true positions.
//
// Life of a row: open (exact, recent) -> filling (a tile being completed) -> sealed (immutable, shared between forks) ->
// dropped. Row index and position are never confused: a row's position travels with it, the next position is counted.
//
// Two hooks carry every method: `seal_prompt` (end of prefill of one layer) and the pair `append_row` / `after_attention`
// (one decode step of one layer).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/spec.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/file_system.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/scores.h"
#include "core/status.h"
#include "offload/row_store.h"
#include "quantize/tile_format.h"

namespace kvartet {

// Exact rows of one layer at the end of its prefill: [tokens, kv_heads, head_dim] each. Only valid during the call.
struct LayerRows {
  HeadRows<const float> key;      // after RoPE
  HeadRows<const float> key_pre;  // before RoPE; data == nullptr unless wants_pre_rope_keys()
  HeadRows<const float> value;
  // What score_need() declared; null if that was nothing, and in layers with a sliding window, where nothing is chosen.
  const LayerScores* scores = nullptr;
  // [at least the last score_need().queries of the prompt, heads, head_dim], after RoPE; data == nullptr if that is 0.
  HeadRows<const float> queries = {};
};

struct CacheOptions {
  int threads = 1;                        // for sealing prompts and selecting rows; the bits do not depend on it
  std::shared_ptr<Arena> slow = nullptr;  // rows of the slow tier in memory; null: an arena of the cache's own
  std::string tier_directory = {};        // for the files of tier=mmap and tier=disk; "": the system's temporary folder
  FileSystem* files = nullptr;            // where that folder is; null: the real one
};

// What one view of a layer that selects sees, as positions, ascending: for diagnostics.
struct RowSelection {
  std::vector<std::int32_t> kept;        // always near
  std::vector<std::int32_t> selected;    // staged for the last queries
  std::vector<std::int32_t> candidates;  // what `selected` was chosen from
  // Candidates lie in the slow tier: prompt rows, and generated ones where these go far; the others are seen beside them. Else
  // all rows compete.
  bool far = false;
};

// A failed seal_prompt, append_row or after_attention leaves its layer as it was, but the layers before it may have gone
// ahead: the cache is then broken, and every later call of these returns that it is. Other caches are not touched.
class SequenceCache {
 public:
  // kUsage: the spec does not fit the model.
  static Result<SequenceCache> create(const CacheSpec& spec, const ModelShape& shape, std::shared_ptr<Arena> arena,
                                      const CacheOptions& options = {});
  SequenceCache(SequenceCache&&) noexcept;
  SequenceCache& operator=(SequenceCache&&) noexcept;
  ~SequenceCache();

  // A second cache with the same rows. Tiles are shared until one side writes (copy on write).
  SequenceCache fork() const;

  const CacheSpec& spec() const;
  ScoreNeed score_need() const;  // of the next prompt: most methods score only the first
  bool wants_pre_rope_keys() const;
  bool wants_guessed_queries() const;  // must before_attention be told what the queries were guessed to be?
  bool wants_weights() const;          // must decode attention export softmax weights for after_attention?

  // --- prefill: layers in any order, each once per prompt; then finish_prompt counts the tokens.
  // kBadInput: a NaN, an Inf, or a number that the format cannot hold; kExhausted: no memory.
  Status seal_prompt(int layer, const LayerRows& rows);
  void finish_prompt(int tokens);

  // --- decode: per layer append_row, before_attention, attention over views(layer), after_attention; then finish_step.
  // key, value: [kv_heads, head_dim].
  Status append_row(int layer, MatView<const float> key, MatView<const float> value);
  // Before the layer in front of `layer` runs: caches that choose by a guess may begin to fetch, so that rows are on their way
  // while that layer computes. What goes wrong shows in before_attention, which does everything itself if nothing was begun.
  void expect_queries(int layer, MatView<const float> guessed);
  // Caches that select rows choose, fetch and stage them here; for the others it does nothing. queries: [heads, head_dim];
  // guessed: the same as guessed from the layer before, read only if wants_guessed_queries(), and not in the first layer.
  Status before_attention(int layer, MatView<const float> queries, MatView<const float> guessed = {});
  Status after_attention(int layer, MatView<const float> weights);  // [heads, rows]; empty unless wants_weights()
  void finish_step();

  // May more tokens pass than the model was trained for? Only where angles go by row and so never grow.
  bool is_endless() const;
  // Does every query see other rows? Then more tokens have to come by single steps, not as a second prompt.
  bool selects() const;

  // What attention walks: one view per KV head, or one per query head where each has its own rows; valid until the next call that
  // changes this layer.
  std::span<const HeadView> views(int layer) const;

  int next_position() const;  // tokens seen so far: the next token's RoPE position, never the row count
  int rows(int layer, int kv_head) const;
  std::vector<std::int32_t> positions(int layer, int kv_head) const;  // true position of each row, in row order
  double mean_rows() const;                                           // over layers and heads
  bool acted() const;  // has anything been dropped or written in fewer bits than f16?

  // Empty where the layer shows all rows to every query.
  RowSelection selection(int layer, int view) const;
  // Far rows of selectable positions (ascending) as attention would get them; keys, values: [positions, head_dim].
  Status read_far_rows(int layer, int kv_head, std::span<const std::int32_t> positions, MatView<float> keys,
                       MatView<float> values);

  RowTraffic traffic() const;       // between the tiers; all zero without a slow tier
  std::string slow_medium() const;  // how its slow tier is reached: "io_uring, past the page cache"; "": nothing lies there
  ByteAccount bytes() const;
  std::vector<StateBuffer> state() const;  // every buffer, named; their sums equal bytes()
  Status check_integrity() const;          // pieces cover all rows, counts agree, bounds hold; for tests

 private:
  struct Impl;
  explicit SequenceCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Exactly the bytes a cache will hold (adakv: up to how its heads share the layer's rows, which scores decide; a row cache counts
// as empty after the prompt and as full after the first step; tier=disk: with the buffers of io_uring) after a prompt of
// `prompt_tokens` and `generated` decode steps: no allocation. kUsage: the spec does not fit the model, or a count is negative or
// absurd.
Result<ByteAccount> predict_bytes(const CacheSpec& spec, const ModelShape& shape, int prompt_tokens, int generated);
// The same at several moments of one answer: most of the work is to make the formats, which are made once.
Result<std::vector<ByteAccount>> predict_bytes(const CacheSpec& spec, const ModelShape& shape, int prompt_tokens,
                                               std::span<const int> generated);

}  // namespace kvartet
