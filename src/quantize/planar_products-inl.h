// The inner loops over planar codes (quantize/planar_rows.h), per target: sums[query, lane] += x[query, step] * level(code).
//
// In two passes over 32 steps: the codes are unpacked and looked up into a few hundred bytes of the first-level cache, then
// multiplied. In one pass, sums, coefficients, masks and table would not fit the registers.
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

// The factors of four steps, twice.
struct StepFactors {
  alignas(32) float of[8];
};
alignas(32) constexpr StepFactors kByteSteps = {{1.0F, 0x1p-8F, 0x1p-16F, 1.0F, 1.0F, 0x1p-8F, 0x1p-16F, 1.0F}};
alignas(32) constexpr StepFactors kUnscaledSteps = {{1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F}};

inline constexpr std::size_t kWordSteps = 32;  // the steps of the words that belong together

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

// Calls body(bytes, quad, vector) with the four codes of every quad of steps of kVectors vectors of lanes.
template <int kBits, int kVectors, class D, class Body>
HWY_INLINE void for_four_codes(D, const std::uint32_t* HWY_RESTRICT word, const Body& body) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  const hn::RebindToUnsigned<D> du;
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      body(four_codes<kBits, 0>(du, word + v * kLanes, half), 4 * half, v);
      body(four_codes<kBits, 1>(du, word + v * kLanes, half), 4 * half + 1, v);
      body(four_codes<kBits, 2>(du, word + v * kLanes, half), 4 * half + 2, v);
      body(four_codes<kBits, 3>(du, word + v * kLanes, half), 4 * half + 3, v);
    }
  }
}

template <int kBits, int kVectors, class D>
HWY_INLINE void prefetch_words(D, const std::uint32_t* word, std::uintptr_t ahead) {
  for (int w = 0; w < kBits; ++w) {
    prefetch_ahead(word + w * kPlanarLanes, ahead);
    if constexpr (kVectors * hn::MaxLanes(D()) > 16) prefetch_ahead(word + w * kPlanarLanes + 16, ahead);
  }
}

// Levels of one byte: by a table of 16 bytes, or the code itself.
template <int kWidth>
struct ByteTable {
  static constexpr int kBits = kWidth;
  const std::uint8_t* bytes;
  explicit HWY_INLINE ByteTable(const CodeLevels& levels) : bytes(levels.bytes) {}
  template <class DU>
  HWY_INLINE hn::Vec<DU> look_up(DU du, hn::Vec<DU> codes) const {
    const hn::Repartition<std::uint8_t, DU> du8;
    return hn::BitCast(du, hn::TableLookupBytes(hn::LoadDup128(du8, bytes), hn::BitCast(du8, codes)));
  }
};
template <int kWidth>
struct PlainCode {
  static constexpr int kBits = kWidth;
  PlainCode() = default;
  explicit HWY_INLINE PlainCode(const CodeLevels&) {}
  template <class DU>
  HWY_INLINE hn::Vec<DU> look_up(DU, hn::Vec<DU> codes) const {
    return codes;
  }
};

// 32 steps of kVectors vectors of lanes, unpacked, and the masks of the three lower bytes.
template <int kVectors, class D>
struct UnpackedSteps {
  static constexpr std::size_t kLanes = hn::MaxLanes(D());
  alignas(64) std::uint32_t quads[kWordSteps / 4][kVectors][kLanes];  // four steps in a lane
  alignas(64) std::uint32_t masks[3][kLanes];

  explicit HWY_INLINE UnpackedSteps(D) {
    const hn::RebindToUnsigned<D> du;
    for (std::size_t i = 0; i < 3; ++i) hn::Store(hn::Set(du, 0xffU << (8 * i)), du, masks[i]);
  }
};

// Step kStep of a quad, vectors kVector and up.
template <std::size_t kStep, int kVector, int kQueries, int kVectors, class D>
HWY_INLINE void add_vectors(D d, const UnpackedSteps<kVectors, D>& steps, std::size_t quad, const hn::Vec<D>* coefficient,
                            LaneSums<kQueries, kVectors, D>& sums) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  HWY_FENCE;  // reads the mask from memory again: 12 sums, 3 coefficients and a value fill the 16 registers
  auto level = hn::Load(du, steps.quads[quad][kVector]);
  if constexpr (kStep == 3) level = hn::ShiftRight<24>(level);
  if constexpr (kStep < 3) level = hn::And(level, hn::Load(du, steps.masks[kStep]));
  const auto value = hn::ConvertTo(d, hn::BitCast(di, level));
  for (int q = 0; q < kQueries; ++q) sums.of[q][kVector] = hn::MulAdd(coefficient[q], value, sums.of[q][kVector]);
  if constexpr (kVector + 1 < kVectors) add_vectors<kStep, kVector + 1>(d, steps, quad, coefficient, sums);
}

// Step kStep of every quad.
template <std::size_t kStep, int kQueries, int kVectors, class D>
HWY_INLINE void add_one_step(D d, const UnpackedSteps<kVectors, D>& steps, const float* HWY_RESTRICT x, std::size_t x_stride,
                             LaneSums<kQueries, kVectors, D>& sums) {
#pragma GCC unroll 1
  for (std::size_t quad = 0; quad < kWordSteps / 4; ++quad, x += 4) {
    hn::Vec<D> coefficient[kQueries];
    for (std::size_t q = 0; q < kQueries; ++q) coefficient[q] = hn::Set(d, x[q * x_stride + kStep]);
    add_vectors<kStep, 0>(d, steps, quad, coefficient, sums);
  }
}

// A function of its own, in loops that are not unrolled: only so g++ keeps all sums in registers.
template <int kQueries, int kVectors, class D>
HWY_NOINLINE void add_byte_products(D d, const UnpackedSteps<kVectors, D>& steps, const float* HWY_RESTRICT x,
                                    std::size_t x_stride, LaneSums<kQueries, kVectors, D>& total) {
  LaneSums<kQueries, kVectors, D> sums = total;
  add_one_step<0>(d, steps, x, x_stride, sums);
  add_one_step<1>(d, steps, x, x_stride, sums);
  add_one_step<2>(d, steps, x, x_stride, sums);
  add_one_step<3>(d, steps, x, x_stride, sums);
  total = sums;
}

template <class Levels>
struct ByteProducts {
  Levels levels;
  ByteProducts() = default;
  explicit HWY_INLINE ByteProducts(const CodeLevels& l) : levels(l) {}

  // Adds `word_groups` times 32 steps; returns the word behind them.
  template <int kQueries, int kVectors, class D>
  HWY_INLINE const std::uint32_t* add(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t word_groups, std::uintptr_t ahead,
                                      const float* HWY_RESTRICT x, std::size_t x_stride,
                                      LaneSums<kQueries, kVectors, D>& sums) const {
    const hn::RebindToUnsigned<D> du;
    UnpackedSteps<kVectors, D> steps(d);
    for (std::size_t g = 0; g < word_groups; ++g, word += Levels::kBits * kPlanarLanes, x += kWordSteps) {
      prefetch_words<Levels::kBits, kVectors>(d, word, ahead);
      for_four_codes<Levels::kBits, kVectors>(d, word,
                                              [&](hn::Vec<decltype(du)> codes, std::size_t quad, std::size_t v)
                                                  HWY_ATTR { hn::Store(levels.look_up(du, codes), du, steps.quads[quad][v]); });
      add_byte_products(d, steps, x, x_stride, sums);
    }
    return word;
  }
};

// table[code] for codes of more than 4 bits: every run of 16 entries is looked up, and the upper bits of the code choose.
template <int kEntries, class DB>
HWY_INLINE hn::Vec<DB> look_up_bytes(DB db, const std::uint8_t* HWY_RESTRICT table, hn::Vec<DB> nibbles, hn::Vec<DB> codes) {
  if constexpr (kEntries == 16) {
    return hn::TableLookupBytes(hn::LoadDup128(db, table), nibbles);
  } else {
    const auto low = look_up_bytes<kEntries / 2>(db, table, nibbles, codes);
    const auto high = look_up_bytes<kEntries / 2>(db, table + kEntries / 2, nibbles, codes);
    return hn::IfThenElse(hn::TestBit(codes, hn::Set(db, kEntries / 2)), high, low);
  }
}

// Codes of 5 to 8 bits with levels of their own, 16 bits wide: unpacked to floats.
template <int kBits>
struct WideProducts {
  const CodeLevels* levels;
  explicit HWY_INLINE WideProducts(const CodeLevels& l) : levels(&l) {}

  template <int kQueries, int kVectors, class D>
  HWY_INLINE const std::uint32_t* add(D d, const std::uint32_t* HWY_RESTRICT word, std::size_t word_groups, std::uintptr_t ahead,
                                      const float* HWY_RESTRICT x, std::size_t x_stride,
                                      LaneSums<kQueries, kVectors, D>& sums) const {
    constexpr std::size_t kWidth = kVectors * hn::MaxLanes(D());
    const hn::RebindToUnsigned<D> du;
    alignas(64) float rows[kWordSteps * kWidth];
    for (std::size_t g = 0; g < word_groups; ++g, word += kBits * kPlanarLanes, x += kWordSteps) {
      prefetch_words<kBits, kVectors>(d, word, ahead);
      for_four_codes<kBits, kVectors>(d, word, [&](hn::Vec<decltype(du)> codes, std::size_t quad, std::size_t v) HWY_ATTR {
        store_levels<kWidth>(d, codes, rows + 4 * quad * kWidth + v * hn::MaxLanes(D()));
      });
      add_rows(d, rows, x, x_stride, sums);
    }
    return word;
  }

  // A function of its own for the same reason as add_byte_products.
  template <int kQueries, int kVectors, class D>
  static HWY_NOINLINE void add_rows(D d, const float* HWY_RESTRICT rows, const float* HWY_RESTRICT x, std::size_t x_stride,
                                    LaneSums<kQueries, kVectors, D>& total) {
    LaneSums<kQueries, kVectors, D> sums = total;
    add_products(d, PlainRows<float>{rows, kVectors * hn::MaxLanes(D()), 0}, kWordSteps, x, x_stride, sums);
    total = sums;
  }

  // The levels of four codes, kWidth floats apart.
  template <std::size_t kWidth, class D, class VU>
  HWY_INLINE void store_levels(D d, VU codes, float* HWY_RESTRICT to) const {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Repartition<std::uint8_t, D> db;
    const auto index = hn::BitCast(db, codes);
    const auto nibbles = hn::And(index, hn::Set(db, 15));
    const auto low = hn::BitCast(du, look_up_bytes<1 << kBits>(db, levels->low_bytes, nibbles, index));
    const auto high = hn::BitCast(du, look_up_bytes<1 << kBits>(db, levels->high_bytes, nibbles, index));
    // 16-bit levels at the top of a lane: those of steps 1 and 3, and of steps 0 and 2, share their lanes.
    const auto even_bytes = hn::Set(du, 0x00ff00ffU);
    const auto even = hn::Or(hn::And(low, even_bytes), hn::ShiftLeft<8>(hn::And(high, even_bytes)));
    const auto odd = hn::Or(hn::And(hn::ShiftRight<8>(low), even_bytes), hn::AndNot(even_bytes, high));
    const auto store = [&](VU level, std::size_t step) HWY_ATTR {
      hn::Store(hn::ConvertTo(d, hn::ShiftRight<16>(hn::BitCast(di, level))), d, to + step * kWidth);
    };
    store(hn::ShiftLeft<16>(even), 0);
    store(hn::ShiftLeft<16>(odd), 1);
    store(even, 2);
    store(odd, 3);
  }
};

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
