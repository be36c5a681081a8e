#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/targets.cc"
#include "simd/dispatch.h"

#if HWY_ONCE
namespace kvartet {

void choose_simd_target() {
  if (!hwy::GetChosenTarget().IsInitialized()) hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<SimdTarget> simd_targets() {
  std::vector<SimdTarget> targets;
  for (const std::int64_t bit : hwy::SupportedAndGeneratedTargets()) targets.push_back({hwy::TargetName(bit), bit});
  return targets;
}

ScopedSimdTarget::ScopedSimdTarget(const SimdTarget& target) {
  hwy::SetSupportedTargetsForTest(target.bit);
  hwy::GetChosenTarget().DeInit();
}

ScopedSimdTarget::~ScopedSimdTarget() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace kvartet
#endif
