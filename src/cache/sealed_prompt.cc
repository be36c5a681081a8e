#include "cache/sealed_prompt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/parallel_for.h"
#include "offload/svd_low_rank.h"

namespace kvartet {
namespace {

std::size_t uz(int n) { return static_cast<std::size_t>(n); }

// bf16 where keys are low rank: the codec then stands for rows that are never written.
RowCodec key_codec_of(const SelectOptions& options, int dim) {
  return RowCodec::create(options.low_rank_keys ? RowFormat::kBf16 : options.keys, dim).value();
}
RowCodec value_codec_of(const SelectOptions& options, int dim) { return RowCodec::create(options.values, dim).value(); }

std::size_t key_bytes_of(const SelectOptions& options, int dim) {
  return options.low_rank_keys ? 0 : key_codec_of(options, dim).row_bytes();
}

float largest_of(HeadRows<const float> rows) {
  float largest = 0;
  for (std::size_t h = 0; h < rows.heads; ++h)
    for (std::size_t t = 0; t < rows.tokens; ++t)
      for (std::size_t i = 0; i < rows.head_dim; ++i) largest = std::max(largest, std::abs(rows.row(t, h)[i]));
  return largest;
}

// The least cosine of a chunk's keys to their mean (3.3, step 5).
double chunk_quality(MatView<const float> keys, const float* mean) {
  double mean_square = 0;
  for (std::size_t i = 0; i < keys.cols; ++i) mean_square += static_cast<double>(mean[i]) * mean[i];
  double least = 1;
  for (std::size_t t = 0; t < keys.rows; ++t) {
    double dot = 0;
    double square = 0;
    for (std::size_t i = 0; i < keys.cols; ++i) {
      dot += static_cast<double>(keys.row(t)[i]) * mean[i];
      square += static_cast<double>(keys.row(t)[i]) * keys.row(t)[i];
    }
    const double norm = std::sqrt(square * mean_square);
    least = std::min(least, norm > 0 ? dot / norm : 0.0);
  }
  return least;
}

// Chunks of one head that their mean represents worst, ascending.
std::vector<std::int32_t> outlier_chunks(MatView<const float> keys, const Segments& s, int chunk) {
  const std::vector<float> means = chunk_means(keys.row_range(0, uz(s.candidates * chunk)), chunk);
  std::vector<double> quality;
  for (int i = 0; i < s.candidates; ++i) {
    quality.push_back(chunk_quality(keys.row_range(uz(i * chunk), uz((i + 1) * chunk)), means.data() + uz(i) * keys.cols));
  }
  std::vector<std::int32_t> order(uz(s.candidates));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return quality[uz(a)] < quality[uz(b)]; });
  order.resize(uz(s.outlier_chunks));
  std::sort(order.begin(), order.end());
  return order;
}

void append_range(int begin, int end, std::vector<std::int32_t>* out) {
  for (int i = begin; i < end; ++i) out->push_back(i);
}

float bf16_at(const Buffer& buffer, std::size_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, buffer.data() + 2 * index, sizeof(bits));
  return float_from_bf16(bits);
}

Result<Buffer> as_bf16(Arena& arena, std::span<const float> numbers) {
  KV_ASSIGN(Buffer buffer, arena.allocate(2 * numbers.size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint16_t bits = bf16_from_float(numbers[i]);
    std::memcpy(buffer.data() + 2 * i, &bits, sizeof(bits));
  }
  return buffer;
}

}  // namespace

SealedPrompt::SealedPrompt(const Layer& layer, int tokens)
    : segments_(layer.segments),
      chunk_(layer.options.index.chunk),
      tokens_(tokens),
      kv_heads_(layer.shape.kv_heads),
      key_codec_(key_codec_of(layer.options, layer.shape.head_dim)),
      value_codec_(value_codec_of(layer.options, layer.shape.head_dim)),
      key_bytes_(key_bytes_of(layer.options, layer.shape.head_dim)),
      row_bytes_(SealedPrompt::row_bytes(layer.options, layer.shape.head_dim)) {}

std::size_t SealedPrompt::row_bytes(const SelectOptions& options, int head_dim) {
  return key_bytes_of(options, head_dim) + value_codec_of(options, head_dim).row_bytes();
}

