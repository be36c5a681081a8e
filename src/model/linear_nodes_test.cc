#include "model/linear_nodes.h"

#include <cmath>
#include <string>
#include <vector>

#include <ggml-cpp.h>
#include <ggml-cpu.h>
#include <gtest/gtest.h>

#include "core/rng.h"
#include "model/ggml_runtime.h"
#include "model/weights_conversion.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

constexpr std::size_t kHidden = 96;
constexpr std::size_t kInner = 224;  // no whole panel, nor whole group of blocks
constexpr std::size_t kKeys = 33;
constexpr float kEpsilon = 1e-5F;

enum class Weight : std::uint8_t { kQ4_0, kQ4_1, kQ8_0, kPacked, kF32 };
constexpr Weight kWeights[] = {Weight::kQ4_0, Weight::kQ4_1, Weight::kQ8_0, Weight::kPacked, Weight::kF32};

ggml_type type_of(Weight weight) {
  switch (weight) {
    case Weight::kQ4_0: return GGML_TYPE_Q4_0;
    case Weight::kQ4_1: return GGML_TYPE_Q4_1;
    case Weight::kQ8_0: return GGML_TYPE_Q8_0;
    default: return GGML_TYPE_F32;
  }
}

// A norm, three projections with a bias, and a feed-forward part around them: every kind of node, once.
class Layer {
 public:
  Layer(Weight kind, std::size_t rows, const std::vector<float>& x)
      : kind_(kind),
        context_(ggml_init({.mem_size = std::size_t{8} << 20, .mem_buffer = nullptr, .no_alloc = false})),
        rows_(rows),
        nodes_(context_.get(), rows, kEpsilon) {
    LinearInput input{.x = vector(kHidden, rows, x), .norm = normals(kHidden, 1, 2)};
    const LinearFactor factors[3] = {matrix(kHidden, kHidden, 3), matrix(kHidden, kKeys, 4), with_bias(kHidden, kKeys, 5)};
    const std::size_t places[3] = {0, rows * kHidden, rows * (kHidden + kKeys) + 7};
    const LinearNodes::Products products = nodes_.multiply(factors, input, places);
    results_ = products.results;
    const LinearFactor shared[2] = {matrix(kHidden, kInner, 6), matrix(kHidden, kInner, 7)};
    for (const GatedBy function : {GatedBy::kSilu, GatedBy::kGelu}) {
      LinearInput again{.x = results_[0]};
      results_.push_back(nodes_.feed_forward({shared[0], shared[1], matrix(kInner, kHidden, 8), function}, again, input.x));
    }
  }

  std::vector<float> run(int threads) {
    ggml_cgraph* graph = ggml_new_graph(context_.get());
    for (ggml_tensor* result : results_) ggml_build_forward_expand(graph, result);
    ggml_cplan plan = ggml_graph_plan(graph, threads, nullptr);
    std::vector<std::uint8_t> work(plan.work_size);
    plan.work_data = work.data();
    EXPECT_EQ(ggml_graph_compute(graph, &plan), GGML_STATUS_SUCCESS);
    std::vector<float> all;
    for (const ggml_tensor* result : results_) {
      const auto* values = static_cast<const float*>(result->data);
      all.insert(all.end(), values, values + ggml_nelements(result));
    }
    return all;
  }

