#include "model/transformer.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/finite_rows.h"
#include "model/gguf_file.h"
#include "model/layer_graphs.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace kvartet {
namespace {

constexpr std::size_t kMaxLogitRows = 32;  // 32 rows of a vocabulary of 152,000 are 19 MB

// Calls run(begin, end) for pieces of at most `most` rows and nearly equal size: never a single row left over, which ggml's
// float products round differently from rows in company.
template <typename Run>
Status in_pieces(std::size_t rows, std::size_t most, const Run& run) {
  const std::size_t pieces = (rows + most - 1) / most;
  for (std::size_t p = 0; p < pieces; ++p) KV_TRY(run(rows * p / pieces, rows * (p + 1) / pieces));
  return {};
}

void copy_rows(MatView<const float> from, MatView<float> to) {
  KV_CHECK(from.cols == to.cols && from.rows >= to.rows);
  for (std::size_t r = 0; r < to.rows; ++r) std::memcpy(to.row(r), from.row(r), to.cols * sizeof(float));
}

// A lone row twice: so that a prompt's rows have the same bits however a prefill cuts them into chunks.
class InCompany {
 public:
  explicit InCompany(MatView<const float> row) {
    KV_CHECK(row.rows == 1);
    for (int twice = 0; twice < 2; ++twice) values_.insert(values_.end(), row.data, row.data + row.cols);
  }
  MatView<const float> rows() const { return {values_.data(), 2, values_.size() / 2}; }

 private:
  std::vector<float> values_;
};

class GgmlTransformer : public Transformer {
 public:
  GgmlTransformer(ModelConfig config, std::unique_ptr<Weights> weights, int threads)
      : config_(std::move(config)), weights_(std::move(weights)), graphs_(config_, *weights_, threads) {
    const ggml_tensor* factors = weights_->rope_factors();
    if (factors == nullptr) return;
    const auto* first = static_cast<const float*>(factors->data);
    config_.shape.rope.factors.assign(first, first + ggml_nelements(factors));
  }

  const ModelShape& shape() const override { return config_.shape; }
  std::size_t weight_bytes() const override { return weights_->bytes(); }
  WeightReads weight_reads() const override { return weights_->reads(); }
  Precision attention_precision() const override { return weights_->are_rounded() ? Precision::kNative : Precision::kExact; }

