// Rows that are f16 already against the way through f32 and encode().
#include "quantize/float_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/normals_fixture.h"
#include "core/rng.h"
#include "core/uz.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

// Any rows of a tile that holds something else already: the bits of encode(), and no other row changes.
TEST(FloatFormat, RowsPutAsTheyAreEqualEncodedOnes) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const Side side : {Side::kKey, Side::kValue}) {
      for (const int dim : {8, 40, 64, 128}) {
        const TileFormat format = make_f16_format({}, side, dim).value();
        for (const double share : {0.02, 0.3, 0.9, 1.0}) {
          const std::vector<float> old = normals(uz(format.tile_rows * dim), 1);
          const std::vector<float> fresh = normals(uz(format.tile_rows * dim), 2);
          std::vector<std::byte> encoded(format.tile_bytes);
          ASSERT_TRUE(format.kernels.encode(format, encoded.data(), 0, {old.data(), uz(format.tile_rows), uz(dim)}).ok());
          std::vector<std::byte> put = encoded;
          std::vector<std::vector<std::byte>> numbers;
          std::vector<int> at;
          Rng rng(3);
          for (int row = 0; row < format.tile_rows; ++row) {
            if (rng.uniform() >= share && row != 17) continue;
            const MatView<const float> one(fresh.data() + uz(row * dim), 1, uz(dim));
            ASSERT_TRUE(format.kernels.encode(format, encoded.data(), row, one).ok());
            numbers.emplace_back(2 * uz(dim));  // as long as the row: what is read beyond it is found by the sanitizer
            ASSERT_TRUE(as_f16_row(one.row_span(0), numbers.back().data()).ok());
            at.push_back(row);
          }
          std::vector<F16Row> rows;
          for (std::size_t i = 0; i < at.size(); ++i) rows.push_back({numbers[i].data(), at[i]});
          put_f16_rows(format, put.data(), rows);
          EXPECT_EQ(put, encoded) << target.name << " dim " << dim << " share " << share;
        }
      }
    }
  }
}

TEST(FloatFormat, RowsThatF16CannotHoldAreRefused) {
  std::vector<float> row(64, 1.0F);
  std::vector<std::byte> out(128);
  row[5] = 65520.0F;
  const Status status = as_f16_row(row, out.data());
  EXPECT_EQ(status.code(), Code::kBadInput);
  EXPECT_NE(status.message().find("channel 5"), std::string::npos) << status.message();
  row[5] = 65519.0F;
  EXPECT_TRUE(as_f16_row(row, out.data()).ok());
}

}  // namespace
}  // namespace kvartet
