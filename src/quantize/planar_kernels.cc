#include "quantize/planar_kernels.h"

#include <cstring>

#include "quantize/planar_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/planar_kernels.cc"
#include "simd/dispatch.h"

#include "quantize/lane_products-inl.h"
#include "quantize/planar_products-inl.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kRows = kPlanarRows;
constexpr std::size_t kMostGroups = kPlanarMaxChannels / 32;

HWY_INLINE const std::uint32_t* codes_of(const CodePart& part, const std::byte* tile) {
  return reinterpret_cast<const std::uint32_t*>(tile + part.codes_at);
}
HWY_INLINE const std::uint16_t* scales_of(const CodePart& part, const std::byte* tile) {
  return reinterpret_cast<const std::uint16_t*>(tile + part.scales_at);
}
HWY_INLINE const std::uint16_t* minima_of(const CodePart& part, const std::byte* tile) {
  return reinterpret_cast<const std::uint16_t*>(tile + part.minima_at);
}

// The 32 lanes of a block, as many at a time as the registers allow (for_lanes, without its remainders: half as much code).
template <int kQueries, class Body>
HWY_INLINE void for_block_lanes(const Body& body) {
  const hn::CappedTag<float, 16> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr int kVectors = kLanes == 16 || kQueries == 4 ? 2 : 4;
  for (std::size_t lane = 0; lane < kBlockLanes; lane += kVectors * kLanes) body.template run<kVectors>(d, lane);
}

// Calls body.template run<Products>() with the products that these levels need.
template <class Body>
HWY_INLINE void with_products(const CodeLevels& levels, const Body& body) {
  if (levels.kind == LevelKind::kCode) {
    if (levels.bits == 4) return body.template run<ByteProducts<PlainCode<4>>>();
    return body.template run<ByteProducts<PlainCode<5>>>();
  }
  switch (levels.bits) {
    case 1: return body.template run<ByteProducts<ByteTable<1>>>();
    case 2: return body.template run<ByteProducts<ByteTable<2>>>();
    case 3: return body.template run<ByteProducts<ByteTable<3>>>();
    case 4: return body.template run<ByteProducts<ByteTable<4>>>();
    case 5: return body.template run<WideProducts<5>>();
    case 6: return body.template run<WideProducts<6>>();
    case 7: return body.template run<WideProducts<7>>();
    default: return body.template run<WideProducts<8>>();
  }
}

// ---- keys

// The queries as the products want them, and their sums per group of channels for bias and minimum.
template <int kQueries>
struct FoldedQueries {
  alignas(64) float x[kQueries * kPlanarMaxChannels];  // [query][channels]
  float sum[kQueries][kMostGroups];
};

template <int kQueries>
HWY_INLINE void fold_queries(const CodePart& part, const float* HWY_RESTRICT q, std::size_t q_stride,
                             FoldedQueries<kQueries>& folded) {
  const std::size_t channels = static_cast<std::size_t>(part.channels);
  const std::size_t group = static_cast<std::size_t>(part.group);
  const float* const step_scales = part.levels.kind == LevelKind::kWide ? kUnscaledSteps.of : kByteSteps.of;
  for (int k = 0; k < kQueries; ++k) {
    const float* HWY_RESTRICT from = q + static_cast<std::size_t>(k) * q_stride;
    float* HWY_RESTRICT to = folded.x + static_cast<std::size_t>(k) * channels;
    for (std::size_t g = 0; g * group < channels; ++g) {
      float partial[4] = {};
      for (std::size_t c = g * group; c < (g + 1) * group; c += 4) {
        for (std::size_t i = 0; i < 4; ++i) {
          partial[i] += from[c + i];
          to[c + i] = from[c + i] * step_scales[i];
        }
      }
      folded.sum[k][g] = (partial[0] + partial[2]) + (partial[1] + partial[3]);
    }
  }
}

// logits[query, token] += what one part adds, for the 32 tokens of a block.
template <class Products, int kQueries>
struct ScorePart {
  const CodePart* part = nullptr;
  const std::uint32_t* words = nullptr;   // of the block
  const std::uint16_t* scales = nullptr;  // at the block's first token
  const std::uint16_t* minima = nullptr;
  std::uintptr_t ahead = 0;
  const FoldedQueries<kQueries>* folded = nullptr;
  float* logits = nullptr;  // [kQueries, kRows]

