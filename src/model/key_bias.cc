#include "model/key_bias.h"

#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <ggml.h>

#include "model/gguf_file.h"

namespace kvartet {

Result<std::vector<double>> key_bias_norms(const std::string& path) {
  KV_ASSIGN(const auto file, GgufFile::open(path));
  std::vector<double> norms;
  for (int layer = 0;; ++layer) {
    const ggml_tensor* const bias = file->tensor(fmt::format("blk.{}.attn_k.bias", layer));
    if (bias == nullptr || bias->type != GGML_TYPE_F32) return norms;  // other types are refused where weights are loaded
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(bias)));
    std::memcpy(values.data(), file->data() + file->tensor_offset(*bias), values.size() * sizeof(float));
    double sum = 0;
    for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
    norms.push_back(std::sqrt(sum));
  }
}

}  // namespace kvartet
