// The inner loops over planar codes (quantize/planar_rows.h), per target: sums[query, lane] += x[query, step] * level(code).
//
// Four steps of a lane come as four bytes. Each byte is used where it lies: masked, not shifted, it is 2^(8 i) times too
// large, and x carries 2^(-8 i) (kByteSteps). Both scalings are exact. Only the topmost byte is shifted down, because
// masked it would look negative. Unit and bias of the levels are the caller's business.
#if defined(KVARTET_QUANTIZE_PLANAR_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTET_QUANTIZE_PLANAR_PRODUCTS_INL_H_
#undef KVARTET_QUANTIZE_PLANAR_PRODUCTS_INL_H_
#else
#define KVARTET_QUANTIZE_PLANAR_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "quantize/lane_products-inl.h"
#include "quantize/planar_rows.h"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct FourSteps {
  alignas(16) float of[4];
};
alignas(16) constexpr FourSteps kByteSteps = {{1.0F, 0x1p-8F, 0x1p-16F, 1.0F}};
alignas(16) constexpr FourSteps kUnscaledSteps = {{1.0F, 1.0F, 1.0F, 1.0F}};

// The codes of steps [4 quad, 4 quad + 4) of a lane, each in its byte, for quad = 4 half + kQuad. `word` is the lane's first of
// kBits words. The halves are a loop, not unrolled: it keeps the kernels half as long.
template <int kBits, int kQuad, class DU>
HWY_INLINE hn::Vec<DU> four_codes(DU du, const std::uint32_t* HWY_RESTRICT word, std::size_t half) {
  const auto mask = hn::Set(du, ((1U << (kBits & 7)) - 1U) * 0x01010101U);
  if constexpr (kBits == 8) {
    return hn::LoadU(du, word + (4 * half + kQuad) * kPlanarLanes);
  } else if constexpr (kBits == 4) {
    const auto lanes = hn::LoadU(du, word + (2 * half + kQuad / 2) * kPlanarLanes);
    return hn::And(hn::ShiftRight<kQuad % 2 * 4>(lanes), mask);
  } else if constexpr (kBits == 2) {
    return hn::And(hn::ShiftRight<kQuad * 2>(hn::LoadU(du, word + half * kPlanarLanes)), mask);
  } else if constexpr (kBits == 1) {
    return hn::And(hn::ShiftRightSame(hn::LoadU(du, word), kQuad + 4 * static_cast<int>(half)), mask);
  } else {
    constexpr int kLow = kBits > 4 ? 4 : 2;  // the widest plane
    const auto low = four_codes<kLow, kQuad>(du, word, half);
    const auto high = four_codes<kBits - kLow, kQuad>(du, word + kLow * kPlanarLanes, half);
    return hn::Or(low, hn::ShiftLeft<kLow>(high));
  }
}

template <int kQueries, int kVector, int kVectors, class D>
HWY_INLINE void add_step(D d, hn::Vec<D> value, const float* HWY_RESTRICT x, std::size_t x_stride,
                         LaneSums<kQueries, kVectors, D>& sums) {
  for (int q = 0; q < kQueries; ++q) {
    sums.of[q][kVector] = hn::MulAdd(hn::Set(d, x[static_cast<std::size_t>(q) * x_stride]), value, sums.of[q][kVector]);
  }
}

// Four bytes of levels of one vector of lanes.
template <int kQueries, int kVector, int kVectors, class D, class VU>
HWY_INLINE void add_four_bytes(D d, VU bytes, const float* HWY_RESTRICT x, std::size_t x_stride,
                               LaneSums<kQueries, kVectors, D>& sums) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto widen = [&](VU level) HWY_ATTR { return hn::ConvertTo(d, hn::BitCast(di, level)); };
  add_step<kQueries, kVector>(d, widen(hn::And(bytes, hn::Set(du, 0xffU))), x, x_stride, sums);
  add_step<kQueries, kVector>(d, widen(hn::And(bytes, hn::Set(du, 0xff00U))), x + 1, x_stride, sums);
  add_step<kQueries, kVector>(d, widen(hn::And(bytes, hn::Set(du, 0xff0000U))), x + 2, x_stride, sums);
  add_step<kQueries, kVector>(d, widen(hn::ShiftRight<24>(bytes)), x + 3, x_stride, sums);
}

// Levels by a table of 16 bytes.
template <int kWidth>
struct ByteTable {
  static constexpr int kBits = kWidth;
  const std::uint8_t* bytes;
  template <class DU>
  HWY_INLINE hn::Vec<DU> look_up(DU du, hn::Vec<DU> codes) const {
    const hn::Repartition<std::uint8_t, DU> du8;
    return hn::BitCast(du, hn::TableLookupBytes(hn::LoadDup128(du8, bytes), hn::BitCast(du8, codes)));
  }
};
// The code is its level.
template <int kWidth>
struct PlainCode {
  static constexpr int kBits = kWidth;
  template <class DU>
  HWY_INLINE hn::Vec<DU> look_up(DU, hn::Vec<DU> codes) const {
    return codes;
  }
};

template <class Levels>
struct ByteProducts {
  static constexpr int kBits = Levels::kBits;
  Levels levels;

