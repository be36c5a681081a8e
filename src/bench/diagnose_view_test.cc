// One view against the dense run, by hand and by the bounds of offloading.md 10.
#include "bench/diagnose_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/sample_grid.h"
#include "core/normals_fixture.h"

namespace kvartet {
namespace {

TEST(SampleGrid, ByLayerByHeadAndAsAMap) {
  SampleGrid grid;
  EXPECT_TRUE(grid.empty());
  EXPECT_EQ(grid.all().mean, 0);
  EXPECT_EQ(grid.quantile(1), 0);
  grid.add(1, 0, 2);
  grid.add(1, 0, 4);
  grid.add(1, 2, 9);
  grid.add(3, 2, 1);
  EXPECT_DOUBLE_EQ(grid.all().mean, 4);
  EXPECT_DOUBLE_EQ(grid.of_layer(1).mean, 5);
  EXPECT_DOUBLE_EQ(grid.of_head(2).p5, 1);
  EXPECT_DOUBLE_EQ(grid.of_head(2).mean, 5);
  EXPECT_DOUBLE_EQ(grid.quantile(1), 9);
  EXPECT_TRUE(grid.has_layer(3));
  EXPECT_FALSE(grid.has_layer(2));
  const std::vector<double> map = grid.means(4, 3);
  ASSERT_EQ(map.size(), 12U);
  EXPECT_DOUBLE_EQ(map[3], 3);
  EXPECT_DOUBLE_EQ(map[5], 9);
  EXPECT_DOUBLE_EQ(map[11], 1);
  EXPECT_EQ(std::count_if(map.begin(), map.end(), [](double x) { return std::isnan(x); }), 9);
}

// Four rows of one channel, a query of 1: logits are the keys. Row 0 is kept, rows 1 and 2 compete for one place, row 3 is
// generated.
TEST(DiagnoseView, ByHand) {
  const std::vector<float> keys = {0, 1, 2, 0};
  const std::vector<float> values = {1, 10, 100, 5};
  const std::vector<float> query = {1};
  const DenseHead head = dense_head(keys, values, {query.data(), 1, 1});
  const double sum = 1 + std::exp(1) + std::exp(2) + 1;
  const double exact = (1 + 10 * std::exp(1) + 100 * std::exp(2) + 5) / sum;
  EXPECT_NEAR(head.outputs[0][0], exact, 1e-4);
  RowSelection selection{.kept = {0}, .selected = {1}, .candidates = {1, 2}, .far = true};
  const std::vector<std::int32_t> best = exact_top(head, selection);
  EXPECT_EQ(best, (std::vector<std::int32_t>{2}));
  // The store lost a tenth of row 2's key and half of its value.
  const std::vector<float> stored_keys = {1.8F};
  const std::vector<float> stored_values = {50};
  const std::vector<float> attended_keys = {0, 1, 0};
  const std::vector<float> attended_values = {1, 10, 5};
  const ViewFigures figures = measure_view(head, selection, best, 3,
                                           {.queries = {query.data(), 1, 1},
                                            .stored_keys = {stored_keys.data(), 1, 1},
                                            .stored_values = {stored_values.data(), 1, 1},
                                            .attended_keys = {attended_keys.data(), 3, 1},
                                            .attended_values = {attended_values.data(), 3, 1}});
  EXPECT_EQ(figures.recall, 0);
  EXPECT_NEAR(figures.key_error[0], 0.1, 1e-6);
  EXPECT_NEAR(figures.value_error[0], 0.5, 1e-6);
  const QueryFigures& q = figures.queries.at(0);
  EXPECT_NEAR(q.kept_mass, 1 / sum, 1e-9);
  EXPECT_NEAR(q.selected_mass, std::exp(1) / sum, 1e-9);
  EXPECT_NEAR(q.generated_mass, 1 / sum, 1e-9);
  EXPECT_NEAR(q.oracle_mass, (2 + std::exp(2)) / sum, 1e-9);
  EXPECT_NEAR(q.own_mass, q.oracle_mass, 1e-12);
  EXPECT_EQ(q.own_recall, 0);
  const auto error = [&](double output) { return std::abs(output - exact) / exact; };
  EXPECT_NEAR(q.exact_oracle, error((6 + 100 * std::exp(2)) / (2 + std::exp(2))), 1e-4);
  EXPECT_NEAR(q.stored_oracle, error((6 + 50 * std::exp(1.8)) / (2 + std::exp(1.8))), 1e-4);
  EXPECT_NEAR(q.exact_selected, error((6 + 10 * std::exp(1)) / (2 + std::exp(1))), 1e-4);
  EXPECT_NEAR(q.stored_selected, q.exact_selected, 1e-6);
  EXPECT_NEAR(q.logit_error, 0.2, 1e-6);
  EXPECT_NEAR(q.logit_error_max, 0.2, 1e-6);
}

// Two query heads that want different rows share one place: what the second loses is the aggregation loss.
TEST(DiagnoseView, SharingASetCostsMass) {
  const std::vector<float> values = {1, 0, 0, 1, 1, 1};
  const std::vector<float> rows = {3, 0, 0, 2, 0, 0};  // (3,0), (0,2), (0,0)
  const std::vector<float> queries = {1, 0, 0, 1};
  const DenseHead head = dense_head(rows, values, {queries.data(), 2, 2});
  const RowSelection selection{.kept = {}, .selected = {0}, .candidates = {0, 1, 2}, .far = true};
  EXPECT_EQ(exact_top(head, selection), (std::vector<std::int32_t>{0}));
  EXPECT_EQ(exact_top_of(head, 0, selection), (std::vector<std::int32_t>{0}));
  EXPECT_EQ(exact_top_of(head, 1, selection), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(head.only_query(1).logits.size(), 1U);
  const ViewFigures figures = measure_view(head, selection, std::vector<std::int32_t>{0}, 3,
                                           {.queries = {queries.data(), 2, 2},
                                            .stored_keys = {rows.data(), 1, 2},
                                            .stored_values = {values.data(), 1, 2},
                                            .attended_keys = {rows.data(), 1, 2},
                                            .attended_values = {values.data(), 1, 2}});
  EXPECT_EQ(figures.recall, 1);  // T-ORACLE2: the shared set against itself
  EXPECT_NEAR(figures.queries[0].own_mass - figures.queries[0].oracle_mass, 0, 1e-12);
  EXPECT_NEAR(figures.queries[1].own_mass - figures.queries[1].oracle_mass, head.weights[1][1] - head.weights[1][0], 1e-12);
  EXPECT_EQ(figures.queries[1].own_recall, 0);
}

// Section 10, item 5: with exact rows ||o~ - o|| <= 2 (1 - m) max ||v||, whatever is left out.
TEST(DiagnoseView, Section10BoundHolds) {
  constexpr std::size_t kRows = 60;
  constexpr std::size_t kDim = 16;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<float> keys = normals(kRows * kDim, 3 * seed);
    const std::vector<float> values = normals(kRows * kDim, 3 * seed + 1);
    std::vector<float> queries = normals(2 * kDim, 3 * seed + 2);
    for (float& x : queries) x *= 3;
    const DenseHead head = dense_head(keys, values, {queries.data(), 2, kDim});
    RowSelection selection{.kept = {0, 1, 2}, .selected = {}, .candidates = {}, .far = true};
    for (int t = 3; t < 55; ++t) selection.candidates.push_back(t);
    for (int t = 3; t < 55; t += 1 + static_cast<int>(seed % 13)) selection.selected.push_back(t);
    const std::vector<std::int32_t> best = exact_top(head, selection);
    std::vector<float> best_keys, best_values;
    for (const std::int32_t t : best) {
      const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * kDim);
      best_keys.insert(best_keys.end(), keys.begin() + at, keys.begin() + at + kDim);
      best_values.insert(best_values.end(), values.begin() + at, values.begin() + at + kDim);
    }
    const ViewFigures figures = measure_view(head, selection, best, 55,
                                             {.queries = {queries.data(), 2, kDim},
                                              .stored_keys = {best_keys.data(), best.size(), kDim},
                                              .stored_values = {best_values.data(), best.size(), kDim},
                                              .attended_keys = {keys.data(), 3, kDim},
                                              .attended_values = {values.data(), 3, kDim}});
    for (const QueryFigures& q : figures.queries) {
      EXPECT_LE(q.exact_distance, q.exact_bound + 1e-9);
      EXPECT_LE(q.mass(), q.own_mass + 1e-12);
      EXPECT_LE(q.oracle_mass, q.own_mass + 1e-12);
      EXPECT_NEAR(q.stored_oracle, q.exact_oracle, 1e-5);
    }
  }
}

}  // namespace
}  // namespace kvartet
