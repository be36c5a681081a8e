#include "core/matrix.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace kvartet {
namespace {

TEST(MatView, RowsAreAStrideApartAndRangesShareTheData) {
  std::vector<int> data(12);
  std::iota(data.begin(), data.end(), 0);
  const MatView<int> view(data.data(), 3, 2, 4);
  EXPECT_EQ(view.row(2)[1], 9);
  EXPECT_EQ(view.row_span(1).size(), 2U);
  const MatView<const int> tail = view.row_range(1, 3);
  EXPECT_EQ(tail.rows, 2U);
  EXPECT_EQ(tail.row(0), view.row(1));
  EXPECT_EQ(view.row_range(3, 3).rows, 0U);
  EXPECT_EQ(MatView<int>(data.data(), 3, 4).stride, 4U);
}

TEST(HeadRows, AHeadIsAMatrixOverTheTokens) {
  std::vector<int> data(2 * 3 * 4);  // [tokens 2, heads 3, head_dim 4]
  std::iota(data.begin(), data.end(), 0);
  const HeadRows<int> rows{data.data(), 2, 3, 4, 12};
  EXPECT_EQ(*rows.row(1, 2), 20);
  const MatView<int> head = rows.head(2);
  EXPECT_EQ(head.rows, 2U);
  EXPECT_EQ(head.row(1), rows.row(1, 2));
  EXPECT_EQ(rows.token_range(1, 2).row(0, 1), rows.row(1, 1));
}

}  // namespace
}  // namespace kvartet
