#include "offload/row_places.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/bfloat16.h"
#include "core/check.h"
#include "offload/fault_guard.h"
#include "offload/row_places_kernels.h"
#include "quantize/walsh_hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/row_places.cc"
#include "simd/dispatch.h"

#include "quantize/higgs_points-inl.h"
#include "quantize/lane_products-inl.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = HWY_CAPPED(float, 16);
using Narrow = HWY_CAPPED(float, 8);  // what a Hadamard transform in registers works with
constexpr std::size_t kRows = kBlockRows;
// Vectors of sums that four queries have in registers.
constexpr std::size_t kSums = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

HWY_INLINE const std::uint16_t* f16_at(const std::byte* row, const RowSide& side) {
  return reinterpret_cast<const std::uint16_t*>(row + side.at);
}

// Chosen rows lie far apart: as many loads are under way at once as the second-level cache's queue holds.
constexpr std::size_t kAhead = 32;

HWY_INLINE void prefetch_row(const RowPlaces& places, std::size_t r, std::size_t row_bytes) {
  if (r >= static_cast<std::size_t>(places.count)) return;
  const std::byte* const row = places.rows[r];
  for (std::size_t line = 0; line < row_bytes; line += 64) __builtin_prefetch(row + line, 0, 2);
  __builtin_prefetch(row + row_bytes - 1, 0, 2);
}

HWY_INLINE void prefetch_turn(const RowPlaces& places, std::size_t r) {
  if (r >= static_cast<std::size_t>(places.count)) return;
  places.rope->prefetch(places.positions[r]);
}

// ---- keys

// The sum of a vector's blocks of four lanes.
template <class D>
HWY_INLINE void store_block_sums(D d, hn::Vec<D> v, float* HWY_RESTRICT sums) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, sums);
  } else {
    const hn::Half<D> half;
    store_block_sums(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), sums);
  }
}

// The sums of four vectors' lanes.
template <class D>
HWY_INLINE void sums_of_four(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e, float* HWY_RESTRICT sums) {
  const hn::Repartition<std::uint64_t, D> d64;
  const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const auto all = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)));
  store_block_sums(d, all, sums);
}

struct F16Numbers {
  const std::uint16_t* from;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::size_t c) const {
    return load_f16(d, from + c);
  }
};
struct FloatNumbers {
  const float* from;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::size_t c) const {
    return hn::LoadU(d, from + c);
  }
};

// Logits of a chunk of queries with one key.
template <int kQueries, class D, class Numbers>
HWY_INLINE void dot_row(D d, const Numbers& key, std::size_t head_dim, const float* HWY_RESTRICT q, float* HWY_RESTRICT logits,
                        std::size_t stride) {
  hn::Vec<D> sums[4];
  for (std::size_t k = 0; k < 4; ++k) sums[k] = hn::Zero(d);
  for (std::size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
    const auto numbers = key.load(d, c);
    for (std::size_t k = 0; k < kQueries; ++k) sums[k] = hn::MulAdd(numbers, hn::LoadU(d, q + k * head_dim + c), sums[k]);
  }
  float of_queries[4];
  sums_of_four(d, sums[0], sums[1], sums[2], sums[3], of_queries);
  for (std::size_t k = 0; k < kQueries; ++k) logits[k * stride] = of_queries[k];
}

struct DecodedKeys {
  const float* numbers;
  std::size_t rows;
  std::size_t head_dim;
  std::size_t first;  // of the logits
};

template <class D>
struct ScoreF16Places {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const RowSide& side = layout_of(format).side;
    const RowPlaces& places = places_of(args.tile);
    const std::size_t head_dim = static_cast<std::size_t>(side.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    for (std::size_t r = begin; query == 0 && r < begin + kAhead; ++r) prefetch_row(places, r, side.row_bytes);
    for (std::size_t r = begin; r < end; ++r) {
      if (query == 0) prefetch_row(places, r + kAhead, side.row_bytes);
      dot_row<kQueries>(D(), F16Numbers{f16_at(places.rows[r], side)}, head_dim, args.q + query * head_dim,
                        args.logits + query * args.logit_stride + (r - begin), args.logit_stride);
    }
  }
};

