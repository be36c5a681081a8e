// The small copy of one *query* head's keys: every key as a few numbers, and a map that turns a query into as many, so that their
// product stands for the logit (offloading.md 6).
//
//   partial  chosen channels of keys and queries, both turned into the directions in which this head's queries vary (InfiniGen)
//   factors  K ~ A_K B_K, fitted together with Q ~ A_Q B_Q so that A_Q A_K^T is close to Q K^T (LRQK)
//
// Both are made from the prompt's keys and its last queries. Numbers are bf16, one column after the other, so that a query is
// scored against all keys without a sum across lanes; the map is f32.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/bytes.h"
#include "core/matrix.h"
#include "core/status.h"
#include "offload/landmark_index.h"

namespace kvartet {

constexpr bool is_projected(IndexKind kind) { return kind == IndexKind::kPartial || kind == IndexKind::kFactors; }

// What an index is made of, before it is rounded.
struct KeyProjection {
  std::vector<float> keys;   // [landmarks, width]
  std::vector<float> query;  // [width, dim]: feature i of a query q is <row i, q>
};

class ProjectedIndex {
 public:
  // kUsage: more factors than channels.
  static Status check(const IndexOptions& options, int dim);
  static int width(const IndexOptions& options, int dim);
  static ByteAccount bytes_of(const IndexOptions& options, int dim, int landmarks);

  // keys: post-RoPE [landmarks * chunk, dim], in candidate order; queries: this head's last ones, post-RoPE [any > 0, dim].
  // kExhausted: no memory.
  static Result<ProjectedIndex> build(Arena& arena, const IndexOptions& options, MatView<const float> keys,
                                      MatView<const float> queries);

  int landmarks() const { return landmarks_; }
  ByteAccount bytes() const { return {rows_.size(), rows_.size()}; }
  const Buffer& buffer() const { return rows_; }

  // logits[j] = scale * <features of the query, features of landmark j>; query: [dim].
  void score(const float* query, float scale, std::span<float> logits) const;
  // The obvious way: a landmark's features as they were stored, and the query's. out: [width].
  void decode(int landmark, float* out) const;
  void turn_query(const float* query, float* out) const;

 private:
  ProjectedIndex(int dim, int width, int landmarks) : dim_(dim), width_(width), landmarks_(landmarks) {}
  std::size_t map_bytes() const;

  int dim_;
  int width_;
  int landmarks_;
  Buffer rows_;  // the map, then the columns
};

}  // namespace kvartet
