// From logits of candidates to the set that one KV head attends to (offloading.md 1.8, 1.9).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/matrix.h"

namespace kvartet {

// How the query heads of a group agree on one score per candidate.
enum class Aggregate : std::uint8_t { kMaxSoftmax, kMeanQuery, kMaxLogit, kSumSoftmax };

// logits: [queries, candidates], already divided by sqrt(head_dim). Softmax runs over the candidates alone. kMaxSoftmax's
// scores are logarithms: the order is the same and small probabilities do not underflow into ties. kMeanQuery takes the
// mean of the logits, which is the logit of the mean query.
void aggregate_scores(Aggregate aggregate, MatView<const float> logits, std::span<float> scores);

// What the softmax of each query divides by, from pieces of candidates that threads may take one each. The same bits whoever took
// them.
class SoftmaxPieces {
 public:
  static constexpr std::size_t kRows = 512;  // candidates of a piece, which the nearest cache holds

  // kMaxSoftmax and kSumSoftmax of several queries; the softmax of one keeps the order.
  static bool needed(Aggregate aggregate, std::size_t queries);

  void resize(std::size_t queries, std::size_t candidates);
  // logits: [queries, candidates], of which [first, last) are known; `first` begins a piece, `last` ends one or all.
  void take(MatView<const float> logits, std::size_t first, std::size_t last);
  // The logarithm of the sum of e^logit.
  float log_sum(std::size_t query) const;

 private:
  std::size_t pieces_ = 0;     // of a query
  std::vector<float> maxima_;  // [queries, pieces]
  std::vector<float> sums_;    // of e^(logit - maximum), [queries, pieces]
};

// As above, with `pieces` that have taken all candidates if they are needed.
void aggregate_scores(Aggregate aggregate, MatView<const float> logits, const SoftmaxPieces& pieces, std::span<float> scores);

// The k largest scores, ties to the lower index, ascending by index. k <= scores.size().
class TopSelector {
 public:
  void select(std::span<const float> scores, int k, std::vector<std::int32_t>* chosen);

 private:
  std::vector<std::int32_t> sample_;
  std::vector<std::int32_t> found_;  // indices; as long as the scores, at most
  std::vector<std::int32_t> keys_;   // of what was found
};

}  // namespace kvartet
