#include "model/arithmetic.h"

#include <array>

#include <fmt/format.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include "model/ggml_runtime.h"
#include "model/packed_product.h"
#include "model/weights_conversion.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

// Raised by whoever changes what a prefill computes: order of operations, chunks, conversions.
constexpr int kRevision = 2;

struct Feature {
  const char* name;
  int (*present)();
};

constexpr std::array kFeatures = {
    Feature{"avx2", ggml_cpu_has_avx2},
    Feature{"avx-vnni", ggml_cpu_has_avx_vnni},
    Feature{"fma", ggml_cpu_has_fma},
    Feature{"f16c", ggml_cpu_has_f16c},
    Feature{"avx512", ggml_cpu_has_avx512},
    Feature{"avx512-vnni", ggml_cpu_has_avx512_vnni},
    Feature{"avx512-bf16", ggml_cpu_has_avx512_bf16},
    Feature{"amx-int8", ggml_cpu_has_amx_int8},
    Feature{"neon", ggml_cpu_has_neon},
    Feature{"arm-fma", ggml_cpu_has_arm_fma},
    Feature{"fp16-va", ggml_cpu_has_fp16_va},
    Feature{"dotprod", ggml_cpu_has_dotprod},
    Feature{"int8-matmul", ggml_cpu_has_matmul_int8},
    Feature{"sve", ggml_cpu_has_sve},
    Feature{"llamafile", ggml_cpu_has_llamafile},
};

}  // namespace

std::string prefill_arithmetic() {
  start_ggml();
  std::string text = fmt::format("prefill {}, ggml {} {}", kRevision, ggml_version(), ggml_commit());
  for (const Feature& feature : kFeatures) {
    if (feature.present() != 0) text += fmt::format(" {}", feature.name);
  }
  return text + fmt::format(", kernels {}, weights {}{}", simd_targets().front().name, packed_kernels() ? "packed " : "",
                            ggml_type_name(fastest_prefill_type()));
}

}  // namespace kvartet