Result<SealedPrompt> SealedPrompt::build(Arena& fast, const Layer& layer, const PromptRows& prompt, int threads,
                                         std::vector<std::vector<std::byte>>* encoded, Arrival* kept) {
  KV_CHECK(!layer.segments.dense);
  SealedPrompt sealed(layer, static_cast<int>(prompt.key.tokens));
  const SelectOptions& options = layer.options;
  const HeadRows<const float> stored_keys = options.rope == KeyRope::kPre ? prompt.key_pre : prompt.key;
  KV_CHECK(stored_keys.data != nullptr);
  sealed.key_codec_.fit(largest_of(stored_keys));
  sealed.value_codec_.fit(largest_of(prompt.value));
  KV_TRY(sealed.choose_kept(fast, prompt, kept));
  if (options.low_rank_keys) KV_TRY(sealed.factorize_keys(fast, options, prompt));

  const int heads = sealed.kv_heads_;
  std::vector<Result<LandmarkIndex>> indexes;
  for (int h = 0; h < heads; ++h) indexes.emplace_back(internal_error("not built"));
  encoded->assign(uz(heads), {});
  parallel_for(threads, heads, [&](int h, int) {
    indexes[uz(h)] = sealed.index_head(fast, options.index, prompt.key.head(uz(h)), h);
    (*encoded)[uz(h)] = sealed.encode_head(stored_keys, prompt.value, h);
  });
  for (int h = 0; h < heads; ++h) {
    KV_TRY(Status(indexes[uz(h)].status()).within(fmt::format("KV head {}", h)));
    sealed.index_.push_back(std::move(indexes[uz(h)]).value());
  }
  return sealed;
}

// The rows that each head's attention always sees, and which chunk each candidate is.
Status SealedPrompt::choose_kept(Arena& fast, const PromptRows& prompt, Arrival* kept) {
  const Segments& s = segments_;
  *kept = Arrival{};
  kept->all = false;
  for (int h = 0; h < kv_heads_; ++h) {
    std::vector<std::int32_t> rows;
    append_range(0, s.front, &rows);
    if (s.outlier_chunks > 0) {
      const std::vector<std::int32_t> outliers = outlier_chunks(prompt.key.head(uz(h)), s, chunk_);
      KV_ASSIGN(Buffer ids, fast.allocate(uz(candidates()) * sizeof(std::int32_t)));
      std::size_t at = 0;
      std::size_t next = 0;
      for (std::int32_t id = 0; id < s.candidates; ++id) {
        if (next < outliers.size() && outliers[next] == id) {
          append_range(id * chunk_, (id + 1) * chunk_, &rows);
          ++next;
          continue;
        }
        std::memcpy(ids.data() + at, &id, sizeof(id));
        at += sizeof(id);
      }
      chunk_ids_.push_back(std::move(ids));
    }
    append_range(tokens_ - s.local, tokens_, &rows);
    kept->pick.push_back(std::move(rows));
  }
  return {};
}

Status SealedPrompt::factorize_keys(Arena& fast, const SelectOptions& options, const PromptRows& prompt) {
  // All heads' keys of a token lie side by side: one joint factorization.
  const std::size_t width = prompt.key_pre.heads * prompt.key_pre.head_dim;
  const MatView<const float> joint(prompt.key_pre.data, prompt.key_pre.tokens, width, prompt.key_pre.token_stride);
  rank_ = std::min({options.rank, static_cast<int>(width), tokens_});
  const LowRank low = factorize(joint, rank_);
  KV_ASSIGN(left_, as_bf16(fast, low.a));
  KV_ASSIGN(right_, as_bf16(fast, low.b));
  return {};
}

Result<LandmarkIndex> SealedPrompt::index_head(Arena& fast, const IndexOptions& options, MatView<const float> keys,
                                               int kv_head) const {
  const int rows = candidates() * chunk_;
  if (segments_.outlier_chunks == 0) {
    return LandmarkIndex::build(fast, options, keys.row_range(uz(segments_.front), uz(segments_.front + rows)));
  }
  std::vector<float> competing(uz(rows) * keys.cols);
  for (int i = 0; i < candidates(); ++i) {
    const int first = first_position(kv_head, i);
    for (int t = 0; t < chunk_; ++t)
      std::copy_n(keys.row(uz(first + t)), keys.cols, competing.data() + uz(i * chunk_ + t) * keys.cols);
  }
  return LandmarkIndex::build(fast, options, {competing.data(), uz(rows), keys.cols});
}

