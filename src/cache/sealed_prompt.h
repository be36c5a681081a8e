// What selection keeps near of a prompt and never changes after it: the landmark index of each KV head, which chunk a
// candidate is, low-rank keys, and how the rows in the slow tier were written (offloading.md 1.3, 1.4, 3.3). Forks share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/retention.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "offload/landmark_index.h"
#include "offload/presets.h"
#include "offload/row_codec.h"

namespace kvartet {

// Positions [begin, end).
inline void append_range(int begin, int end, std::vector<std::int32_t>* out) {
  for (int i = begin; i < end; ++i) out->push_back(i);
}

// One layer's rows of a prompt; `key_pre`, keys before RoPE, is read if keys lie unrotated, and `queries`, the last ones after
// RoPE, if the index is made from them.
struct PromptRows {
  HeadRows<const float> key;
  HeadRows<const float> key_pre;
  HeadRows<const float> value;
  HeadRows<const float> queries = {};
};

// One Hadamard group holds at most as many numbers (quantize/higgs.h), and a row is decoded on the stack.
inline constexpr int kMostJointWidth = 1024;

class SealedPrompt {
 public:
  struct Layer {
    const SelectOptions& options;
    const LayerShape& shape;
    Segments segments;  // not dense
  };
  // Indexes the prompt, and encodes its rows for the slow tier into `encoded`, one block per KV head of the row store. `kept`
  // says which rows attention sees always. kExhausted: the fast tier is full.
  static Result<SealedPrompt> build(Arena& fast, const Layer& layer, const PromptRows& prompt, int threads,
                                    std::vector<std::vector<std::byte>>* encoded, Arrival* kept);
  // Bytes of the index and what belongs to it, one layer.
  static ByteAccount predict(const Layer& layer, int prompt);
  // Of one row in the slow tier: its key, unless keys are low rank and near, then its value; a joint row has those of all KV
  // heads.
  static std::size_t row_bytes(const SelectOptions& options, const LayerShape& shape);

  // Rows for the slow tier as build() writes them: `keys` as they are to lie there.
  std::vector<std::vector<std::byte>> encode(HeadRows<const float> keys, HeadRows<const float> values, int threads) const;

  const Segments& segments() const { return segments_; }
  int tokens() const { return tokens_; }
  int candidates() const { return segments_.candidates - segments_.outlier_chunks; }  // chunks that compete, per KV head
  int selected_rows() const { return segments_.selected * chunk_; }                   // per selection and step
  bool indexes_query_heads() const { return !projected_.empty(); }                    // else KV heads
  const LandmarkIndex& index(int kv_head) const { return index_[static_cast<std::size_t>(kv_head)]; }
  const ProjectedIndex& projected(int head) const { return projected_[static_cast<std::size_t>(head)]; }
  // Of a candidate's chunk.
  int first_position(int kv_head, int candidate) const;
  std::vector<std::int32_t> candidate_positions(int kv_head) const;
  std::vector<std::int32_t> kept_positions(int kv_head) const;

  // As written, not yet rotated if keys lie unrotated; `row` is unused for low-rank keys. out: [head_dim].
  void decode_key(int kv_head, int position, const std::byte* row, float* out) const;
  void decode_value(int kv_head, const std::byte* row, float* out) const;
  // The same numbers where they lie as f16 in the row, [head_dim]; null where they are written otherwise.
  const std::byte* f16_key(int kv_head, const std::byte* row) const;
  const std::byte* f16_value(int kv_head, const std::byte* row) const;

  ByteAccount bytes() const;
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;

 private:
  SealedPrompt(const Layer& layer, int tokens);
  bool low_rank() const { return rank_ > 0; }
  Status choose_kept(Arena& fast, const PromptRows& prompt, Arrival* kept);
  Status factorize_keys(Arena& fast, const SelectOptions& options, const PromptRows& prompt);
  MatView<const float> competing_keys(MatView<const float> keys, int kv_head, std::vector<float>* storage) const;
  Status build_indexes(Arena& fast, const Layer& layer, const PromptRows& prompt, int threads);
  std::vector<std::byte> encode_rows(HeadRows<const float> keys, HeadRows<const float> values, int kv_head) const;
  bool joint() const { return groups_ == RowGroup::kJoint; }

  Segments segments_;
  int chunk_ = 1;
  int tokens_ = 0;
  int kv_heads_ = 0;
  int head_dim_ = 0;
  RowGroup groups_ = RowGroup::kHead;
  RowCodec key_codec_;
  RowCodec value_codec_;
  std::size_t key_bytes_ = 0;  // of a row in the slow tier
  std::size_t row_bytes_ = 0;
  std::vector<LandmarkIndex> index_;       // per KV head; or
  std::vector<ProjectedIndex> projected_;  // per query head
  std::vector<Buffer> chunk_ids_;          // per KV head: candidate -> chunk, int32; empty without outlier chunks
  Buffer left_;                            // low rank: [tokens, rank] bf16
  Buffer right_;                           // low rank: [rank, kv_heads * head_dim] bf16
  int rank_ = 0;                           // 0: keys lie in the slow tier
};

}  // namespace kvartet
