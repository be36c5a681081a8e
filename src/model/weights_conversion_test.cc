#include "model/weights_conversion.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace kvartet {
namespace {

// A BF16 weight beyond 65504 has no F16 form: that matrix stays as it is stored.
TEST(WeightsConversion, SaysWhenAValueDoesNotFit) {
  for (const float largest : {65504.0F, 1e5F, INFINITY}) {
    OwnedTensors tensors = OwnedTensors::with_room_for(3);
    ggml_tensor* from = ggml_new_tensor_2d(tensors.context.get(), GGML_TYPE_F32, 7, 3);
    ggml_tensor* f16 = ggml_new_tensor_2d(tensors.context.get(), GGML_TYPE_F16, 7, 3);
    ggml_tensor* bf16 = ggml_new_tensor_2d(tensors.context.get(), GGML_TYPE_BF16, 7, 3);
    ASSERT_TRUE(tensors.allocate().ok());
    for (std::size_t place = 0; place < 7; ++place) {
      auto* values = static_cast<float*>(from->data);
      std::fill_n(values, 21, -0.5F);
      values[7 + place] = -largest;
      EXPECT_EQ(convert_matrix(*from, *f16, 1), largest <= 65504.0F) << place;
      EXPECT_TRUE(convert_matrix(*from, *bf16, 1));
      float row[7] = {};
      read_row(*f16, 2, row);
      EXPECT_EQ(row[6], -0.5F);
    }
  }
}

}  // namespace
}  // namespace kvartet