  template <int kVectors, class D>
  HWY_NOINLINE void run(D d, std::size_t lane) const {
    constexpr std::size_t kLanes = hn::MaxLanes(D());
    const std::size_t channels = static_cast<std::size_t>(part->channels);
    const std::size_t group = static_cast<std::size_t>(part->group);
    const Products products(part->levels);
    const std::uint32_t* word = words + lane;
    for (std::size_t g = 0; g * group < channels; ++g) {
      prefetch_ahead(scales + g * kRows + lane, ahead);
      LaneSums<kQueries, kVectors, D> sums;
      sums.clear(d);
      word = products.add(d, word, group / 32, ahead, folded->x + g * group, channels, sums);
      for (int v = 0; v < kVectors; ++v) {
        const auto scale = hn::Mul(load_f16(d, scales + g * kRows + lane + v * kLanes), hn::Set(d, part->levels.unit));
        for (int k = 0; k < kQueries; ++k) {
          float* const logit = logits + k * kRows + lane + v * kLanes;
          const float bias = part->levels.bias * folded->sum[k][g];
          auto sum = hn::MulAdd(scale, hn::Sub(sums.of[k][v], hn::Set(d, bias)), hn::LoadU(d, logit));
          if (part->has_minimum) {
            const auto minimum = load_f16(d, minima + g * kRows + lane + v * kLanes);
            sum = hn::MulAdd(minimum, hn::Set(d, folded->sum[k][g]), sum);
          }
          hn::StoreU(sum, d, logit);
        }
      }
    }
  }
};

template <class Products, int kQueries>
HWY_NOINLINE void score_part(const CodePart& part, const ScoreArgs& args, const float* q, std::size_t q_stride, float* logits) {
  FoldedQueries<kQueries> folded;
  fold_queries<kQueries>(part, q + part.first, q_stride, folded);
  const std::size_t first = static_cast<std::size_t>(args.begin) / kBlockLanes * kBlockLanes;
  const std::size_t block_words = static_cast<std::size_t>(part.channels * part.bits);
  for (std::size_t t = first; t < static_cast<std::size_t>(args.end); t += kBlockLanes) {
    for_block_lanes<kQueries>(ScorePart<Products, kQueries>{&part, codes_of(part, args.tile) + t / kBlockLanes * block_words,
                                                            scales_of(part, args.tile) + t, minima_of(part, args.tile) + t,
                                                            bytes_ahead(args.tile, args.next), &folded, logits + t});
  }
}

template <int kQueries>
struct ScoreOnePart {
  const CodePart& part;
  const ScoreArgs& args;
  const float* q;
  std::size_t q_stride;
  float* logits;
  template <class Products>
  HWY_INLINE void run() const {
    score_part<Products, kQueries>(part, args, q, q_stride, logits);
  }
};

struct ScorePlanar {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    const std::size_t stride = static_cast<std::size_t>(format.planar->inputs);
    alignas(64) float logits[kQueries * kRows] = {};
    for (int p = 0; p < format.planar->part_count; ++p) {
      const CodePart& part = format.planar->parts[p];
      with_products(part.levels, ScoreOnePart<kQueries>{part, args, args.q + query * stride, stride, logits});
    }
    for (std::size_t k = 0; k < kQueries; ++k) {
      std::memcpy(args.logits + (query + k) * args.logit_stride, logits + k * kRows + begin, (end - begin) * sizeof(float));
    }
  }
};

// ---- values

// The weights of whole runs of 32 rows, times the scale of their rows; rows outside [begin, end) weigh nothing.
template <int kQueries>
struct FoldedWeights {
  alignas(64) float x[kQueries * kRows];
  float offset[kQueries];  // what bias and minimum add to every channel
};

