#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/targets.cc"
#include "simd/dispatch.h"

#if HWY_ONCE
namespace kvartet {
namespace {

SimdExtension best_extension() {
#if defined(__x86_64__)
  // Asks the operating system too, which has to save the wide registers.
  if ((hwy::SupportedTargets() & HWY_TARGETS & HWY_AVX2) == 0) return SimdExtension::kNone;
  if ((hwy::SupportedTargets() & HWY_TARGETS & HWY_AVX3) == 0) return SimdExtension::kAvx2;
  if (!__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vbmi2") || !__builtin_cpu_supports("avx512vnni")) {
    return SimdExtension::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? SimdExtension::kBf16 : SimdExtension::kVnni;
#else
  return SimdExtension::kNone;
#endif
}

// Of one of Highway's targets, whose better ones have smaller numbers.
SimdExtension extension_of([[maybe_unused]] std::int64_t bit) {
#if defined(__x86_64__)
  return bit <= HWY_AVX2 ? SimdExtension::kAvx2 : SimdExtension::kNone;
#else
  return SimdExtension::kNone;
#endif
}

SimdExtension& chosen_extension() {
  static SimdExtension chosen = best_extension();
  return chosen;
}

}  // namespace

void choose_simd_target() {
  if (!hwy::GetChosenTarget().IsInitialized()) hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<SimdTarget> simd_targets() {
  std::vector<SimdTarget> targets;
#if defined(__x86_64__)
  const SimdExtension best = best_extension();
  if (best >= SimdExtension::kBf16) targets.push_back({"AVX3_BF16", HWY_AVX3, SimdExtension::kBf16});
  if (best >= SimdExtension::kVnni) targets.push_back({"AVX3_VNNI", HWY_AVX3, SimdExtension::kVnni});
#endif
  for (const std::int64_t bit : hwy::SupportedAndGeneratedTargets())
    targets.push_back({hwy::TargetName(bit), bit, extension_of(bit)});
  return targets;
}

bool uses_extension(SimdExtension extension) { return chosen_extension() >= extension; }

ScopedSimdTarget::ScopedSimdTarget(const SimdTarget& target) {
  hwy::SetSupportedTargetsForTest(target.bit);
  hwy::GetChosenTarget().DeInit();
  chosen_extension() = target.extension;
}

ScopedSimdTarget::~ScopedSimdTarget() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  chosen_extension() = best_extension();
}

}  // namespace kvartet
#endif
