// The small copy of one KV head's keys that says which rows a query wants: landmarks, and the scores of queries against them
// (offloading.md 3.3, 5.2 to 5.4, 6).
//
//   mean      one landmark per chunk: the mean of its post-RoPE keys (a chunk of one token is the token itself)
//   residual  means of `meta` landmarks in 4 bits, and what is left of each landmark in 1 bit ("1.5 bits")
//   bounds    per chunk and channel the least and the largest key: an upper bound of the chunk's best logit (Quest)
//   digest    the same form with center and mean radius instead (ArkVale); not a bound
//   partial, factors   one index per query head instead: offload/projected_index.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/bytes.h"
#include "core/matrix.h"
#include "core/status.h"
#include "offload/row_codec.h"

namespace kvartet {

enum class IndexKind : std::uint8_t { kMean, kResidual, kBounds, kDigest, kPartial, kFactors };
enum class Skew : std::uint8_t {
  kPrompt,
  kNone
};  // the directions in which channels are counted: the queries' own, or as they are

struct IndexOptions {
  IndexKind kind = IndexKind::kMean;
  RowFormat format = RowFormat::kHiggs2;  // of landmarks; residual has its own two
  int chunk = 1;
  int meta = 8;               // residual: landmarks per meta-landmark
  double partial = 0.2;       // partial: share of the channels with the largest queries, and as many by keys
  Skew skew = Skew::kPrompt;  // partial
  int factors = 32;           // factors: of a key
  int window = 128;           // partial, factors: last queries of the prompt that the index is made from
  bool operator==(const IndexOptions&) const = default;
};

// An index grows by multiples of so many landmarks: those that share a meta-landmark, or are scanned together.
int landmark_group(const IndexOptions& options);

// Landmarks [chunks, dim] of keys [chunks * chunk, dim].
std::vector<float> chunk_means(MatView<const float> keys, int chunk);

class LandmarkIndex {
 public:
  // kUsage: the format does not fit head_dim.
  static Status check(const IndexOptions& options, int dim);
  static ByteAccount bytes_of(const IndexOptions& options, int dim, int landmarks);

  // keys: post-RoPE [landmarks * chunk, dim], in candidate order. kExhausted: no memory.
  static Result<LandmarkIndex> build(Arena& arena, const IndexOptions& options, MatView<const float> keys);

  // The same without landmarks, to be extended: what is written later is coded as these landmarks were.
  LandmarkIndex emptied() const;
  // This and behind it the landmarks of `keys`, as build() takes them; there and here a multiple of landmark_group().
  Result<LandmarkIndex> extended(Arena& arena, MatView<const float> keys) const;

  int landmarks() const { return landmarks_; }
  ByteAccount bytes() const { return {bytes_of(options_, codec_.dim(), landmarks_).live, rows_.size()}; }
  const Buffer& buffer() const { return rows_; }

  // logits[h, j] = scale * <query h, landmark first + j>; queries: [n, dim]. `scratch` grows as needed. A part of the landmarks
  // begins at a multiple of kPart and has the bits that all of them together have.
  static constexpr std::size_t kPart = 64;
  void score(MatView<const float> queries, float scale, MatView<float> logits, std::vector<float>* scratch,
             std::size_t first = 0) const;
  // scores[j] = the largest of these logits over all queries, to the bit, without writing logits down. Only where
  // finds_largest(queries.rows).
  void score_largest(MatView<const float> queries, float scale, std::span<float> scores, std::vector<float>* scratch,
                     std::size_t first = 0) const;
  bool finds_largest(std::size_t queries) const;
  // The obvious way: a landmark as it was stored, decoded. Bounds and digests: [lower, upper], 2 * dim.
  void decode(int landmark, float* out) const;

 private:
  LandmarkIndex(const IndexOptions& options, RowCodec codec, int landmarks)
      : options_(options), codec_(std::move(codec)), landmarks_(landmarks) {}
  void write(MatView<const float> keys, int first);
  // From landmark `first` on.
  void write_means(MatView<const float> means, std::size_t first);
  void write_residuals(MatView<const float> means, std::size_t first);
  void write_boxes(MatView<const float> keys, std::size_t first);
  bool scans() const { return options_.kind == IndexKind::kMean && codec_.format() == RowFormat::kHiggs2x16; }
  void write_scan_blocks(MatView<const float> means, std::size_t first);
  // The block in which a landmark is the first.
  const std::byte* scan_block(std::size_t first) const;
  const std::byte* row(int landmark) const { return rows_.data() + offset_ + static_cast<std::size_t>(landmark) * stride_; }
  // Landmarks of one-byte codes, but for boxes, lie in the blocks of quantize/table_scan.h.
  bool coded() const {
    return (options_.kind == IndexKind::kMean || options_.kind == IndexKind::kResidual) && codec_.grid() != nullptr && !scans();
  }
  void score_codes(const RowCodec& codec, const std::byte* blocks, std::size_t count, MatView<const float> queries, float factor,
                   MatView<float> logits, std::vector<float>* scratch) const;
  void score_rows(MatView<const float> queries, float factor, MatView<float> logits, std::vector<float>* scratch,
                  std::size_t first) const;
  void score_boxes(MatView<const float> queries, float factor, MatView<float> logits, std::vector<float>* scratch,
                   std::size_t first) const;

  IndexOptions options_;
  RowCodec codec_;                    // of a landmark; residual: of the residuals
  std::vector<RowCodec> meta_codec_;  // residual: one
  bool fitted_ = false;               // the codec's scale comes from an index that this one extends
  int landmarks_ = 0;
  std::size_t offset_ = 0;  // of the first landmark: behind the meta-landmarks
  std::size_t stride_ = 0;
  Buffer rows_;
};

}  // namespace kvartet
