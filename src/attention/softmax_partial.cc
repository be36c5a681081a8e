#include "attention/softmax_partial.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/uz.h"

namespace kvartet {
namespace {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

void merge_query(const SoftmaxPartial& into, const SoftmaxPartial& part, std::size_t query) {
  const std::size_t head_dim = uz(into.head_dim);
  float* const to = into.acc + query * head_dim;
  const float* const from = part.acc + query * head_dim;
  if (part.max[query] == kNoLogit) return;
  if (into.max[query] == kNoLogit) {
    into.max[query] = part.max[query];
    into.sum[query] = part.sum[query];
    std::copy_n(from, head_dim, to);
    return;
  }
  const float max = std::max(into.max[query], part.max[query]);
  const float into_scale = std::exp(into.max[query] - max);
  const float part_scale = std::exp(part.max[query] - max);
  into.max[query] = max;
  into.sum[query] = into.sum[query] * into_scale + part.sum[query] * part_scale;
  for (std::size_t c = 0; c < head_dim; ++c) to[c] = to[c] * into_scale + from[c] * part_scale;
}

}  // namespace

void clear_partial(const SoftmaxPartial& partial) {
  const std::size_t queries = uz(partial.queries);
  std::fill_n(partial.max, queries, kNoLogit);
  std::fill_n(partial.sum, queries, 0.0F);
  std::fill_n(partial.acc, queries * uz(partial.head_dim), 0.0F);
}

void merge_partial(const SoftmaxPartial& into, const SoftmaxPartial& part) {
  KV_DCHECK(into.queries == part.queries && into.head_dim == part.head_dim);
  for (std::size_t query = 0; query < uz(into.queries); ++query) merge_query(into, part, query);
}

void finish_partial(const SoftmaxPartial& partial, MatView<float> out) {
  KV_DCHECK(out.rows == uz(partial.queries) && out.cols == uz(partial.head_dim));
  for (std::size_t query = 0; query < out.rows; ++query) {
    const float* const acc = partial.acc + query * out.cols;
    float* const row = out.row(query);
    if (partial.max[query] == kNoLogit) {
      std::fill_n(row, out.cols, 0.0F);
      continue;
    }
    const float scale = 1.0F / partial.sum[query];
    for (std::size_t c = 0; c < out.cols; ++c) row[c] = acc[c] * scale;
  }
}

}  // namespace kvartet