 private:
  ggml_tensor* vector(std::size_t columns, std::size_t rows, const std::vector<float>& values) {
    ggml_tensor* tensor =
        ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, static_cast<std::int64_t>(columns), static_cast<std::int64_t>(rows));
    std::copy_n(values.begin(), columns * rows, static_cast<float*>(tensor->data));
    return tensor;
  }
  ggml_tensor* normals(std::size_t columns, std::size_t rows, std::uint64_t seed) {
    Rng rng(seed);
    std::vector<float> values(columns * rows);
    for (float& v : values) v = static_cast<float>(rng.normal());
    return vector(columns, rows, values);
  }
  LinearFactor matrix(std::size_t inputs, std::size_t outputs, std::uint64_t seed) {
    ggml_tensor* const exact = normals(inputs, outputs, seed);
    for (std::int64_t i = 0; i < ggml_nelements(exact); ++i) static_cast<float*>(exact->data)[i] *= 0.1F;
    if (kind_ == Weight::kF32) return {.weight = exact, .outputs = outputs};
    if (kind_ == Weight::kPacked) {
      ggml_tensor* const packed =
          new_packed_matrix(context_.get(), static_cast<std::int64_t>(inputs), static_cast<std::int64_t>(outputs));
      pack_matrix(*exact, *packed, 1);
      return {.weight = packed, .outputs = outputs};
    }
    ggml_tensor* const stored = ggml_new_tensor_2d(context_.get(), type_of(kind_), exact->ne[0], exact->ne[1]);
    ggml_quantize_chunk(stored->type, static_cast<const float*>(exact->data), stored->data, 0, exact->ne[1], exact->ne[0],
                        nullptr);
    return {.weight = stored, .outputs = outputs};
  }
  LinearFactor with_bias(std::size_t inputs, std::size_t outputs, std::uint64_t seed) {
    LinearFactor factor = matrix(inputs, outputs, seed);
    factor.bias = normals(outputs, 1, seed + 100);
    return factor;
  }

  Weight kind_;
  ggml_context_ptr context_;
  std::size_t rows_;
  LinearNodes nodes_;
  std::vector<ggml_tensor*> results_;
};

std::vector<float> rows_of(std::size_t rows) {
  Rng rng(1);
  std::vector<float> x(rows * kHidden);
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

bool runs(Weight weight) { return weight != Weight::kPacked || packed_kernels() != nullptr; }

TEST(LinearNodes, ThreadsDoNotChangeBits) {
  start_ggml();
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const Weight weight : kWeights) {
      if (!runs(weight) || weight == Weight::kF32) continue;
      for (const std::size_t rows : {1U, 3U, 20U}) {
        SCOPED_TRACE(target.name + " " + std::to_string(static_cast<int>(weight)) + " " + std::to_string(rows));
        Layer layer(weight, rows, rows_of(rows));
        const std::vector<float> one = layer.run(1);
        for (const int threads : {2, 3, 7, 16}) EXPECT_EQ(layer.run(threads), one) << threads;
      }
    }
  }
}

// The reference is ggml in F32; the rest is what rounding weights and activations costs.
TEST(LinearNodes, EveryKindOfNodeComputesTheLayer) {
  start_ggml();
  for (const std::size_t rows : {1U, 2U, 7U, 130U}) {
    Layer exact(Weight::kF32, rows, rows_of(rows));
    const std::vector<float> expected = exact.run(1);
    double squares = 0;
    for (const float v : expected) squares += double{v} * double{v};
    for (const SimdTarget& target : simd_targets()) {
      const ScopedSimdTarget scope(target);
      for (const Weight weight : kWeights) {
        if (!runs(weight)) continue;
        Layer layer(weight, rows, rows_of(rows));
        const std::vector<float> actual = layer.run(1);
        ASSERT_EQ(actual.size(), expected.size());
        double error = 0;
        for (std::size_t i = 0; i < actual.size(); ++i) error += std::pow(double{actual[i]} - double{expected[i]}, 2);
        const double most = weight == Weight::kF32 ? 0 : weight == Weight::kPacked ? 0.02 : weight == Weight::kQ8_0 ? 0.05 : 0.3;
        EXPECT_LE(std::sqrt(error / squares), most) << target.name << " " << static_cast<int>(weight) << " " << rows;
      }
    }
  }
}

TEST(LinearNodes, ARowsBitsDependOnNoOther) {
  start_ggml();
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    for (const Weight weight : kWeights) {
      if (!runs(weight) || weight == Weight::kF32 || stored_kernels() == nullptr) continue;
      const std::vector<float> x = rows_of(13);
      Layer together(weight, 13, x);
      const std::vector<float> all = together.run(1);
      for (std::size_t row = 0; row < 13; ++row) {
        Layer alone(weight, 1, {x.begin() + static_cast<std::ptrdiff_t>(row * kHidden), x.end()});
        const std::vector<float> own = alone.run(1);
        std::size_t in_own = 0;
        std::size_t in_all = 0;
        for (const std::size_t columns : {kHidden, kKeys, kKeys, kHidden, kHidden}) {
          for (std::size_t i = 0; i < columns; ++i) {
            ASSERT_EQ(own[in_own + i], all[in_all + row * columns + i]) << target.name << " " << static_cast<int>(weight);
          }
          in_own += columns;
          in_all += 13 * columns;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