void score_f16_places(const TileFormat& format, const ScoreArgs& args) {
  if (static_cast<std::size_t>(format.head_dim) % hn::Lanes(Wide()) == 0)
    return for_query_chunks<ScoreF16Places<Wide>>(format, args);
  for_query_chunks<ScoreF16Places<Narrow>>(format, args);
}

struct PairTurns {
  hn::Vec<Narrow> cosine;
  hn::Vec<Narrow> sine;
};

// Of pairs [i, i + Lanes) of a position.
HWY_INLINE PairTurns turns_at(RopeTable::Turn parts, std::size_t padded, std::size_t i) {
  const Narrow d;
  const auto a = hn::LoadU(d, parts.multiple + i);
  const auto b = hn::LoadU(d, parts.multiple + padded + i);
  const auto c = hn::LoadU(d, parts.rest + i);
  const auto e = hn::LoadU(d, parts.rest + padded + i);
  return {hn::NegMulAdd(b, e, hn::Mul(a, c)), hn::MulAdd(b, c, hn::Mul(a, e))};
}

HWY_INLINE void turn_neighbours(RopeTable::Turn parts, std::size_t padded, std::size_t pairs, float* HWY_RESTRICT row) {
  const Narrow d;
  for (std::size_t i = 0; i < pairs; i += hn::Lanes(d)) {
    hn::Vec<Narrow> a;
    hn::Vec<Narrow> b;
    hn::LoadInterleaved2(d, row + 2 * i, a, b);
    const PairTurns by = turns_at(parts, padded, i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, by.sine, hn::Mul(a, by.cosine)), hn::MulAdd(a, by.sine, hn::Mul(b, by.cosine)), d,
                          row + 2 * i);
  }
}

HWY_INLINE void turn_halves(RopeTable::Turn parts, std::size_t padded, std::size_t pairs, float* HWY_RESTRICT row) {
  const Narrow d;
  for (std::size_t i = 0; i < pairs; i += hn::Lanes(d)) {
    const auto a = hn::LoadU(d, row + i);
    const auto b = hn::LoadU(d, row + i + pairs);
    const PairTurns by = turns_at(parts, padded, i);
    hn::StoreU(hn::NegMulAdd(b, by.sine, hn::Mul(a, by.cosine)), d, row + i);
    hn::StoreU(hn::MulAdd(a, by.sine, hn::Mul(b, by.cosine)), d, row + i + pairs);
  }
}

HWY_INLINE void turn_row(const RowPlaces& places, std::size_t r, float* HWY_RESTRICT row) {
  const RopeTable& rope = *places.rope;
  const std::size_t pairs = static_cast<std::size_t>(rope.dims()) / 2;
  const std::size_t padded = static_cast<std::size_t>(rope.padded_pairs());
  if (pairs % hn::MaxLanes(Narrow()) != 0) return rope.rotate(row, places.positions[r]);
  const RopeTable::Turn parts = rope.of(places.positions[r]);
  if (rope.layout() == RopeLayout::kNeighbours) return turn_neighbours(parts, padded, pairs, row);
  turn_halves(parts, padded, pairs, row);
}

HWY_INLINE void decode_higgs4(const PlacesLayout& layout, const std::byte* from, float* HWY_RESTRICT row) {
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(from);
  const std::size_t head_dim = static_cast<std::size_t>(layout.side.head_dim);
  const float scale = scale_of(layout, from) / static_cast<float>(layout.side.head_dim);
  if (head_dim % (kHadamardVectors * hn::MaxLanes(Narrow())) == 0)
    return decode_points<2>(layout.points, codes, head_dim, scale, row);
  for (std::size_t c = 0; c < head_dim; ++c) row[c] = scale * layout.points[2 * codes[c / 2] + c % 2];
  walsh_hadamard(row, head_dim);
}

HWY_INLINE void widen_f16(const std::uint16_t* from, std::size_t count, float* HWY_RESTRICT row) {
  const Narrow d;
  for (std::size_t c = 0; c < count; c += hn::Lanes(d)) hn::StoreU(load_f16(d, from + c), d, row + c);
}

