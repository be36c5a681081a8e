// The one door to Highway. A kernel file is compiled once per instruction set and picks the best one at run time:
//
//   #include <standard headers first>
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "quantize/float_format.cc"  // itself
//   #include "simd/dispatch.h"
//   #include "simd/f16_lanes-inl.h"                        // per-target helpers, if any
//
//   HWY_BEFORE_NAMESPACE();
//   namespace kvartet::HWY_NAMESPACE { ... kernels ... }
//   HWY_AFTER_NAMESPACE();
//
//   #if HWY_ONCE
//   namespace kvartet {
//   HWY_EXPORT(kernel);                // the table of all versions
//   ... SIMD_CHOOSE(kernel) ...        // a pointer to this CPU's version
//   }
//   #endif
//
// Inside HWY_NAMESPACE: no allocation, no standard containers or algorithms (an inline function compiled for a wide
// instruction set may be the copy that the linker keeps for everybody).
//
// No include guard: the file is read again for every target. Highway's own guards do the right thing.
#include "hwy/foreach_target.h"  // IWYU pragma: export
#include "hwy/highway.h"         // IWYU pragma: export

#include "hwy/cache_control.h"  // IWYU pragma: export

#ifndef SIMD_CHOOSE
// A function pointer to the version of an HWY_EXPORTed function for the chosen target (see simd/targets.h).
#define SIMD_CHOOSE(function) (::kvartet::choose_simd_target(), &HWY_DYNAMIC_DISPATCH(function))
namespace kvartet {
void choose_simd_target();  // simd/targets.cc
}
#endif
