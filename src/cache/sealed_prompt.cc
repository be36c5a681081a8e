#include "cache/sealed_prompt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/parallel_for.h"
#include "core/uz.h"
#include "offload/svd_low_rank.h"

namespace kvartet {
namespace {

// Numbers that are written together.
int row_width(const SelectOptions& options, const LayerShape& shape) {
  return options.groups == RowGroup::kJoint ? shape.kv_heads * shape.head_dim : shape.head_dim;
}

// bf16 where keys are low rank: the codec then stands for rows that are never written.
RowCodec key_codec_of(const SelectOptions& options, const LayerShape& shape) {
  return RowCodec::create(options.low_rank_keys ? RowFormat::kBf16 : options.keys, row_width(options, shape)).value();
}
RowCodec value_codec_of(const SelectOptions& options, const LayerShape& shape) {
  return RowCodec::create(options.values, row_width(options, shape)).value();
}

std::size_t key_bytes_of(const SelectOptions& options, const LayerShape& shape) {
  return options.low_rank_keys ? 0 : key_codec_of(options, shape).row_bytes();
}

// The last `count` tokens, all if there are fewer: other caches may have asked for more.
HeadRows<const float> last_tokens(HeadRows<const float> rows, int count) {
  return rows.token_range(rows.tokens - std::min(rows.tokens, uz(count)), rows.tokens);
}

// The numbers of one KV head among those of a row.
void decode_part(const RowCodec& codec, const std::byte* row, int first, int count, float* out) {
  if (codec.dim() == count) return codec.decode(row, out);
  std::array<float, kMostJointWidth> all;
  codec.decode(row, all.data());
  std::copy_n(all.data() + first, count, out);
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
      head_dim_(layer.shape.head_dim),
      groups_(layer.options.groups),
      key_codec_(key_codec_of(layer.options, layer.shape)),
      value_codec_(value_codec_of(layer.options, layer.shape)),
      key_bytes_(key_bytes_of(layer.options, layer.shape)),
      row_bytes_(SealedPrompt::row_bytes(layer.options, layer.shape)) {}

std::size_t SealedPrompt::row_bytes(const SelectOptions& options, const LayerShape& shape) {
  return key_bytes_of(options, shape) + value_codec_of(options, shape).row_bytes();
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

  KV_TRY(sealed.build_indexes(fast, layer, prompt, threads));
  *encoded = sealed.encode(stored_keys, prompt.value, threads);
  return sealed;
}

std::vector<std::vector<std::byte>> SealedPrompt::encode(HeadRows<const float> keys, HeadRows<const float> values,
                                                         int threads) const {
  std::vector<std::vector<std::byte>> encoded(joint() ? 1 : uz(kv_heads_));
  parallel_for(threads, static_cast<int>(encoded.size()), [&](int b, int) { encoded[uz(b)] = encode_rows(keys, values, b); });
  return encoded;
}

Status SealedPrompt::build_indexes(Arena& fast, const Layer& layer, const PromptRows& prompt, int threads) {
  const IndexOptions& options = layer.options.index;
  const auto keys_of = [&](int kv_head, std::vector<float>* storage) {
    return competing_keys(prompt.key.head(uz(kv_head)), kv_head, storage);
  };
  if (is_projected(options.kind)) {
    KV_CHECK(prompt.queries.data != nullptr);
    const HeadRows<const float> queries = last_tokens(prompt.queries, options.window);
    std::vector<Result<ProjectedIndex>> made;
    for (int h = 0; h < layer.shape.heads; ++h) made.emplace_back(internal_error("not built"));
    parallel_for(threads, layer.shape.heads, [&](int h, int) {
      std::vector<float> storage;
      made[uz(h)] = ProjectedIndex::build(fast, options, keys_of(h / layer.shape.group(), &storage), queries.head(uz(h)));
    });
    for (int h = 0; h < layer.shape.heads; ++h) {
      KV_TRY(Status(made[uz(h)].status()).within(fmt::format("query head {}", h)));
      projected_.push_back(std::move(made[uz(h)]).value());
    }
    return {};
  }
  std::vector<Result<LandmarkIndex>> made;
  for (int h = 0; h < kv_heads_; ++h) made.emplace_back(internal_error("not built"));
  parallel_for(threads, kv_heads_, [&](int h, int) {
    std::vector<float> storage;
    made[uz(h)] = LandmarkIndex::build(fast, options, keys_of(h, &storage));
  });
  for (int h = 0; h < kv_heads_; ++h) {
    KV_TRY(Status(made[uz(h)].status()).within(fmt::format("KV head {}", h)));
    index_.push_back(std::move(made[uz(h)]).value());
  }
  return {};
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

// Keys of the rows that compete, in candidate order; `storage` holds them where they do not lie together.
MatView<const float> SealedPrompt::competing_keys(MatView<const float> keys, int kv_head, std::vector<float>* storage) const {
  const int rows = candidates() * chunk_;
  if (segments_.outlier_chunks == 0) return keys.row_range(uz(segments_.front), uz(segments_.front + rows));
  storage->resize(uz(rows) * keys.cols);
  for (int i = 0; i < candidates(); ++i) {
    const int first = first_position(kv_head, i);
    for (int t = 0; t < chunk_; ++t)
      std::copy_n(keys.row(uz(first + t)), keys.cols, storage->data() + uz(i * chunk_ + t) * keys.cols);
  }
  return {storage->data(), uz(rows), keys.cols};
}

// Rows of one KV head, or joint ones: all heads' numbers of a token lie side by side.
std::vector<std::byte> SealedPrompt::encode_rows(HeadRows<const float> keys, HeadRows<const float> values, int kv_head) const {
  std::vector<std::byte> rows(keys.tokens * row_bytes_);
  for (std::size_t t = 0; t < keys.tokens; ++t) {
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
  if (!low_rank()) return decode_part(key_codec_, row, kv_head * head_dim_, head_dim_, out);
  const auto dim = uz(head_dim_);
  const std::size_t width = uz(kv_heads_) * dim;
  std::fill_n(out, dim, 0.0F);
  for (std::size_t i = 0; i < uz(rank_); ++i) {
    const float a = bf16_at(left_, uz(position) * uz(rank_) + i);
    const std::size_t from = i * width + uz(kv_head) * dim;
    for (std::size_t c = 0; c < dim; ++c) out[c] += a * bf16_at(right_, from + c);
  }
}

void SealedPrompt::decode_value(int kv_head, const std::byte* row, float* out) const {
  decode_part(value_codec_, row + key_bytes_, kv_head * head_dim_, head_dim_, out);
}

const std::byte* SealedPrompt::f16_key(int kv_head, const std::byte* row) const {
  if (low_rank() || key_codec_.format() != RowFormat::kF16) return nullptr;
  return row + (joint() ? 2 * uz(kv_head * head_dim_) : 0);
}

const std::byte* SealedPrompt::f16_value(int kv_head, const std::byte* row) const {
  if (value_codec_.format() != RowFormat::kF16) return nullptr;
  return row + key_bytes_ + (joint() ? 2 * uz(kv_head * head_dim_) : 0);
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
  const bool projected = is_projected(layer.options.index.kind);
  const ByteAccount index = projected ? ProjectedIndex::bytes_of(layer.options.index, shape.head_dim, landmarks)
                                      : LandmarkIndex::bytes_of(layer.options.index, shape.head_dim, landmarks);
  const std::size_t indexes = uz(projected ? shape.heads : shape.kv_heads);
  return {indexes * index.live + fixed, indexes * index.allocated + fixed};
}

ByteAccount SealedPrompt::bytes() const {
  ByteAccount sum;
  const auto add = [&](const Buffer& buffer) { sum += ByteAccount{buffer.size(), buffer.size()}; };
  for (const LandmarkIndex& index : index_) sum += index.bytes();
  for (const ProjectedIndex& index : projected_) sum += index.bytes();
  for (const Buffer& ids : chunk_ids_) add(ids);
  add(left_);
  add(right_);
  return sum;
}

void SealedPrompt::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  const auto list = [&](const std::string& name, const Buffer& buffer) {
    if (buffer.size() > 0) out->push_back({name, 1, Tier::kRam, {buffer.size(), buffer.size()}, buffer.data()});
  };
  for (std::size_t h = 0; h < index_.size(); ++h) {
    const LandmarkIndex& index = index_[h];
    out->push_back({fmt::format("{} head {} index", prefix, h), 1, Tier::kRam, index.bytes(), index.buffer().data()});
  }
  for (std::size_t h = 0; h < projected_.size(); ++h)
    list(fmt::format("{} query head {} index", prefix, h), projected_[h].buffer());
  for (std::size_t h = 0; h < chunk_ids_.size(); ++h) list(fmt::format("{} head {} chunk ids", prefix, h), chunk_ids_[h]);
  list(prefix + " low-rank left", left_);
  list(prefix + " low-rank right", right_);
}

}  // namespace kvartet