std::vector<std::byte> SealedPrompt::encode_head(HeadRows<const float> keys, HeadRows<const float> values, int kv_head) const {
  std::vector<std::byte> rows(uz(tokens_) * row_bytes_);
  for (std::size_t t = 0; t < uz(tokens_); ++t) {
    std::byte* const row = rows.data() + t * row_bytes_;
    if (!low_rank()) key_codec_.encode(keys.row(t, uz(kv_head)), row);
    value_codec_.encode(values.row(t, uz(kv_head)), row + key_bytes_);
  }
  return rows;
}

int SealedPrompt::first_position(int kv_head, int candidate) const {
  if (segments_.outlier_chunks == 0) return segments_.front + candidate * chunk_;
  std::int32_t id = 0;
  std::memcpy(&id, chunk_ids_[uz(kv_head)].data() + uz(candidate) * sizeof(id), sizeof(id));
  return id * chunk_;
}

std::vector<std::int32_t> SealedPrompt::candidate_positions(int kv_head) const {
  std::vector<std::int32_t> positions;
  for (int i = 0; i < candidates(); ++i) {
    const int first = first_position(kv_head, i);
    append_range(first, first + chunk_, &positions);
  }
  return positions;
}

std::vector<std::int32_t> SealedPrompt::kept_positions(int kv_head) const {
  const std::vector<std::int32_t> competing = candidate_positions(kv_head);
  std::vector<std::int32_t> kept;
  for (int position = 0; position < tokens_; ++position) {
    if (!std::binary_search(competing.begin(), competing.end(), position)) kept.push_back(position);
  }
  return kept;
}

void SealedPrompt::decode_key(int kv_head, int position, const std::byte* row, float* out) const {
  if (!low_rank()) return key_codec_.decode(row, out);
  const auto dim = uz(key_codec_.dim());
  const std::size_t width = uz(kv_heads_) * dim;
  std::fill_n(out, dim, 0.0F);
  for (std::size_t i = 0; i < uz(rank_); ++i) {
    const float a = bf16_at(left_, uz(position) * uz(rank_) + i);
    const std::size_t from = i * width + uz(kv_head) * dim;
    for (std::size_t c = 0; c < dim; ++c) out[c] += a * bf16_at(right_, from + c);
  }
}

// ---- counts

ByteAccount SealedPrompt::predict(const Layer& layer, int prompt) {
  const Segments& s = layer.segments;
  const LayerShape& shape = layer.shape;
  const int landmarks = s.candidates - s.outlier_chunks;
  std::size_t fixed = 0;
  if (s.outlier_chunks > 0) fixed += uz(shape.kv_heads) * uz(landmarks) * sizeof(std::int32_t);
  if (layer.options.low_rank_keys) {
    const int width = shape.kv_heads * shape.head_dim;
    fixed += 2 * uz(std::min({layer.options.rank, width, prompt})) * (uz(prompt) + uz(width));
  }
  const ByteAccount index = LandmarkIndex::bytes_of(layer.options.index, shape.head_dim, landmarks);
  return {uz(shape.kv_heads) * index.live + fixed, uz(shape.kv_heads) * index.allocated + fixed};
}

ByteAccount SealedPrompt::bytes() const {
  ByteAccount sum;
  const auto add = [&](const Buffer& buffer) { sum += ByteAccount{buffer.size(), buffer.size()}; };
  for (const LandmarkIndex& index : index_) sum += index.bytes();
  for (const Buffer& ids : chunk_ids_) add(ids);
  add(left_);
  add(right_);
  return sum;
}

void SealedPrompt::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  const auto list = [&](const std::string& name, const Buffer& buffer) {
    if (buffer.size() > 0) out->push_back({name, 1, Tier::kRam, {buffer.size(), buffer.size()}, buffer.data()});
  };
  for (int h = 0; h < kv_heads_; ++h) {
    const LandmarkIndex& index = index_[uz(h)];
    out->push_back({fmt::format("{} head {} index", prefix, h), 1, Tier::kRam, index.bytes(), index.buffer().data()});
    if (!chunk_ids_.empty()) list(fmt::format("{} head {} chunk ids", prefix, h), chunk_ids_[uz(h)]);
  }
  list(prefix + " low-rank left", left_);
  list(prefix + " low-rank right", right_);
}

}  // namespace kvartet
