#include "offload/projected_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/uz.h"
#include "offload/joint_factors.h"
#include "offload/partial_channels.h"

namespace kvartet {
namespace {

std::size_t map_bytes_of(int width, int dim) { return uz(width) * uz(dim) * sizeof(float); }
std::size_t column_bytes_of(int landmarks) { return uz(landmarks) * sizeof(std::uint16_t); }

}  // namespace

Status ProjectedIndex::check(const IndexOptions& options, int dim) {
  if (options.kind == IndexKind::kFactors && options.factors > dim) {
    return usage_error(fmt::format("factors={} is more than the {} channels of a head of this model; the nearest is factors={}",
                                   options.factors, dim, dim));
  }
  return {};
}

int ProjectedIndex::width(const IndexOptions& options, int dim) {
  return options.kind == IndexKind::kFactors ? options.factors : partial_width(options.partial, dim);
}

ByteAccount ProjectedIndex::bytes_of(const IndexOptions& options, int dim, int landmarks) {
  const int columns = width(options, dim);
  const std::size_t bytes = map_bytes_of(columns, dim) + uz(columns) * column_bytes_of(landmarks);
  return {bytes, bytes};
}

Result<ProjectedIndex> ProjectedIndex::build(Arena& arena, const IndexOptions& options, MatView<const float> keys,
                                             MatView<const float> queries) {
  const int dim = static_cast<int>(keys.cols);
  const int landmarks = static_cast<int>(keys.rows) / options.chunk;
  KV_CHECK(uz(landmarks * options.chunk) == keys.rows && queries.cols == keys.cols && queries.rows > 0);
  ProjectedIndex index(dim, width(options, dim), landmarks);
  KV_ASSIGN(index.rows_, arena.allocate(bytes_of(options, dim, landmarks).allocated));
  const std::vector<float> means = chunk_means(keys, options.chunk);
  const MatView<const float> all(means.data(), uz(landmarks), keys.cols);
  const KeyProjection made = options.kind == IndexKind::kFactors ? joint_factors(all, queries, {.factors = options.factors})
                                                                 : partial_channels(all, queries, options.partial, options.skew);
  std::memcpy(index.rows_.data(), made.query.data(), index.map_bytes());
  const auto columns = uz(index.width_);
  for (std::size_t i = 0; i < columns; ++i) {
    std::byte* const column = index.rows_.data() + index.map_bytes() + i * column_bytes_of(landmarks);
    for (std::size_t j = 0; j < uz(landmarks); ++j) {
      const std::uint16_t bits = bf16_from_float(made.keys[j * columns + i]);
      std::memcpy(column + 2 * j, &bits, sizeof(bits));
    }
  }
  return index;
}

std::size_t ProjectedIndex::map_bytes() const { return map_bytes_of(width_, dim_); }

void ProjectedIndex::turn_query(const float* query, float* out) const {
  const auto* const map = reinterpret_cast<const float*>(rows_.data());
  for (std::size_t i = 0; i < uz(width_); ++i) {
    float sum = 0;
    for (std::size_t c = 0; c < uz(dim_); ++c) sum += map[i * uz(dim_) + c] * query[c];
    out[i] = sum;
  }
}

void ProjectedIndex::score(const float* query, float scale, std::span<float> logits) const {
  KV_CHECK(logits.size() == uz(landmarks_));
  std::vector<float> features(uz(width_));
  turn_query(query, features.data());
  std::fill(logits.begin(), logits.end(), 0.0F);
  for (std::size_t i = 0; i < features.size(); ++i) {
    const float weight = scale * features[i];
    const auto* const column =
        reinterpret_cast<const std::uint16_t*>(rows_.data() + map_bytes() + i * column_bytes_of(landmarks_));
    for (std::size_t j = 0; j < logits.size(); ++j) logits[j] += weight * float_from_bf16(column[j]);
  }
}

void ProjectedIndex::decode(int landmark, float* out) const {
  for (std::size_t i = 0; i < uz(width_); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, rows_.data() + map_bytes() + i * column_bytes_of(landmarks_) + 2 * uz(landmark), sizeof(bits));
    out[i] = float_from_bf16(bits);
  }
}

}  // namespace kvartet
