#include "model/stored_product.h"

namespace kvartet {

const StoredKernels* stored_kernels() {
  const StoredKernels* const best = stored_kernels_avx512();
  return best != nullptr ? best : stored_kernels_avx2();
}

}  // namespace kvartet
