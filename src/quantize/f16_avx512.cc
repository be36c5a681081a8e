// Scores and weighted sums over f16 rows with four vectors of lanes at a time: twelve sums and more hide the latency of
// multiply-add, and a coefficient is broadcast once for 64 lanes.
#include <cstddef>
#include <cstdint>

#include "quantize/f16_kernels.h"
#include "quantize/integer_products_avx512.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet::vnni {
namespace {

constexpr std::size_t kTileRows = 64;

template <int kQueries>
struct FloatSums {
  __m512 of[kQueries][4];
};

// sums[query, lane] += x[query, step] * row(step)[lane] for two blocks of 32 lanes, whose steps lie 32 numbers apart.
template <int kQueries>
KVARTET_VNNI_INLINE void add_steps(const std::uint16_t* block0, const std::uint16_t* block1, std::size_t steps,
                                   std::uintptr_t ahead, const float* x, std::size_t x_stride, FloatSums<kQueries>& sums) {
  for (std::size_t step = 0; step < steps; ++step, block0 += kBlockLanes, block1 += kBlockLanes) {
    prefetch_ahead(block0, ahead);
    prefetch_ahead(block1, ahead);
    const __m512 value[4] = {load_f16(block0), load_f16(block0 + kLanes), load_f16(block1), load_f16(block1 + kLanes)};
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      const __m512 coefficient = _mm512_set1_ps(x[k * x_stride + step]);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sums.of[k][v] = _mm512_fmadd_ps(coefficient, value[v], sums.of[k][v]);
    }
  }
}

struct ScoreF16 {
  template <int kQueries>
  __attribute__((noinline)) static void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    const std::uint16_t* const keys = reinterpret_cast<const std::uint16_t*>(args.tile);
    // A block that is not asked for is read all the same, as the other one.
    const std::size_t block0 = begin < kBlockLanes ? 0 : 1;
    const std::size_t block1 = end > kBlockLanes ? 1 : 0;
    FloatSums<kQueries> sums;
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kQueries; ++k) {
      sums.of[k][0] = sums.of[k][1] = sums.of[k][2] = sums.of[k][3] = _mm512_setzero_ps();
    }
    add_steps(keys + block0 * kBlockLanes * head_dim, keys + block1 * kBlockLanes * head_dim, head_dim,
              bytes_ahead(args.tile, args.next), args.q + query * head_dim, head_dim, sums);
    float* const logits = args.logits + query * args.logit_stride;
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) {
      const std::size_t t = v * kLanes;
      const __mmask16 wanted = lanes_in(t, begin, end);
      float* const to = t < begin ? logits - (begin - t) : logits + (t - begin);  // what lies before the first is masked
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kQueries; ++k) {
        _mm512_mask_storeu_ps(to + k * args.logit_stride, wanted, sums.of[k][v]);
      }
    }
  }
};

struct AccumulateF16 {
  template <int kQueries>
  __attribute__((noinline)) static void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t rows = static_cast<std::size_t>(args.end) - begin;
    const std::uint16_t* const values = reinterpret_cast<const std::uint16_t*>(args.tile) + begin * kBlockLanes;
    for (std::size_t c = 0; c < head_dim; c += 2 * kBlockLanes) {
      float* const out = args.out + query * head_dim + c;
      FloatSums<kQueries> sums;
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kQueries; ++k) {
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) sums.of[k][v] = _mm512_loadu_ps(out + k * head_dim + v * kLanes);
      }
      add_steps(values + c * kTileRows, values + (c + kBlockLanes) * kTileRows, rows, bytes_ahead(args.tile, args.next),
                args.weights + query * args.weight_stride, args.weight_stride, sums);
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kQueries; ++k) {
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; ++v) _mm512_storeu_ps(out + k * head_dim + v * kLanes, sums.of[k][v]);
      }
    }
  }
};

void score_f16(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScoreF16>(format, args); }
void accumulate_f16(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<AccumulateF16>(format, args); }

}  // namespace
}  // namespace kvartet::vnni
KVARTET_END_AVX512
#endif

namespace kvartet {

F16Kernels f16_kernels_avx512(int head_dim) {
#if KVARTET_HAS_AVX512
  if (uses_extension(SimdExtension::kVnni) && head_dim % 64 == 0) return {vnni::score_f16, vnni::accumulate_f16};
#endif
  (void)head_dim;
  return {};
}

}  // namespace kvartet