template <int kQueries>
HWY_INLINE void fold_weights(const CodePart& part, std::size_t group, const AccumulateArgs& args, const float* weights,
                             FoldedWeights<kQueries>& folded) {
  const hn::CappedTag<float, 8> d;
  const std::size_t begin = static_cast<std::size_t>(args.begin);
  const std::size_t end = static_cast<std::size_t>(args.end);
  const std::size_t first = begin / 32 * 32;
  const std::size_t count = (end + 31) / 32 * 32 - first;
  const std::uint16_t* const scales = scales_of(part, args.tile) + group * kRows + first;
  const std::uint16_t* const minima = minima_of(part, args.tile) + group * kRows + first;
  const auto steps = hn::LoadU(d, part.levels.kind == LevelKind::kWide ? kUnscaledSteps.of : kByteSteps.of);
  const auto unit = hn::Set(d, part.levels.unit);
  prefetch_ahead(scales, bytes_ahead(args.tile, args.next));
  if (begin != first || end != first + count) std::memset(folded.x, 0, sizeof(folded.x));
  for (std::size_t k = 0; k < kQueries; ++k) {
    std::memcpy(folded.x + k * kRows + (begin - first), weights + k * args.weight_stride, (end - begin) * sizeof(float));
  }
  hn::Vec<decltype(d)> scaled_sum[kQueries];
  hn::Vec<decltype(d)> minimum_sum[kQueries];
  for (std::size_t k = 0; k < kQueries; ++k) scaled_sum[k] = minimum_sum[k] = hn::Zero(d);
  for (std::size_t r = 0; r < count; r += hn::MaxLanes(d)) {
    const auto scale = hn::Mul(load_f16(d, scales + r), unit);
    const auto minimum = part.has_minimum ? load_f16(d, minima + r) : hn::Zero(d);
    for (std::size_t k = 0; k < kQueries; ++k) {
      float* const x = folded.x + k * kRows + r;
      const auto weight = hn::LoadU(d, x);
      const auto scaled = hn::Mul(weight, scale);
      scaled_sum[k] = hn::Add(scaled_sum[k], scaled);
      minimum_sum[k] = hn::MulAdd(weight, minimum, minimum_sum[k]);
      hn::StoreU(hn::Mul(scaled, steps), d, x);
    }
  }
  for (std::size_t k = 0; k < kQueries; ++k) {
    folded.offset[k] =
        hn::GetLane(hn::SumOfLanes(d, minimum_sum[k])) - part.levels.bias * hn::GetLane(hn::SumOfLanes(d, scaled_sum[k]));
  }
}

// out[query, channel] += offset + weighted codes, for 32 channels.
template <class Products, int kQueries>
struct AccumulatePart {
  const CodePart* part = nullptr;
  const std::uint32_t* words = nullptr;  // of the block of channels, at the first row
  std::size_t word_groups = 0;
  std::uintptr_t ahead = 0;
  const FoldedWeights<kQueries>* folded = nullptr;
  float* out = nullptr;
  std::size_t out_stride = 0;

  template <int kVectors, class D>
  HWY_NOINLINE void run(D d, std::size_t lane) const {
    const Products products(part->levels);
    LaneSums<kQueries, kVectors, D> sums;
    sums.clear(d);
    products.add(d, words + lane, word_groups, ahead, folded->x, kRows, sums);
    for (int k = 0; k < kQueries; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        float* const to = out + static_cast<std::size_t>(k) * out_stride + lane + v * hn::MaxLanes(D());
        hn::StoreU(hn::Add(hn::LoadU(d, to), hn::Add(sums.of[k][v], hn::Set(d, folded->offset[k]))), d, to);
      }
    }
  }
};

template <class Products, int kQueries>
HWY_NOINLINE void accumulate_part(const CodePart& part, const AccumulateArgs& args, const float* weights, float* out,
                                  std::size_t out_stride) {
  const std::size_t first = static_cast<std::size_t>(args.begin) / 32;
  const std::size_t word_groups = (static_cast<std::size_t>(args.end) + 31) / 32 - first;
  const std::size_t row_group_words = static_cast<std::size_t>(part.bits) * kBlockLanes;
  const std::size_t group = static_cast<std::size_t>(part.group);
  FoldedWeights<kQueries> folded;
  for (std::size_t c = 0; c < static_cast<std::size_t>(part.channels); c += kBlockLanes) {
    if (c % group == 0) fold_weights<kQueries>(part, c / group, args, weights, folded);
    const std::uint32_t* const words = codes_of(part, args.tile) + (c / kBlockLanes * (kRows / 32) + first) * row_group_words;
    for_block_lanes<kQueries>(AccumulatePart<Products, kQueries>{&part, words, word_groups, bytes_ahead(args.tile, args.next),
                                                                 &folded, out + part.first + c, out_stride});
  }
}

template <int kQueries>
struct AccumulateOnePart {
  const CodePart& part;
  const AccumulateArgs& args;
  const float* weights;
  float* out;
  std::size_t out_stride;
  template <class Products>
  HWY_INLINE void run() const {
    accumulate_part<Products, kQueries>(part, args, weights, out, out_stride);
  }
};

struct AccumulatePlanar {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    for (int p = 0; p < format.planar->part_count; ++p) {
      const CodePart& part = format.planar->parts[p];
      const float* const weights = args.weights + query * args.weight_stride;
      with_products(part.levels, AccumulateOnePart<kQueries>{part, args, weights, args.out + query * head_dim, head_dim});
    }
  }
};

void score_planar(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScorePlanar>(format, args); }
void accumulate_planar(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<AccumulatePlanar>(format, args); }

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(score_planar);
HWY_EXPORT(accumulate_planar);

PlanarKernels planar_kernels() { return {SIMD_CHOOSE(score_planar), SIMD_CHOOSE(accumulate_planar)}; }

}  // namespace kvartet
#endif
