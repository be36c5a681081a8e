#include "offload/landmark_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/uz.h"
#include "quantize/higgs_scan.h"
#include "quantize/table_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/landmark_index.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// <a, b>; dim is a multiple of 8.
float dot_row(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::size_t dim) {
  const hn::CappedTag<float, 8> d;
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  for (; i < dim; i += lanes) even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// sum over channels of max(q * lower, q * upper).
float box_row(const float* HWY_RESTRICT q, const float* HWY_RESTRICT lower, const float* HWY_RESTRICT upper, std::size_t dim) {
  const hn::CappedTag<float, 8> d;
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < dim; i += hn::Lanes(d)) {
    const auto x = hn::LoadU(d, q + i);
    sum = hn::Add(sum, hn::Max(hn::Mul(x, hn::LoadU(d, lower + i)), hn::Mul(x, hn::LoadU(d, upper + i))));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(dot_row);
HWY_EXPORT(box_row);

namespace {

std::size_t metas_of(const IndexOptions& options, int landmarks) { return uz((landmarks + options.meta - 1) / options.meta); }

RowFormat landmark_format(const IndexOptions& options) {
  return options.kind == IndexKind::kResidual ? RowFormat::kHiggs1 : options.format;
}
// Queries as the codes want them: [queries, dim] in `scratch`.
MatView<float> turned(const RowCodec& codec, MatView<const float> queries, std::vector<float>* scratch) {
  const HiggsCodec head(codec.grid(), codec.dim(), codec.dim());
  scratch->resize(std::max(scratch->size(), queries.rows * queries.cols));
  const MatView<float> result(scratch->data(), queries.rows, queries.cols);
  for (std::size_t h = 0; h < queries.rows; ++h) {
    std::copy_n(queries.row(h), queries.cols, result.row(h));
    head.turn_query(result.row(h));
  }
  return result;
}

// Landmarks of one-byte codes in blocks (quantize/table_scan.h).
std::size_t subs_of(const RowCodec& codec) { return uz(codec.dim() / codec.grid()->p()); }
void put_coded(const RowCodec& codec, const float* x, std::size_t at, std::byte* blocks) {
  std::vector<std::byte> row(codec.row_bytes());
  codec.encode(x, row.data());
  put_code_row(blocks, subs_of(codec), at, row.data());
}
void get_coded(const RowCodec& codec, const std::byte* blocks, std::size_t at, float* x) {
  std::vector<std::byte> row(codec.row_bytes());
  get_code_row(blocks, subs_of(codec), at, row.data());
  codec.decode(row.data(), x);
}

bool is_box(IndexKind kind) { return kind == IndexKind::kBounds || kind == IndexKind::kDigest; }

}  // namespace

int landmark_group(const IndexOptions& options) {
  if (options.kind == IndexKind::kResidual) return options.meta;
  return options.kind == IndexKind::kMean && options.format == RowFormat::kHiggs2x16 ? static_cast<int>(kScanLandmarks) : 1;
}

std::vector<float> chunk_means(MatView<const float> keys, int chunk) {
  const std::size_t count = keys.rows / uz(chunk);
  std::vector<float> means(count * keys.cols, 0.0F);
  for (std::size_t i = 0; i < count; ++i) {
    float* const mean = means.data() + i * keys.cols;
    for (std::size_t t = 0; t < uz(chunk); ++t) {
      const float* const key = keys.row(i * uz(chunk) + t);
      for (std::size_t j = 0; j < keys.cols; ++j) mean[j] += key[j];
    }
    for (std::size_t j = 0; j < keys.cols; ++j) mean[j] /= static_cast<float>(chunk);
  }
  return means;
}

Status LandmarkIndex::check(const IndexOptions& options, int dim) {
  return RowCodec::create(landmark_format(options), dim).status();
}

ByteAccount LandmarkIndex::bytes_of(const IndexOptions& options, int dim, int landmarks) {
  const RowCodec codec = RowCodec::create(landmark_format(options), dim).value();
  const std::size_t bytes = uz(landmarks) * codec.row_bytes() * (is_box(options.kind) ? 2 : 1);
  if (options.kind == IndexKind::kMean && options.format == RowFormat::kHiggs2x16) {
    return {bytes, (uz(landmarks) + kScanLandmarks - 1) / kScanLandmarks * scan_block_bytes(uz(dim))};
  }
  if (is_box(options.kind) || codec.grid() == nullptr) return {bytes, bytes};
  ByteAccount account = {bytes, code_blocks_bytes(uz(landmarks), subs_of(codec))};
  if (options.kind == IndexKind::kResidual) {
    const RowCodec meta = RowCodec::create(RowFormat::kHiggs4, dim).value();
    account.live += metas_of(options, landmarks) * meta.row_bytes();
    account.allocated += code_blocks_bytes(metas_of(options, landmarks), subs_of(meta));
  }
  return account;
}

Result<LandmarkIndex> LandmarkIndex::build(Arena& arena, const IndexOptions& options, MatView<const float> keys) {
  const int dim = static_cast<int>(keys.cols);
  const int landmarks = static_cast<int>(keys.rows) / options.chunk;
  KV_CHECK(uz(landmarks * options.chunk) == keys.rows);
  KV_ASSIGN(RowCodec codec, RowCodec::create(landmark_format(options), dim));
  LandmarkIndex index(options, std::move(codec), landmarks);
  index.stride_ = index.codec_.row_bytes() * (is_box(options.kind) ? 2 : 1);
  KV_ASSIGN(index.rows_, arena.allocate(bytes_of(options, dim, landmarks).allocated));
  if (options.kind == IndexKind::kResidual) {
    KV_ASSIGN(RowCodec meta, RowCodec::create(RowFormat::kHiggs4, dim));
    index.meta_codec_.push_back(std::move(meta));
  }
  index.write(keys, 0);
  return index;
}

LandmarkIndex LandmarkIndex::emptied() const {
  LandmarkIndex empty(options_, codec_, 0);
  empty.fitted_ = true;
  empty.meta_codec_ = meta_codec_;
  empty.stride_ = stride_;
  return empty;
}

Result<LandmarkIndex> LandmarkIndex::extended(Arena& arena, MatView<const float> keys) const {
  const int more = static_cast<int>(keys.rows) / options_.chunk;
  KV_CHECK(uz(more * options_.chunk) == keys.rows && keys.cols == uz(codec_.dim()));
  KV_CHECK(landmarks_ % landmark_group(options_) == 0 && more % landmark_group(options_) == 0);
  LandmarkIndex longer(options_, codec_, landmarks_ + more);
  longer.fitted_ = true;
  longer.meta_codec_ = meta_codec_;
  longer.stride_ = stride_;
  KV_ASSIGN(longer.rows_, arena.allocate(bytes_of(options_, codec_.dim(), longer.landmarks_).allocated));
  if (options_.kind == IndexKind::kResidual)
    longer.offset_ = code_blocks_bytes(metas_of(options_, longer.landmarks_), subs_of(meta_codec_.front()));
  if (landmarks_ > 0) {
    std::memcpy(longer.rows_.data(), rows_.data(), offset_);
    std::memcpy(longer.rows_.data() + longer.offset_, rows_.data() + offset_, rows_.size() - offset_);
  }
  longer.write(keys, landmarks_);
  return longer;
}

void LandmarkIndex::write(MatView<const float> keys, int first) {
  if (is_box(options_.kind)) return write_boxes(keys, uz(first));
  const std::vector<float> means = chunk_means(keys, options_.chunk);
  const MatView<const float> view(means.data(), keys.rows / uz(options_.chunk), keys.cols);
  if (scans()) return write_scan_blocks(view, uz(first));
  if (options_.kind == IndexKind::kMean) return write_means(view, uz(first));
  write_residuals(view, uz(first));
}

// The scale of the first landmarks is that of those that follow: rows that are written do not change.
void LandmarkIndex::write_means(MatView<const float> means, std::size_t first) {
  if (first == 0 && !fitted_) {
    float largest = 0;
    for (std::size_t i = 0; i < means.rows; ++i)
      for (const float x : means.row_span(i)) largest = std::max(largest, std::abs(x));
    codec_.fit(largest);
  }
  for (std::size_t i = 0; i < means.rows; ++i) {
    if (coded()) {
      put_coded(codec_, means.row(i), first + i, rows_.data());
    } else {
      codec_.encode(means.row(i), rows_.data() + (first + i) * stride_);
    }
  }
}

// Closed loop: residuals are taken against the quantized mean, so they correct its error (5.4).
void LandmarkIndex::write_residuals(MatView<const float> means, std::size_t first) {
  const RowCodec& meta = meta_codec_.front();
  const std::size_t m = uz(options_.meta);
  const std::size_t metas = (means.rows + m - 1) / m;
  offset_ = code_blocks_bytes(metas_of(options_, landmarks_), subs_of(meta));
  std::vector<float> mean(means.cols);
  std::vector<float> residual(means.cols);
  for (std::size_t a = 0; a < metas; ++a) {
    std::fill(mean.begin(), mean.end(), 0.0F);
    for (std::size_t i = 0; i < m; ++i) {
      const float* const landmark = means.row(std::min(a * m + i, means.rows - 1));  // the last one repeats as padding
      for (std::size_t j = 0; j < means.cols; ++j) mean[j] += landmark[j] / static_cast<float>(m);
    }
    put_coded(meta, mean.data(), first / m + a, rows_.data());
    get_coded(meta, rows_.data(), first / m + a, mean.data());
    for (std::size_t i = a * m; i < std::min((a + 1) * m, means.rows); ++i) {
      for (std::size_t j = 0; j < means.cols; ++j) residual[j] = means.row(i)[j] - mean[j];
      put_coded(codec_, residual.data(), first + i, rows_.data() + offset_);
    }
  }
}

void LandmarkIndex::write_boxes(MatView<const float> keys, std::size_t first) {
  const std::size_t dim = keys.cols;
  std::vector<float> lower(dim);
  std::vector<float> upper(dim);
  for (std::size_t i = 0; i < keys.rows / uz(options_.chunk); ++i) {
    const std::size_t begin = i * uz(options_.chunk);
    std::copy_n(keys.row(begin), dim, lower.begin());
    std::copy_n(keys.row(begin), dim, upper.begin());
    for (std::size_t t = begin; t < begin + uz(options_.chunk); ++t) {
      for (std::size_t j = 0; j < dim; ++j) {
        lower[j] = std::min(lower[j], keys.row(t)[j]);
        upper[j] = std::max(upper[j], keys.row(t)[j]);
      }
    }
    if (options_.kind == IndexKind::kDigest) {
      for (std::size_t j = 0; j < dim; ++j) {
        const float center = (lower[j] + upper[j]) / 2;
        float radius = 0;
        for (std::size_t t = begin; t < begin + uz(options_.chunk); ++t) radius += std::abs(keys.row(t)[j] - center);
        lower[j] = center - radius / static_cast<float>(options_.chunk);
        upper[j] = center + radius / static_cast<float>(options_.chunk);
      }
    }
    codec_.encode(lower.data(), rows_.data() + (first + i) * stride_);
    codec_.encode(upper.data(), rows_.data() + (first + i) * stride_ + codec_.row_bytes());
  }
}

void LandmarkIndex::write_scan_blocks(MatView<const float> means, std::size_t first) {
  const HiggsCodec head(codec_.grid(), codec_.dim(), codec_.dim());
  std::vector<std::uint8_t> codes(means.cols / 2);
  for (std::size_t i = 0; i < means.rows; ++i) {
    std::uint16_t scale = 0;
    head.encode(means.row(i), codes.data(), &scale);
    std::byte* const block = rows_.data() + (first + i) / kScanLandmarks * scan_block_bytes(means.cols);
    put_scan_landmark(block, means.cols, (first + i) % kScanLandmarks, codes.data(), scale);
  }
}

const std::byte* LandmarkIndex::scan_block(std::size_t first) const {
  return rows_.data() + first / kScanLandmarks * scan_block_bytes(uz(codec_.dim()));
}

bool LandmarkIndex::finds_largest(std::size_t queries) const { return scans() && queries >= 1 && queries <= kMostScanQueries; }

void LandmarkIndex::score_largest(MatView<const float> queries, float scale, std::span<float> scores, std::vector<float>* scratch,
                                  std::size_t first) const {
  KV_CHECK(finds_largest(queries.rows) && queries.cols == uz(codec_.dim()));
  KV_CHECK(first % kPart == 0 && first + scores.size() <= uz(landmarks_));
  largest_scan_scores(*codec_.grid(), scan_block(first), scores.size(), turned(codec_, queries, scratch), scale, scores);
}

void LandmarkIndex::decode(int landmark, float* out) const {
  if (scans()) {
    std::vector<std::uint8_t> codes(uz(codec_.dim() / 2));
    std::uint16_t scale = 0;
    const std::byte* const block = rows_.data() + uz(landmark) / kScanLandmarks * scan_block_bytes(uz(codec_.dim()));
    get_scan_landmark(block, uz(codec_.dim()), uz(landmark) % kScanLandmarks, codes.data(), &scale);
    HiggsCodec(codec_.grid(), codec_.dim(), codec_.dim()).decode(codes.data(), &scale, out);
    return;
  }
  if (coded()) {
    get_coded(codec_, rows_.data() + offset_, uz(landmark), out);
  } else {
    codec_.decode(row(landmark), out);
  }
  const std::size_t dim = uz(codec_.dim());
  if (is_box(options_.kind)) codec_.decode(row(landmark) + codec_.row_bytes(), out + dim);
  if (options_.kind != IndexKind::kResidual) return;
  std::vector<float> mean(dim);
  get_coded(meta_codec_.front(), rows_.data(), uz(landmark / options_.meta), mean.data());
  for (std::size_t j = 0; j < dim; ++j) out[j] += mean[j];
}

void LandmarkIndex::score_rows(MatView<const float> queries, float factor, MatView<float> logits, std::vector<float>* scratch,
                               std::size_t first) const {
  const auto dot = SIMD_CHOOSE(dot_row);
  scratch->resize(queries.cols);
  for (std::size_t i = 0; i < logits.cols; ++i) {
    codec_.decode(row(static_cast<int>(first + i)), scratch->data());
    for (std::size_t h = 0; h < queries.rows; ++h) logits.row(h)[i] = factor * dot(queries.row(h), scratch->data(), queries.cols);
  }
}

void LandmarkIndex::score_codes(const RowCodec& codec, const std::byte* blocks, std::size_t count, MatView<const float> queries,
                                float factor, MatView<float> logits, std::vector<float>* scratch) const {
  for (std::size_t first = 0; first < queries.rows; first += kMostTableQueries) {
    const std::size_t end = std::min(first + kMostTableQueries, queries.rows);
    score_code_blocks(*codec.grid(), {.blocks = blocks, .count = count, .subs = subs_of(codec)},
                      turned(codec, queries.row_range(first, end), scratch), factor, logits.row_range(first, end));
  }
}

void LandmarkIndex::score_boxes(MatView<const float> queries, float factor, MatView<float> logits, std::vector<float>* scratch,
                                std::size_t first) const {
  const auto box = SIMD_CHOOSE(box_row);
  const std::size_t dim = queries.cols;
  scratch->resize(2 * dim);
  for (std::size_t i = 0; i < logits.cols; ++i) {
    decode(static_cast<int>(first + i), scratch->data());
    for (std::size_t h = 0; h < queries.rows; ++h)
      logits.row(h)[i] = factor * box(queries.row(h), scratch->data(), scratch->data() + dim, dim);
  }
}

void LandmarkIndex::score(MatView<const float> queries, float scale, MatView<float> logits, std::vector<float>* scratch,
                          std::size_t first) const {
  KV_CHECK(queries.cols == uz(codec_.dim()) && logits.rows == queries.rows);
  KV_CHECK(first % kPart == 0 && first + logits.cols <= uz(landmarks_));
  if (coded()) {
    const std::byte* const block = rows_.data() + offset_ + first / kCodeBlockRows * code_block_bytes(subs_of(codec_));
    score_codes(codec_, block, logits.cols, queries, scale, logits, scratch);
  } else if (is_box(options_.kind)) {
    score_boxes(queries, scale, logits, scratch, first);
  } else if (scans()) {
    score_scan_blocks(*codec_.grid(), scan_block(first), logits.cols, turned(codec_, queries, scratch), logits);
    for (std::size_t h = 0; h < queries.rows; ++h)
      for (float& logit : logits.row_span(h)) logit *= scale;
  } else {
    score_rows(queries, scale, logits, scratch, first);
  }
  if (options_.kind != IndexKind::kResidual) return;
  const std::size_t metas = metas_of(options_, landmarks_);
  std::vector<float> meta_logits(queries.rows * metas);
  score_codes(meta_codec_.front(), rows_.data(), metas, queries, scale, {meta_logits.data(), queries.rows, metas}, scratch);
  for (std::size_t h = 0; h < queries.rows; ++h)
    for (std::size_t i = 0; i < logits.cols; ++i) logits.row(h)[i] += meta_logits[h * metas + (first + i) / uz(options_.meta)];
}

}  // namespace kvartet
#endif
