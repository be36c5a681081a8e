// For kernels written with intrinsics, because Highway 1.0.3 has no name for the instruction that wins. Such a twin lies beside
// the portable kernel, in x_avx512.cc, and hands out its functions only where the CPU has them:
//
//   #include "simd/avx512.h"
//   #if KVARTET_HAS_AVX512
//   KVARTET_BEGIN_VNNI                 // or KVARTET_BEGIN_BF16
//   namespace kvartet { namespace { ... kernels ... } }
//   KVARTET_END_AVX512
//   #endif
//   namespace kvartet {
//   Kernel kernel_avx512() {           // null: not this CPU
//   #if KVARTET_HAS_AVX512
//     if (uses_extension(SimdExtension::kVnni)) return kernel;
//   #endif
//     return nullptr;
//   }
//   }
//
// Between the macros: no allocation, no standard containers or algorithms (see simd/dispatch.h), and no lambdas (clang does not
// pass the instruction set on to them).
#pragma once

#include "simd/targets.h"

#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 takes its own "undefined" vectors for mistakes
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#define KVARTET_HAS_AVX512 1
#define KVARTET_VNNI_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,avx2,fma,f16c,bmi,bmi2"
#define KVARTET_AVX2_FEATURES "avx2,fma,f16c"
#define KVARTET_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define KVARTET_BEGIN_TARGET(features) \
  KVARTET_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define KVARTET_END_AVX512 _Pragma("clang attribute pop")
#else
#define KVARTET_BEGIN_TARGET(features) _Pragma("GCC push_options") KVARTET_PRAGMA(GCC target(features))
#define KVARTET_END_AVX512 _Pragma("GCC pop_options")
#endif
#define KVARTET_BEGIN_AVX2 KVARTET_BEGIN_TARGET(KVARTET_AVX2_FEATURES)  // in x_avx2.cc, with SimdExtension::kAvx2
#define KVARTET_BEGIN_VNNI KVARTET_BEGIN_TARGET(KVARTET_VNNI_FEATURES)
#define KVARTET_BEGIN_BF16 KVARTET_BEGIN_TARGET(KVARTET_VNNI_FEATURES ",avx512bf16")
#else
#define KVARTET_HAS_AVX512 0
#endif