  // Adds `word_groups` times 32 steps; returns the word behind them.
  template <int kQueries, int kVectors, class D>
  HWY_INLINE const std::uint32_t* add(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t word_groups, std::uintptr_t ahead,
                                      const float* HWY_RESTRICT x, std::size_t x_stride,
                                      LaneSums<kQueries, kVectors, D>& sums) const {
    for (std::size_t g = 0; g < word_groups; ++g, word += kBits * kPlanarLanes, x += 32) {
      for (int w = 0; w < kBits; ++w) {
        prefetch_ahead(word + w * kPlanarLanes, ahead);
        if constexpr (kVectors * hn::MaxLanes(D()) > 16) prefetch_ahead(word + w * kPlanarLanes + 16, ahead);
      }
      for (std::size_t half = 0; half < 2; ++half) {
        const float* HWY_RESTRICT from = x + 16 * half;
        add_quad<0>(d, word, half, from, x_stride, sums);
        add_quad<1>(d, word, half, from + 4, x_stride, sums);
        add_quad<2>(d, word, half, from + 8, x_stride, sums);
        add_quad<3>(d, word, half, from + 12, x_stride, sums);
      }
    }
    return word;
  }

  template <int kQuad, int kQueries, int kVectors, class D>
  HWY_INLINE void add_quad(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t half, const float* HWY_RESTRICT x,
                           std::size_t x_stride, LaneSums<kQueries, kVectors, D>& sums) const {
    constexpr std::size_t kLanes = hn::MaxLanes(D());
    add_vector<kQuad, 0>(d, word, half, x, x_stride, sums);
    if constexpr (kVectors > 1) add_vector<kQuad, 1>(d, word + kLanes, half, x, x_stride, sums);
    if constexpr (kVectors > 2) add_vector<kQuad, 2>(d, word + 2 * kLanes, half, x, x_stride, sums);
    if constexpr (kVectors > 2) add_vector<kQuad, 3>(d, word + 3 * kLanes, half, x, x_stride, sums);
  }

  template <int kQuad, int kVector, int kQueries, int kVectors, class D>
  HWY_INLINE void add_vector(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t half, const float* HWY_RESTRICT x,
                             std::size_t x_stride, LaneSums<kQueries, kVectors, D>& sums) const {
    const hn::RebindToUnsigned<D> du;
    const auto bytes = levels.look_up(du, four_codes<kBits, kQuad>(du, word, half));
    add_four_bytes<kQueries, kVector>(d, bytes, x, x_stride, sums);
  }
};

template <int kBits>
struct TableProducts : ByteProducts<ByteTable<kBits>> {
  explicit HWY_INLINE TableProducts(const CodeLevels& levels) : ByteProducts<ByteTable<kBits>>{{levels.bytes}} {}
};
template <int kBits>
struct CodeProductsOf : ByteProducts<PlainCode<kBits>> {
  explicit HWY_INLINE CodeProductsOf(const CodeLevels&) {}
};

// Codes of 5 to 8 bits with levels of their own: gathered, for studies of quality rather than for speed.
struct WideProducts {
  const CodeLevels* levels;
  explicit HWY_INLINE WideProducts(const CodeLevels& l) : levels(&l) {}

  template <int kQueries, int kVectors, class D>
  HWY_INLINE const std::uint32_t* add(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t word_groups, std::uintptr_t ahead,
                                      const float* HWY_RESTRICT x, std::size_t x_stride,
                                      LaneSums<kQueries, kVectors, D>& sums) const {
    switch (levels->bits) {
      case 5: return add_groups<5>(d, word, word_groups, ahead, x, x_stride, sums);
      case 6: return add_groups<6>(d, word, word_groups, ahead, x, x_stride, sums);
      case 7: return add_groups<7>(d, word, word_groups, ahead, x, x_stride, sums);
      default: return add_groups<8>(d, word, word_groups, ahead, x, x_stride, sums);
    }
  }

  template <int kBits, int kQueries, int kVectors, class D>
  HWY_INLINE const std::uint32_t* add_groups(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t word_groups,
                                             std::uintptr_t ahead, const float* HWY_RESTRICT x, std::size_t x_stride,
                                             LaneSums<kQueries, kVectors, D>& sums) const {
    for (std::size_t g = 0; g < word_groups; ++g, word += kBits * kPlanarLanes, x += 32) {
      for (int w = 0; w < kBits; ++w) prefetch_ahead(word + w * kPlanarLanes, ahead);
      for (std::size_t half = 0; half < 2; ++half) {
        const float* HWY_RESTRICT from = x + 16 * half;
        add_quad<kBits, 0>(d, word, half, from, x_stride, sums);
        add_quad<kBits, 1>(d, word, half, from + 4, x_stride, sums);
        add_quad<kBits, 2>(d, word, half, from + 8, x_stride, sums);
        add_quad<kBits, 3>(d, word, half, from + 12, x_stride, sums);
      }
    }
    return word;
  }

  template <int kBits, int kQuad, int kQueries, int kVectors, class D>
  HWY_INLINE void add_quad(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t half, const float* HWY_RESTRICT x,
                           std::size_t x_stride, LaneSums<kQueries, kVectors, D>& sums) const {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto mask = hn::Set(du, 0xffU);
    for (int v = 0; v < kVectors; ++v) {
      const auto codes = four_codes<kBits, kQuad>(du, word + static_cast<std::size_t>(v) * hn::MaxLanes(D()), half);
      const hn::Vec<decltype(du)> index[4] = {hn::And(codes, mask), hn::And(hn::ShiftRight<8>(codes), mask),
                                              hn::And(hn::ShiftRight<16>(codes), mask), hn::ShiftRight<24>(codes)};
      for (std::size_t i = 0; i < 4; ++i) {
        const auto value = hn::GatherIndex(d, levels->values, hn::BitCast(di, index[i]));
        for (int q = 0; q < kQueries; ++q) {
          const auto coefficient = hn::Set(d, x[static_cast<std::size_t>(q) * x_stride + i]);
          sums.of[q][v] = hn::MulAdd(coefficient, value, sums.of[q][v]);
        }
      }
    }
  }
};

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
