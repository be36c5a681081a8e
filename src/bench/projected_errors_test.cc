// Errors behind the output matrix against the plain sums, with the matrix column by column (offloading.md 10, item 5).
#include "bench/projected_errors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>

#include "core/normals_fixture.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

constexpr std::size_t kHeads = 4;
constexpr std::size_t kDim = 16;
constexpr std::size_t kHidden = 96;

std::unique_ptr<Engine> open_tiny() {
  const std::string path = testing::TempDir() + "/projected-" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(write_tiny_model(path, {.layers = 2, .hidden = kHidden, .heads = kHeads, .kv_heads = 2, .head_dim = kDim}).ok());
  auto engine = Engine::open({.model_path = path, .threads = 1}).value();
  std::filesystem::remove(path);
  return engine;
}

std::vector<std::vector<double>> random_heads(std::uint64_t seed) {
  const std::vector<float> all = normals(kHeads * kDim, seed);
  std::vector<std::vector<double>> heads;
  for (std::size_t h = 0; h < kHeads; ++h) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(h * kDim);
    heads.emplace_back(at, at + kDim);
  }
  return heads;
}

// Column by column: the engine's own answer to every unit vector is the matrix, [hidden][heads * dim].
std::vector<std::vector<double>> output_matrix(Engine& engine, int layer) {
  std::vector<std::vector<double>> matrix(kHidden, std::vector<double>(kHeads * kDim));
  for (std::size_t i = 0; i < kHeads * kDim; ++i) {
    std::vector<float> unit(kHeads * kDim, 0.0F);
    unit[i] = 1;
    std::vector<float> column(kHidden);
    EXPECT_TRUE(engine.project_attention(layer, {unit.data(), 1, unit.size()}, {column.data(), 1, column.size()}).ok());
    for (std::size_t o = 0; o < kHidden; ++o) matrix[o][i] = column[o];
  }
  return matrix;
}

double reference(const std::vector<std::vector<double>>& matrix, const std::vector<std::vector<double>>& exact,
                 const std::vector<std::vector<double>>& other) {
  double error = 0;
  double norm = 0;
  for (const std::vector<double>& line : matrix) {
    double lost = 0;
    double whole = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      lost += line[i] * (other[i / kDim][i % kDim] - exact[i / kDim][i % kDim]);
      whole += line[i] * exact[i / kDim][i % kDim];
    }
    error += lost * lost;
    norm += whole * whole;
  }
  return std::sqrt(error / norm);
}

TEST(ProjectedErrors, EqualPlainSums) {
  const auto engine = open_tiny();
  const std::vector<std::vector<double>> exact = random_heads(1);
  const std::vector<std::vector<double>> others[] = {random_heads(2), random_heads(3), random_heads(4), exact};
  std::vector<OutputGrid> grid(kHeads);
  for (std::size_t h = 0; h < kHeads; ++h) grid[h] = {others[0][h], others[1][h], others[2][h], others[3][h]};
  for (const int layer : {0, 1}) {
    const std::vector<std::vector<double>> matrix = output_matrix(*engine, layer);
    const ProjectedErrors errors = projected_errors(*engine, layer, exact, grid).value();
    EXPECT_NEAR(errors.exact_oracle, reference(matrix, exact, others[0]), 1e-4) << layer;
    EXPECT_NEAR(errors.stored_oracle, reference(matrix, exact, others[1]), 1e-4) << layer;
    EXPECT_NEAR(errors.exact_selected, reference(matrix, exact, others[2]), 1e-4) << layer;
    EXPECT_EQ(errors.stored_selected, 0) << layer;
  }
}

// What is lost in one direction only shows as far as the matrix passes it on: an error of a share of the exact outputs is that
// share behind the matrix too.
TEST(ProjectedErrors, AShareOfTheOutputsStaysThatShare) {
  const auto engine = open_tiny();
  const std::vector<std::vector<double>> exact = random_heads(7);
  std::vector<OutputGrid> grid(kHeads);
  for (std::size_t h = 0; h < kHeads; ++h) {
    for (const double x : exact[h]) {
      grid[h].exact_oracle.push_back(x);
      grid[h].stored_oracle.push_back(0.5 * x);
      grid[h].exact_selected.push_back(1.1 * x);
      grid[h].stored_selected.push_back(0);
    }
  }
  const ProjectedErrors errors = projected_errors(*engine, 1, exact, grid).value();
  EXPECT_EQ(errors.exact_oracle, 0);
  EXPECT_NEAR(errors.stored_oracle, 0.5, 1e-5);
  EXPECT_NEAR(errors.exact_selected, 0.1, 1e-5);
  EXPECT_NEAR(errors.stored_selected, 1, 1e-6);
}

TEST(ProjectedErrors, NothingIsNoError) {
  const auto engine = open_tiny();
  const std::vector<std::vector<double>> zeros(kHeads, std::vector<double>(kDim, 0.0));
  std::vector<OutputGrid> grid(kHeads);
  for (OutputGrid& head : grid) head = {zeros[0], zeros[0], zeros[0], zeros[0]};
  EXPECT_EQ(projected_errors(*engine, 0, zeros, grid).value().stored_selected, 0);
}

}  // namespace
}  // namespace kvartet