// Logits of decoded keys [rows, head_dim].
template <class D>
struct ScoreDecoded {
  template <int kQueries>
  static HWY_INLINE void run(const DecodedKeys& keys, const ScoreArgs& args, std::size_t query) {
    for (std::size_t r = 0; r < keys.rows; ++r) {
      dot_row<kQueries>(D(), FloatNumbers{keys.numbers + r * keys.head_dim}, keys.head_dim, args.q + query * keys.head_dim,
                        args.logits + query * args.logit_stride + keys.first + r, args.logit_stride);
    }
  }
};

// Keys that have to be decoded or turned: some rows at a time, step by step, so that each step finds independent work and does
// not wait for the one before.
void score_decoded_places(const TileFormat& format, const ScoreArgs& args) {
  const PlacesLayout& layout = layout_of(format);
  const RowSide& side = layout.side;
  const RowPlaces& places = places_of(args.tile);
  const std::size_t head_dim = static_cast<std::size_t>(side.head_dim);
  const std::size_t begin = static_cast<std::size_t>(args.begin);
  const std::size_t end = static_cast<std::size_t>(args.end);
  constexpr std::size_t kNumbers = 2 * kMostPlacedDim;
  alignas(64) float numbers[kNumbers];
  const std::size_t together = kNumbers / head_dim < kAhead ? kNumbers / head_dim : kAhead;
  for (std::size_t r = begin; r < begin + kAhead; ++r) {
    prefetch_row(places, r, side.row_bytes);
    if (side.unrotated) prefetch_turn(places, r);
  }
  for (std::size_t first = begin; first < end; first += together) {
    const std::size_t rows = end - first < together ? end - first : together;
    for (std::size_t r = 0; r < rows; ++r) {
      prefetch_row(places, first + r + kAhead, side.row_bytes);
      if (side.unrotated) prefetch_turn(places, first + r + kAhead);
      const std::byte* const row = places.rows[first + r];
      if (side.format == RowFormat::kHiggs4) {
        decode_higgs4(layout, row + side.at, numbers + r * head_dim);
      } else {
        widen_f16(f16_at(row, side), head_dim, numbers + r * head_dim);
      }
    }
    for (std::size_t r = 0; side.unrotated && r < rows; ++r) turn_row(places, first + r, numbers + r * head_dim);
    const DecodedKeys keys{numbers, rows, head_dim, first - begin};
    if (head_dim % hn::Lanes(Wide()) == 0) {
      for_query_chunks<ScoreDecoded<Wide>>(keys, args);
    } else {
      for_query_chunks<ScoreDecoded<Narrow>>(keys, args);
    }
  }
}

// ---- values

// out[query, c...] += sum over rows of weights[query, row] * numbers(row)[c...] for kVectors vectors of channels.
template <int kQueries, std::size_t kVectors, class D, class Load>
HWY_INLINE void add_channels(D d, const Load& load, const float* HWY_RESTRICT weights, std::size_t weight_stride,
                             std::size_t rows, std::size_t channel, float* HWY_RESTRICT out, std::size_t head_dim) {
  hn::Vec<D> sums[kQueries][kVectors];
  for (std::size_t k = 0; k < kQueries; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) sums[k][v] = hn::LoadU(d, out + k * head_dim + channel + v * hn::Lanes(d));
  }
  for (std::size_t r = 0; r < rows; ++r) {
    hn::Vec<D> numbers[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) numbers[v] = load.at(d, r, channel + v * hn::Lanes(d));
    for (std::size_t k = 0; k < kQueries; ++k) {
      const auto weight = hn::Set(d, weights[k * weight_stride + r]);
      for (std::size_t v = 0; v < kVectors; ++v) sums[k][v] = hn::MulAdd(weight, numbers[v], sums[k][v]);
    }
  }
  for (std::size_t k = 0; k < kQueries; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[k][v], d, out + k * head_dim + channel + v * hn::Lanes(d));
  }
}

