#include "model/stored_product.h"

namespace kvartet {

const StoredKernels* stored_kernels() { return stored_kernels_avx512(); }

}  // namespace kvartet
