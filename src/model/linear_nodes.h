// Linear layers as nodes of a ggml graph: products by kernels of our own where this CPU has one for the weights' type, else
// ggml's. A node of ours does as much as it can between two points where the threads wait for each other, because at one row they
// would else wait longer than they multiply: all products of one input, with bias and what is added after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include <ggml.h>

#include "model/packed_product.h"
#include "model/stored_product.h"

namespace kvartet {

// What products are made of: rows of f32, and the norm that comes before them. The forms that kernels need are made once.
struct LinearInput {
  ggml_tensor* x = nullptr;     // [inputs, rows]
  ggml_tensor* norm = nullptr;  // weight [inputs] of an RMS norm; null: none

  ggml_tensor* plain = nullptr;  // x after the norm; null: not made yet, as the others
  ggml_tensor* int8 = nullptr;   // Int8Blocks
  ggml_tensor* bf16 = nullptr;   // [inputs, rows]
};

// A packed matrix (model/packed_product.h) is a tensor of 32-bit integers [64, inputs / 2, panels], one for each pair: no file
// has such a matrix, so that its type says what it is.
inline constexpr ggml_type kPackedType = GGML_TYPE_I32;

struct LinearFactor {
  ggml_tensor* weight = nullptr;  // [inputs, outputs], or packed
  std::size_t outputs = 0;
  ggml_tensor* bias = nullptr;  // null: none
};

// Of the weights that there are kernels for on some CPU.
std::optional<StoredFormat> stored_format(ggml_type type);

struct LinearNode;

// Makes the nodes of one graph, and must live as long as it. The kernels are those of the CPU at the time it is made.
class LinearNodes {
 public:
  LinearNodes(ggml_context* context, std::size_t rows, float norm_epsilon);
  LinearNodes(LinearNodes&&) noexcept;
  LinearNodes& operator=(LinearNodes&&) noexcept;
  ~LinearNodes();

  struct Products {
    ggml_tensor* whole = nullptr;
    std::vector<ggml_tensor*> results;  // [outputs, rows]
  };
  // The products of `input` with each matrix, in order. Where one node makes them all, their results lie at `places` (in floats)
  // of a common tensor `whole`; else each is a tensor of its own, and `whole` is null.
  Products multiply(std::span<const LinearFactor> factors, LinearInput& input, std::span<const std::size_t> places) {
    return products(factors, input, places, nullptr);
  }
  // One product, and `added` to it unless null: [outputs, rows].
  ggml_tensor* multiply(const LinearFactor& factor, LinearInput& input, ggml_tensor* added = nullptr);
  // down (act(gate x) * (up x)), and `added` to it unless null: [outputs, rows].
  struct FeedForward {
    LinearFactor gate;
    LinearFactor up;
    LinearFactor down;
    GatedBy function = GatedBy::kSilu;
  };
  ggml_tensor* feed_forward(const FeedForward& matrices, LinearInput& input, ggml_tensor* added);

 private:
  enum class Kind : std::uint8_t { kGgml, kStored, kPacked };
  Kind kind_of(const ggml_tensor& weight) const;
  Products products(std::span<const LinearFactor> factors, LinearInput& input, std::span<const std::size_t> places,
                    ggml_tensor* added);
  LinearNode* new_node(const ggml_tensor& weight);
  ggml_tensor* plain(LinearInput& input);
  ggml_tensor* form(LinearInput& input, const ggml_tensor& weight);
  ggml_tensor* new_form(Kind kind, std::size_t inputs, std::span<ggml_tensor* const> sources, ggml_custom_op_t run,
                        LinearNode* node);
  LinearInput gated(const FeedForward& matrices, LinearInput& input);
  ggml_tensor* by_ggml(const LinearFactor& factor, LinearInput& input);

  ggml_context* context_;
  std::size_t rows_;
  float epsilon_;
  const StoredKernels* stored_;
  const PackedKernels* packed_;
  std::list<LinearNode> nodes_;
};

}  // namespace kvartet