template <int kQueries, class D, class Load>
HWY_INLINE void add_rows(D d, const Load& load, const float* weights, std::size_t weight_stride, std::size_t rows, float* out,
                         std::size_t head_dim) {
  std::size_t c = 0;
  for (; c + kSums * hn::Lanes(d) <= head_dim; c += kSums * hn::Lanes(d)) {
    add_channels<kQueries, kSums>(d, load, weights, weight_stride, rows, c, out, head_dim);
  }
  for (; c < head_dim; c += hn::Lanes(d)) {
    add_channels<kQueries, 1>(d, load, weights, weight_stride, rows, c, out, head_dim);
  }
}

struct LoadF16 {
  const std::byte* const* rows;
  std::size_t side_at;
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t r, std::size_t channel) const {
    return load_f16(d, reinterpret_cast<const std::uint16_t*>(rows[r] + side_at) + channel);
  }
};
struct LoadPoints {
  const std::byte* const* rows;
  std::size_t side_at;
  const float* points;
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t r, std::size_t channel) const {
    return points_of<2>(d, points, reinterpret_cast<const std::uint8_t*>(rows[r] + side_at) + channel / 2);
  }
};

template <class D>
struct AccumulateF16Places {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const RowSide& side = layout_of(format).side;
    const std::size_t head_dim = static_cast<std::size_t>(side.head_dim);
    add_rows<kQueries>(D(), LoadF16{places_of(args.tile).rows + args.begin, side.at}, args.weights + query * args.weight_stride,
                       args.weight_stride, static_cast<std::size_t>(args.end - args.begin), args.out + query * head_dim,
                       head_dim);
  }
};

void accumulate_f16_places(const TileFormat& format, const AccumulateArgs& args) {
  if (static_cast<std::size_t>(format.head_dim) % hn::Lanes(Wide()) == 0)
    return for_query_chunks<AccumulateF16Places<Wide>>(format, args);
  for_query_chunks<AccumulateF16Places<Narrow>>(format, args);
}

// Codes are summed with weight * scale; finish_higgs4 transforms the sums.
struct AccumulateHiggs4Places {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const PlacesLayout& layout = layout_of(format);
    const RowPlaces& places = places_of(args.tile);
    const std::size_t head_dim = static_cast<std::size_t>(layout.side.head_dim);
    const std::size_t rows = static_cast<std::size_t>(args.end - args.begin);
    float weights[kQueries * kRows];
    for (std::size_t r = 0; r < rows; ++r) {
      const float scale = scale_of(layout, places.rows[static_cast<std::size_t>(args.begin) + r] + layout.side.at);
      for (std::size_t k = 0; k < kQueries; ++k)
        weights[k * kRows + r] = scale * args.weights[(query + k) * args.weight_stride + r];
    }
    add_rows<kQueries>(Narrow(), LoadPoints{places.rows + args.begin, layout.side.at, layout.points}, weights, kRows, rows,
                       args.out + query * head_dim, head_dim);
  }
};