  Status embed(std::span<const std::int32_t> tokens, MatView<float> x) override {
    KV_CHECK(x.rows == tokens.size() && x.cols == static_cast<std::size_t>(config_.shape.hidden));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= config_.shape.vocab) {
        return bad_input(fmt::format("token {} at position {} is out of range: the vocabulary has {} tokens", tokens[i], i,
                                     config_.shape.vocab));
      }
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) weights_->embedding_row(tokens[i], x.row_span(i));
    return {};
  }

  Status convert_layer(int layer) override {
    weights_->convert_layer(layer);
    return {};
  }

  Status pre_attention(int layer, Linear linear, MatView<const float> x, std::span<const std::int32_t> positions,
                       const LayerInputs& out) override {
    check_call(layer, linear, x.cols);
    KV_CHECK(x.rows == positions.size());
    return in_pieces(x.rows, kMaxGraphRows, [&](std::size_t begin, std::size_t end) -> Status {
      LayerInputs piece{out.q.row_range(begin, end), out.k.row_range(begin, end), out.v.row_range(begin, end), {}};
      if (out.k_pre.data != nullptr) piece.k_pre = out.k_pre.row_range(begin, end);
      return pre_piece(layer, linear, x.row_range(begin, end), positions.subspan(begin, end - begin), piece);
    });
  }

  Status post_attention(int layer, Linear linear, MatView<const float> attention, MatView<float> x) override {
    check_call(layer, linear, x.cols);
    KV_CHECK(x.rows == attention.rows);
    return in_pieces(x.rows, kMaxGraphRows, [&](std::size_t begin, std::size_t end) {
      return post_piece(layer, linear, attention.row_range(begin, end), x.row_range(begin, end));
    });
  }

  Status project_attention(int layer, MatView<const float> attention, MatView<float> out) override {
    check_call(layer, Linear::kStored, out.cols);
    KV_CHECK(out.rows == attention.rows);
    return in_pieces(out.rows, kMaxGraphRows, [&](std::size_t begin, std::size_t end) -> Status {
      KV_ASSIGN(const auto result,
                graphs_.project_attention(weights_->layer(layer, Linear::kStored), attention.row_range(begin, end)));
      copy_rows(result, out.row_range(begin, end));
      return {};
    });
  }

  Status logits(MatView<const float> x, MatView<float> logits) override {
    KV_CHECK(x.rows == logits.rows && logits.cols == static_cast<std::size_t>(config_.shape.vocab));
    return in_pieces(x.rows, kMaxLogitRows, [&](std::size_t begin, std::size_t end) -> Status {
      KV_ASSIGN(const auto result, graphs_.logits(x.row_range(begin, end)));
      copy_rows(result, logits.row_range(begin, end));
      return {};
    });
  }

 private:
  void check_call(int layer, Linear linear, std::size_t columns) {
    KV_CHECK(layer >= 0 && layer < config_.shape.layer_count());
    KV_CHECK(columns == static_cast<std::size_t>(config_.shape.hidden));
    if (linear == Linear::kConverted) weights_->convert_layer(layer);
  }

  // Activations beyond F16's 65504 turn into infinities: such a piece runs again with the stored weights.
  bool overflowed(Linear linear, MatView<const float> rows) const {
    return linear == Linear::kConverted && weights_->converted_has_small_range() && !all_finite(rows);
  }

  Status pre_piece(int layer, Linear linear, MatView<const float> x, std::span<const std::int32_t> positions,
                   const LayerInputs& out) {
    if (linear == Linear::kConverted && x.rows == 1) {
      const InCompany pair(x);
      const std::int32_t both[2] = {positions[0], positions[0]};
      return pre_run(layer, linear, pair.rows(), both, out);
    }
    return pre_run(layer, linear, x, positions, out);
  }

  Status pre_run(int layer, Linear linear, MatView<const float> x, std::span<const std::int32_t> positions,
                 const LayerInputs& out) {
    const KeyBeforeRope keys = out.k_pre.data == nullptr ? KeyBeforeRope::kDropped : KeyBeforeRope::kKept;
    KV_ASSIGN(const auto result, graphs_.pre_attention(layer, weights_->layer(layer, linear), x, positions, keys));
    if (overflowed(linear, result.q) || overflowed(linear, result.k) || overflowed(linear, result.v)) {
      return pre_run(layer, Linear::kStored, x, positions, out);
    }
    copy_rows(result.q, out.q);
    copy_rows(result.k, out.k);
    copy_rows(result.v, out.v);
    if (keys == KeyBeforeRope::kKept) copy_rows(result.k_pre, out.k_pre);
    return {};
  }

  Status post_piece(int layer, Linear linear, MatView<const float> attention, MatView<float> x) {
    if (linear == Linear::kConverted && x.rows == 1) {
      const InCompany attention_pair(attention);
      const InCompany x_pair(x);
      return post_run(layer, linear, attention_pair.rows(), x_pair.rows(), x);
    }
    return post_run(layer, linear, attention, x, x);
  }

  Status post_run(int layer, Linear linear, MatView<const float> attention, MatView<const float> x, MatView<float> out) {
    KV_ASSIGN(const auto result, graphs_.post_attention(weights_->layer(layer, linear), attention, x));
    if (overflowed(linear, result)) return post_run(layer, Linear::kStored, attention, x, out);
    copy_rows(result, out);
    return {};
  }

  ModelConfig config_;
  std::unique_ptr<Weights> weights_;
  LayerGraphs graphs_;
};

}  // namespace

Result<std::unique_ptr<Transformer>> Transformer::load(const std::string& path, const LoadOptions& options) {
  if (options.threads < 1) return usage_error(fmt::format("a model cannot run on {} threads", options.threads));
  KV_ASSIGN(auto file, GgufFile::open(path));
  KV_ASSIGN(ModelConfig config, read_model_config(*file));
  KV_ASSIGN(auto weights, Weights::load(std::move(file), config, options));
  return std::unique_ptr<Transformer>(std::make_unique<GgmlTransformer>(std::move(config), std::move(weights), options.threads));
}

}  // namespace kvartet
