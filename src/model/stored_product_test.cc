#include "model/stored_product.h"

#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <ggml.h>
#include <gtest/gtest.h>

#include "core/rng.h"
#include "model/ggml_runtime.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

struct Format {
  StoredFormat format;
  ggml_type type;
};
constexpr Format kFormats[] = {
    {StoredFormat::kQ4_0, GGML_TYPE_Q4_0}, {StoredFormat::kQ4_1, GGML_TYPE_Q4_1}, {StoredFormat::kQ8_0, GGML_TYPE_Q8_0}};

// Bytes that end where memory ends.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : mapped_((bytes + kPage - 1) / kPage * kPage + kPage) {
    base_ = static_cast<std::byte*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + mapped_ - kPage, kPage, PROT_NONE), 0);
    data_ = base_ + mapped_ - kPage - bytes;
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* data() const { return data_; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t mapped_;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

struct Case {
  std::size_t inputs, outputs, rows;
};

std::vector<float> normals(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(rng.normal());
  return values;
}

// Weights in one format, the same in f32, and rows of activations with the 8 bits that ggml rounds them to.
class Problem {
 public:
  Problem(const Format& format, const Case& size)
      : size_(size),
        format_(format.format),
        stored_(size.outputs * ggml_row_size(format.type, static_cast<std::int64_t>(size.inputs))),
        weights_(size.inputs * size.outputs),
        x_(normals(size.inputs * size.rows, 7)) {
    start_ggml();
    const std::vector<float> exact = normals(weights_.size(), 3);
    const auto inputs = static_cast<std::int64_t>(size.inputs);
    ggml_quantize_chunk(format.type, exact.data(), stored_.data(), 0, static_cast<std::int64_t>(size.outputs), inputs, nullptr);
    ggml_get_type_traits(format.type)
        ->to_float(stored_.data(), weights_.data(), static_cast<std::int64_t>(size.outputs) * inputs);
  }

  std::vector<float>& x() { return x_; }

  // Outputs [begin, end) of every row, as the kernels make them.
  void multiply(std::size_t begin, std::size_t end, std::vector<float>* out) const {
    const StoredKernels& kernels = *stored_kernels();
    const std::size_t runs = int8_runs(size_.inputs);
    const std::size_t blocks = size_.inputs / kStoredBlock;
    std::vector<Int8Blocks> rows(size_.rows * runs);
    std::memset(static_cast<void*>(rows.data()), 0x7f, rows.size() * sizeof(Int8Blocks));  // nothing may rely on zeros
    for (std::size_t r = 0; r < size_.rows; ++r) {
      kernels.quantize(x_.data() + r * size_.inputs, {0, blocks, blocks}, rows.data() + r * runs);
    }
    StoredProduct product;
    product.weights = stored_.data();
    product.inputs = size_.inputs;
    product.x = rows.data();
    product.rows = size_.rows;
    product.out = out->data() + begin;
    product.out_stride = size_.outputs;
    kernels.multiply[static_cast<std::size_t>(format_)](product, begin, end);
  }

  // In double, and the sum of the magnitudes that were added.
  void reference(std::size_t row, std::size_t output, double* sum, double* magnitude) const {
    *sum = *magnitude = 0;
    for (std::size_t b = 0; b < size_.inputs; b += kStoredBlock) {
      const float* const x = x_.data() + row * size_.inputs + b;
      float largest = 0;
      for (std::size_t i = 0; i < kStoredBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
      const float inverse = largest == 0 ? 0 : 127.0F / largest;
      for (std::size_t i = 0; i < kStoredBlock; ++i) {
        const double term =
            double{std::nearbyint(x[i] * inverse)} * double{largest / 127.0F} * double{weights_[output * size_.inputs + b + i]};
        *sum += term;
        *magnitude += std::fabs(term);
      }
    }
  }

 private:
  Case size_;
  StoredFormat format_;
  std::vector<std::byte> stored_;
  std::vector<float> weights_;
  std::vector<float> x_;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {{32, 1, 1},  {64, 3, 2},  {96, 4, 3},   {128, 5, 4},  {160, 7, 5},
                                        {576, 9, 1}, {576, 8, 8}, {1536, 6, 2}, {96, 33, 17}, {32, 4, 9}};
  return all;
}

std::string name_of(const SimdTarget& target, const Format& format, const Case& size) {
  return target.name + " " + ggml_type_name(format.type) + " " + std::to_string(size.inputs) + "x" +
         std::to_string(size.outputs) + "x" + std::to_string(size.rows);
}

// Runs test(target, format) for every target that has kernels.
template <typename Test>
void on_every_target(const Test& test) {
  for (const SimdTarget& target : simd_targets()) {
    const ScopedSimdTarget scope(target);
    if (stored_kernels() == nullptr) continue;
    for (const Format& format : kFormats) test(target, format);
  }
}

TEST(StoredProduct, EqualsTheSumInDouble) {
  on_every_target([](const SimdTarget& target, const Format& format) {
    for (const Case& size : cases()) {
      SCOPED_TRACE(name_of(target, format, size));
      Problem problem(format, size);
      std::fill_n(problem.x().begin(), kStoredBlock, 0.0F);  // a block whose scale is zero
      std::vector<float> out(size.rows * size.outputs);
      problem.multiply(0, size.outputs, &out);
      for (std::size_t r = 0; r < size.rows; ++r) {
        for (std::size_t o = 0; o < size.outputs; ++o) {
          double sum = 0;
          double magnitude = 0;
          problem.reference(r, o, &sum, &magnitude);
          EXPECT_NEAR(out[r * size.outputs + o], sum, 1e-6 * magnitude);
        }
      }
    }
  });
}

TEST(StoredProduct, AnOutputsBitsDependOnNoOther) {
  on_every_target([](const SimdTarget& target, const Format& format) {
    const Case size{160, 23, 7};
    SCOPED_TRACE(name_of(target, format, size));
    const Problem problem(format, size);
    std::vector<float> whole(size.rows * size.outputs);
    problem.multiply(0, size.outputs, &whole);
    for (const std::size_t piece : {1U, 2U, 3U, 5U, 8U}) {
      std::vector<float> pieces(whole.size());
      for (std::size_t begin = 0; begin < size.outputs; begin += piece) {
        problem.multiply(begin, std::min(begin + piece, size.outputs), &pieces);
      }
      EXPECT_EQ(pieces, whole) << piece;
    }
    for (const std::size_t rows : {1U, 2U, 3U, 4U, 6U}) {
      Problem fewer(format, {size.inputs, size.outputs, rows});
      std::vector<float> out(rows * size.outputs);
      fewer.multiply(0, size.outputs, &out);
      EXPECT_EQ(out, std::vector<float>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(out.size()))) << rows;
    }
  });
}

TEST(StoredProduct, WhatIsNotFiniteComesThrough) {
  on_every_target([](const SimdTarget& target, const Format& format) {
    const Case size{192, 5, 3};
    SCOPED_TRACE(name_of(target, format, size));
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t place : {0U, 15U, 16U, 31U, 191U}) {
        Problem problem(format, size);
        problem.x()[size.inputs + place] = bad;
        problem.x()[size.inputs + (place ^ 1U)] = bad;  // of the same block: nothing may depend on there being one alone
        std::vector<float> out(size.rows * size.outputs);
        problem.multiply(0, size.outputs, &out);
        for (std::size_t o = 0; o < size.outputs; ++o) {
          EXPECT_TRUE(std::isfinite(out[o]));
          EXPECT_FALSE(std::isfinite(out[size.outputs + o]));
          EXPECT_TRUE(std::isfinite(out[2 * size.outputs + o]));
        }
      }
    }
  });
}

