// Linear part of prefill and decode on the real model (KVARTET_MODEL, or a tiny one): rates to compare between kinds of
// weights and with libllama in the same process.
#include "model/transformer.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "core/parallel_for.h"
#include "model/peer_llama.h"
#include "model/tiny_model.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

std::string model_path() {
  const char* named = std::getenv("KVARTET_MODEL");
  if (named != nullptr) return named;
  const std::string path = std::filesystem::temp_directory_path() / "kvartet_bench_tiny.gguf";
  KV_CHECK(write_tiny_model(path, {}).ok());
  return path;
}

int thread_count() {
  const char* named = std::getenv("KVARTET_THREADS");
  return named != nullptr ? std::atoi(named) : physical_cores();
}

// All layers over `rows` rows, with the queries standing in for the attention output.
class LinearPart {
 public:
  LinearPart(Transformer& model, std::size_t rows)
      : model_(model),
        rows_(rows),
        hidden_(static_cast<std::size_t>(model.shape().hidden)),
        q_cols_(static_cast<std::size_t>(layer().heads * layer().head_dim)),
        kv_cols_(static_cast<std::size_t>(layer().kv_heads * layer().head_dim)),
        x_(rows * hidden_),
        q_(rows * q_cols_),
        k_(rows * kv_cols_),
        v_(rows * kv_cols_),
        positions_(rows),
        tokens_(rows) {
    for (std::size_t i = 0; i < rows; ++i) {
      positions_[i] = static_cast<std::int32_t>(i);
      tokens_[i] = static_cast<std::int32_t>(i * 31 % 250);
    }
  }

  void run(Linear linear, std::size_t chunk) {
    KV_CHECK(model_.embed(tokens_, x()).ok());
    for (int l = 0; l < model_.shape().layer_count(); ++l) {
      if (linear == Linear::kConverted) KV_CHECK(model_.convert_layer(l).ok());
      for (std::size_t begin = 0; begin < rows_; begin += chunk) run_chunk(l, linear, begin, std::min(begin + chunk, rows_));
    }
  }

  double multiply_adds() const {
    const double per_layer =
        static_cast<double>(hidden_ * (2 * q_cols_ + 2 * kv_cols_ + 3 * static_cast<std::size_t>(model_.shape().ffn)));
    return per_layer * model_.shape().layer_count() * static_cast<double>(rows_);
  }

 private:
  const LayerShape& layer() const { return model_.shape().layers[0]; }
  MatView<float> x() { return {x_.data(), rows_, hidden_}; }
  void run_chunk(int l, Linear linear, std::size_t begin, std::size_t end) {
    const MatView<float> q = MatView<float>(q_.data(), rows_, q_cols_).row_range(begin, end);
    const LayerInputs out{q,
                          MatView<float>(k_.data(), rows_, kv_cols_).row_range(begin, end),
                          MatView<float>(v_.data(), rows_, kv_cols_).row_range(begin, end),
                          {}};
    KV_CHECK(
        model_.pre_attention(l, linear, x().row_range(begin, end), std::span(positions_).subspan(begin, end - begin), out).ok());
    KV_CHECK(model_.post_attention(l, linear, q, x().row_range(begin, end)).ok());
  }

  Transformer& model_;
  std::size_t rows_, hidden_, q_cols_, kv_cols_;
  std::vector<float> x_, q_, k_, v_;
  std::vector<std::int32_t> positions_, tokens_;
};

void bm_linear_part(benchmark::State& state, Linear linear, bool bf16_copy) {
  auto model = std::move(Transformer::load(model_path(), {.threads = thread_count(), .bf16_copy = bf16_copy})).value();
  LinearPart part(*model, static_cast<std::size_t>(state.range(0)));
  for ([[maybe_unused]] auto _ : state) part.run(linear, 512);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.range(0)), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * part.multiply_adds(), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK_CAPTURE(bm_linear_part, stored, Linear::kStored, false)
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Arg(8)
    ->Arg(512)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bm_linear_part, converted, Linear::kConverted, false)
    ->Arg(16)
    ->Arg(64)
    ->Arg(512)
    ->Arg(2048)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bm_linear_part, bf16_copy, Linear::kStored, true)
    ->Arg(1)
    ->Arg(8)
    ->Arg(512)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The same part with the products of one instruction set; "ggml" are those of ggml alone. To compare, let them take turns:
// --benchmark_filter=bm_products --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
void bm_products(benchmark::State& state, Linear linear, const std::string& name) {
  std::vector<SimdTarget> targets = simd_targets();
  if (name == "ggml") targets.back().name = name;
  const auto target = std::ranges::find(targets, name, &SimdTarget::name);
  if (target == targets.end()) return state.SkipWithError("this CPU has no such instructions");
  const ScopedSimdTarget scope(*target);
  bm_linear_part(state, linear, false);
}
BENCHMARK_CAPTURE(bm_products, stored_ggml, Linear::kStored, "ggml")
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bm_products, stored_avx2, Linear::kStored, "AVX2")
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bm_products, stored_vnni, Linear::kStored, "AVX3_VNNI")
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bm_products, converted_ggml, Linear::kConverted, "ggml")
    ->Arg(512)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bm_products, converted_bf16, Linear::kConverted, "AVX3_BF16")
    ->Arg(512)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void bm_head(benchmark::State& state) {
  auto model = std::move(Transformer::load(model_path(), {.threads = thread_count()})).value();
  const auto rows = static_cast<std::size_t>(state.range(0));
  std::vector<float> x(rows * static_cast<std::size_t>(model->shape().hidden), 0.5F);
  std::vector<float> logits(rows * static_cast<std::size_t>(model->shape().vocab));
  for ([[maybe_unused]] auto _ : state) {
    KV_CHECK(model
                 ->logits(MatView<const float>(x.data(), rows, x.size() / rows),
                          MatView<float>(logits.data(), rows, logits.size() / rows))
                 .ok());
  }
}
BENCHMARK(bm_head)->Arg(1)->Arg(8)->UseRealTime()->Unit(benchmark::kMillisecond);

void bm_peer_prefill(benchmark::State& state) {
  auto peer = std::move(PeerLlama::open(model_path(), {.threads = thread_count()})).value();
  const auto count = static_cast<int>(state.range(0));
  auto session = std::move(peer->session({.cache = PeerCache::kF16, .flash = FlashAttention::kOn, .context = count})).value();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count), 5);
  for ([[maybe_unused]] auto _ : state) KV_CHECK(time_prefill(*session, tokens).ok());
  state.counters["tokens/s"] = benchmark::Counter(count, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(bm_peer_prefill)->Arg(512)->Arg(2048)->UseRealTime()->Unit(benchmark::kMillisecond);

void bm_peer_decode(benchmark::State& state) {
  auto peer = std::move(PeerLlama::open(model_path(), {.threads = thread_count()})).value();
  auto session = std::move(peer->session({.cache = PeerCache::kF16, .flash = FlashAttention::kOff, .context = 512})).value();
  KV_CHECK(session->prefill(std::vector<std::int32_t>(8, 5)).ok());
  for ([[maybe_unused]] auto _ : state) KV_CHECK(time_decode(*session, 8, 1).ok());
}
BENCHMARK(bm_peer_decode)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvartet
