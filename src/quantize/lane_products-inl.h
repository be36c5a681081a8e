// The inner loop of every kernel, per target: y[query, lane] += sum over steps of x[query, step] * row(step)[lane].
//
// Scoring keys: lanes are tokens, steps are channels, x is the query. Accumulating values: lanes are channels, steps are
// tokens, x is the softmax weights. Scales and zero points are folded into x beforehand, or into y afterwards
// (compression.md 2.4), so a row is whatever the format stores, widened to float in registers and never in memory.
#if defined(KVARTET_QUANTIZE_LANE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTET_QUANTIZE_LANE_PRODUCTS_INL_H_
#undef KVARTET_QUANTIZE_LANE_PRODUCTS_INL_H_
#else
#define KVARTET_QUANTIZE_LANE_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "quantize/tile_format.h"
#include "simd/dispatch.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> load_lanes(D d, const float* HWY_RESTRICT p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_lanes(D d, const std::uint16_t* HWY_RESTRICT p) {
  return load_f16(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_lanes(D d, const std::int8_t* HWY_RESTRICT p) {
  const hn::Rebind<std::int8_t, D> di8;
  const hn::Rebind<std::int32_t, D> di32;
  return hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(di8, p)));
}

// Bytes from a tile to the next one, for prefetching at the same place one tile ahead; 0 when there is none (the
// prefetch then names a line that is being read anyway).
HWY_INLINE std::uintptr_t bytes_ahead(const void* tile, const void* next) {
  return next == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(next) - reinterpret_cast<std::uintptr_t>(tile);
}

HWY_INLINE void prefetch_ahead(const void* p, std::uintptr_t ahead) {
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + ahead));
}

// Every format stores its rows in blocks of 32 lanes, so that a kernel reads a tile from the first byte to the last.
inline constexpr std::size_t kBlockLanes = 32;

// Rows of float, f16 (uint16) or int8: one element per lane and step.
template <class T>
struct PlainRows {
  const T* first = nullptr;  // row(0), lane 0
  std::size_t stride = 0;    // elements from a step to the next
  std::uintptr_t ahead = 0;  // see bytes_ahead; used for codes only
};

// The sums of a block of lanes, in registers: enough independent ones to hide the latency of multiply-add.
template <int kQueries, int kVectors, class D>
struct LaneSums {
  static constexpr std::size_t kLanes = hn::MaxLanes(D());
  hn::Vec<D> of[kQueries][kVectors];

  HWY_INLINE void clear(D d) {
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) of[q][v] = hn::Zero(d);
    }
  }
  HWY_INLINE void load(D d, const float* HWY_RESTRICT y, std::size_t y_stride) {
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) of[q][v] = hn::LoadU(d, y + q * y_stride + v * kLanes);
    }
  }
  HWY_INLINE void store(D d, float* HWY_RESTRICT y, std::size_t y_stride) const {
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(of[q][v], d, y + q * y_stride + v * kLanes);
    }
  }
};

template <int kQueries, int kVectors, class D, class T>
HWY_INLINE void add_products(D d, const PlainRows<T>& rows, std::size_t steps, const float* HWY_RESTRICT x, std::size_t x_stride,
                             LaneSums<kQueries, kVectors, D>& sums) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  const T* HWY_RESTRICT row = rows.first;
  for (std::size_t step = 0; step < steps; ++step, row += rows.stride) {
    // Floats come faster from the hardware's own prefetcher: they leave it more time per byte than codes do.
    if constexpr (sizeof(T) == 1) prefetch_ahead(row, rows.ahead);
    hn::Vec<D> coefficient[kQueries];
    for (int q = 0; q < kQueries; ++q) coefficient[q] = hn::Set(d, x[q * x_stride + step]);
    for (int v = 0; v < kVectors; ++v) {
      const auto value = load_lanes(d, row + v * kLanes);
      for (int q = 0; q < kQueries; ++q) sums.of[q][v] = hn::MulAdd(coefficient[q], value, sums.of[q][v]);
    }
  }
}

// Calls body.template run<kVectors>(d, lane) until the lanes of a block, 32 or another multiple of 8, have had their turn,
// as many at a time as the registers allow: 16 of them do not hold 4 queries x 4 vectors of sums.
template <int kQueries, class Body>
HWY_INLINE void for_lanes(std::size_t lanes, const Body& body) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 8> d8;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr int kVectors = kLanes == 16 || (kQueries == 4 && kLanes == 8) ? 2 : 4;
  std::size_t lane = 0;
  for (; lane + kVectors * kLanes <= lanes; lane += kVectors * kLanes) body.template run<kVectors>(d, lane);
  for (; lane + kLanes <= lanes; lane += kLanes) body.template run<1>(d, lane);
  if constexpr (kLanes > 8) {
    if (lane < lanes) body.template run<1>(d8, lane);
  }
}

// y[query, lane] += products of plain rows, for any number of lanes that is a multiple of 8. Not inlined: in a function of
// its own the compiler keeps all sums in registers, inside a large one it does not.
template <int kQueries, class T>
struct AddPlainRows {
  PlainRows<T> rows;
  std::size_t steps = 0;
  const float* x = nullptr;
  std::size_t x_stride = 0;
  float* y = nullptr;
  std::size_t y_stride = 0;

  template <int kVectors, class D>
  HWY_NOINLINE void run(D d, std::size_t lane) const {
    PlainRows<T> block = rows;
    block.first += lane;
    LaneSums<kQueries, kVectors, D> sums;
    sums.load(d, y + lane, y_stride);
    add_products(d, block, steps, x, x_stride, sums);
    sums.store(d, y + lane, y_stride);
  }
};

// Calls Kernel::run<n>(of, args, first query) with n of 1 to 4 until every query has had its turn: as many queries as
// the registers allow share one pass over the tile.
template <class Kernel, class Of, class Args>
HWY_INLINE void for_query_chunks(const Of& of, const Args& args) {
  std::size_t query = 0;
  std::size_t left = static_cast<std::size_t>(args.queries);
  while (left > 0) {
    const std::size_t take = left == 5 || left == 6 ? 3 : (left < 4 ? left : 4);
    if (take == 4) Kernel::template run<4>(of, args, query);
    if (take == 3) Kernel::template run<3>(of, args, query);
    if (take == 2) Kernel::template run<2>(of, args, query);
    if (take == 1) Kernel::template run<1>(of, args, query);
    query += take;
    left -= take;
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