TEST(StoredProduct, ReadsNothingBehindTheWeights) {
  on_every_target([](const SimdTarget& target, const Format& format) {
    for (const Case& size : cases()) {
      SCOPED_TRACE(name_of(target, format, size));
      const std::size_t bytes = size.outputs * size.inputs / kStoredBlock * stored_block_bytes(format.format);
      const Guarded weights(bytes);
      std::memset(weights.data(), 0, bytes);
      std::vector<Int8Blocks> rows(size.rows * int8_runs(size.inputs));
      std::vector<float> out(size.rows * size.outputs, 1);
      StoredProduct product;
      product.weights = weights.data();
      product.inputs = size.inputs;
      product.x = rows.data();
      product.rows = size.rows;
      product.out = out.data();
      product.out_stride = size.outputs;
      stored_kernels()->multiply[static_cast<std::size_t>(format.format)](product, 0, size.outputs);
      EXPECT_EQ(out, std::vector<float>(out.size()));
    }
  });
}

TEST(StoredProduct, NormAndGateAreTheFormulas) {
  on_every_target([](const SimdTarget& target, const Format& format) {
    if (format.format != StoredFormat::kQ4_0) return;
    SCOPED_TRACE(target.name);
    for (const std::size_t n : {32U, 96U, 576U}) {
      std::vector<float> x = normals(n, 1);
      const std::vector<float> weight = normals(n, 2);
      std::vector<float> y(n);
      stored_kernels()->rms_norm(x.data(), weight.data(), n, 1e-5F, y.data());
      double squares = 0;
      for (const float v : x) squares += double{v} * double{v};
      const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i] * scale * weight[i], 3e-7 * std::fabs(y[i]));

      for (std::size_t i = 0; i < n; ++i) x[i] *= static_cast<float>(i);  // far into both ends
      stored_kernels()->gated(x.data(), weight.data(), n, GatedBy::kSilu, y.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double expected = x[i] / (1 + std::exp(-double{x[i]})) * weight[i];
        EXPECT_NEAR(y[i], expected, 5e-7 * std::fabs(expected) + 1e-30) << x[i];
      }
      stored_kernels()->gated(x.data(), weight.data(), n, GatedBy::kGelu, y.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double t = std::sqrt(2 / M_PI) * (x[i] + 0.044715 * std::pow(double{x[i]}, 3));
        const double expected = 0.5 * x[i] * (1 + std::tanh(t)) * weight[i];
        EXPECT_NEAR(y[i], expected, 2e-6 * std::fabs(x[i] * weight[i])) << x[i];
      }
    }
  });
}

TEST(StoredProduct, GateKeepsWhatIsNotANumber) {
  on_every_target([](const SimdTarget& target, const Format& format) {
    if (format.format != StoredFormat::kQ4_0) return;
    SCOPED_TRACE(target.name);
    std::vector<float> gate(kStoredBlock, -1000);
    const std::vector<float> up(kStoredBlock, 1);
    gate[3] = std::numeric_limits<float>::quiet_NaN();
    gate[4] = std::numeric_limits<float>::infinity();
    std::vector<float> y(kStoredBlock);
    stored_kernels()->gated(gate.data(), up.data(), gate.size(), GatedBy::kSilu, y.data());
    EXPECT_NEAR(y[0], 0, 1e-30);
    EXPECT_TRUE(std::isnan(y[3]));
    EXPECT_TRUE(std::isinf(y[4]));
  });
}

}  // namespace
}  // namespace kvartet