void accumulate_higgs4_places(const TileFormat& format, const AccumulateArgs& args) {
  for_query_chunks<AccumulateHiggs4Places>(format, args);
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(score_f16_places);
HWY_EXPORT(score_decoded_places);
HWY_EXPORT(accumulate_f16_places);
HWY_EXPORT(accumulate_higgs4_places);

namespace {

// Runs `kernel`, which reads rows; false: a row could not be read.
template <class Kernel>
bool reads_rows(const RowPlaces& places, const Kernel& kernel) {
  if (places.mapped == nullptr) {
    kernel();
    return true;
  }
  if (read_guarded({places.mapped, places.mapped_bytes}, std::ref(kernel))) return true;
  std::atomic_ref<std::uint32_t>(places.failed).store(1, std::memory_order_relaxed);
  return false;
}

// If both halves of a head's dimensions turn with each other, all of them have to for the kernel that works on whole vectors.
bool scores_by_bytes(const PlacesLayout& layout, const RowPlaces& places) {
  if (layout.score_by_bytes == nullptr) return false;
  if (!layout.side.unrotated || places.rope->layout() == RopeLayout::kNeighbours) return true;
  return places.rope->dims() == layout.side.head_dim;
}

void score_places(const TileFormat& format, const ScoreArgs& args) {
  const PlacesLayout& layout = layout_of(format);
  const RowPlaces& places = places_of(args.tile);
  const auto score = scores_by_bytes(layout, places) ? layout.score_by_bytes : layout.score;
  if (reads_rows(places, [&] { score(format, args); })) return;
  for (int query = 0; query < args.queries; ++query) {
    std::fill_n(args.logits + static_cast<std::size_t>(query) * args.logit_stride, args.end - args.begin, 0.0F);
  }
}

void accumulate_places(const TileFormat& format, const AccumulateArgs& args) {
  static_cast<void>(reads_rows(places_of(args.tile), [&] { layout_of(format).accumulate(format, args); }));
}

void finish_higgs4(const TileFormat& format, float* out, int queries) {
  const auto head_dim = static_cast<std::size_t>(format.head_dim);
  for (std::size_t query = 0; query < static_cast<std::size_t>(queries); ++query) {
    float* const row = out + query * head_dim;
    walsh_hadamard(row, head_dim);
    for (std::size_t c = 0; c < head_dim; ++c) row[c] /= static_cast<float>(format.head_dim);
  }
}

void decode_rows(const TileFormat& format, const RowPlaces& places, int begin, int end, MatView<float> out) {
  const PlacesLayout& layout = layout_of(format);
  for (int r = begin; r < end; ++r) {
    float* const row = out.row(static_cast<std::size_t>(r - begin));
    layout.codec.decode(places.rows[r] + layout.side.at, row);
    if (layout.side.unrotated) places.rope->rotate(row, places.positions[r]);
  }
}

void decode_places(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  const RowPlaces& places = places_of(tile);
  if (reads_rows(places, [&] { decode_rows(format, places, begin, end, out); })) return;
  for (std::size_t r = 0; r < out.rows; ++r) std::fill_n(out.row(r), out.cols, 0.0F);
}

Status encode_nothing(const TileFormat&, std::byte*, int, MatView<const float>) {
  return internal_error("rows that lie elsewhere are not written through their places");
}

}  // namespace

bool can_read_in_place(RowFormat format) { return format == RowFormat::kF16 || format == RowFormat::kHiggs4; }

TileFormat make_places_format(const RowSide& side, Side which) {
  KV_CHECK(can_read_in_place(side.format) && side.head_dim <= kMostPlacedDim);
  auto layout =
      std::make_shared<PlacesLayout>(PlacesLayout{.side = side, .codec = RowCodec::create(side.format, side.head_dim).value()});
  TileFormat format;
  format.name = std::string(row_format_name(side.format)) + " in place";
  format.side = which;
  format.head_dim = side.head_dim;
  format.tile_rows = kBlockRows;
  format.row_bytes = static_cast<int>(layout->codec.row_bytes());  // where they lie
  format.tile_bytes = sizeof(RowPlaces);
  format.kernels.encode = encode_nothing;
  format.kernels.decode = decode_places;
  if (which == Side::kKey) {
    const bool plain = side.format == RowFormat::kF16 && !side.unrotated;
    layout->score = plain ? SIMD_CHOOSE(score_f16_places) : SIMD_CHOOSE(score_decoded_places);
    format.kernels.score = score_places;
  } else {
    layout->accumulate =
        side.format == RowFormat::kF16 ? SIMD_CHOOSE(accumulate_f16_places) : SIMD_CHOOSE(accumulate_higgs4_places);
    format.kernels.accumulate = accumulate_places;
    if (side.format == RowFormat::kHiggs4) format.kernels.finish_output = finish_higgs4;
  }
  if (side.format == RowFormat::kHiggs4) choose_higgs4_avx512(which, layout.get());
  if (layout->codec.grid() != nullptr) layout->points = layout->codec.grid()->point(std::uint8_t{0});
  format.layout = std::move(layout);
  return format;
}

}  // namespace kvartet
#endif
