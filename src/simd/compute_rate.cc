#include "simd/compute_rate.h"

#include <cstddef>
#include <vector>

#include "core/check.h"
#include "core/clock.h"
#include "core/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/compute_rate.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve sums in turn: more than a processor begins before the first one ends. Returns the flops done for *sum.
double multiply_and_add(std::size_t rounds, float* sum) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.5F);
  const auto added = hn::Set(d, 0.5F);
  auto a0 = hn::Iota(d, 0.0F);
  auto a1 = hn::Iota(d, 1.0F), a2 = hn::Iota(d, 2.0F), a3 = hn::Iota(d, 3.0F), a4 = hn::Iota(d, 4.0F), a5 = hn::Iota(d, 5.0F),
       a6 = hn::Iota(d, 6.0F), a7 = hn::Iota(d, 7.0F), a8 = hn::Iota(d, 8.0F), a9 = hn::Iota(d, 9.0F), b0 = hn::Iota(d, 10.0F),
       b1 = hn::Iota(d, 11.0F);
  for (std::size_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, factor, added);
    a1 = hn::MulAdd(a1, factor, added);
    a2 = hn::MulAdd(a2, factor, added);
    a3 = hn::MulAdd(a3, factor, added);
    a4 = hn::MulAdd(a4, factor, added);
    a5 = hn::MulAdd(a5, factor, added);
    a6 = hn::MulAdd(a6, factor, added);
    a7 = hn::MulAdd(a7, factor, added);
    a8 = hn::MulAdd(a8, factor, added);
    a9 = hn::MulAdd(a9, factor, added);
    b0 = hn::MulAdd(b0, factor, added);
    b1 = hn::MulAdd(b1, factor, added);
  }
  a0 = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  *sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a0, hn::Add(hn::Add(a8, a9), hn::Add(b0, b1)))));
  return 2.0 * 12.0 * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(multiply_and_add);

MultiplyAdds multiply_adds() { return SIMD_CHOOSE(multiply_and_add); }

double compute_rate(int threads) {
  constexpr std::size_t kRounds = std::size_t{1} << 20;
  const MultiplyAdds run = multiply_adds();
  std::vector<double> flops(static_cast<std::size_t>(threads));
  std::vector<float> sums(flops.size());
  const double begin = Clock::real().seconds();
  parallel_for(threads, threads, [&](int part, int) {
    flops[static_cast<std::size_t>(part)] = run(kRounds, &sums[static_cast<std::size_t>(part)]);
  });
  const double seconds = Clock::real().seconds() - begin;
  double all = 0;
  for (std::size_t i = 0; i < flops.size(); ++i) {
    KV_CHECK(sums[i] > 0);
    all += flops[i];
  }
  return all / seconds * 1e-9;
}

}  // namespace kvartet
#endif
