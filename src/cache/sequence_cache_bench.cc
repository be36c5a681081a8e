// What a cache costs beside attention: sealing one layer of a prompt, and the bookkeeping of one decode step.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "core/rng.h"

namespace kvartet {
namespace {

// One layer of SmolLM2-135M.
constexpr int kKvHeads = 3;
constexpr int kHeads = 9;
constexpr int kDim = 64;

const char* const kSpecs[] = {"full", "f32", "q8_0", "kivi:bits=4", "kivi:bits=2", "snapkv", "streamingllm"};

struct Prompt {
  explicit Prompt(int tokens) : rows(static_cast<std::size_t>(tokens) * kKvHeads * kDim) {
    Rng rng(1);
    for (float& x : rows) x = static_cast<float>(rng.uniform() - 0.5);
    scores = {.heads = kHeads, .window_rows = 32, .tokens = tokens, .window = {}, .column_sums = {}};
    scores.window.resize(static_cast<std::size_t>(kHeads) * 32 * static_cast<std::size_t>(tokens));
    for (float& x : scores.window) x = static_cast<float>(rng.uniform());
    shape.context = 8192;
    shape.layers = {{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim, .window = 0}};
  }
  LayerRows layer_rows() const {
    const HeadRows<const float> view{rows.data(), rows.size() / kKvHeads / kDim, kKvHeads, kDim, std::size_t{kKvHeads} * kDim};
    return {.key = view, .key_pre = {}, .value = view, .scores = &scores};
  }
  SequenceCache cache(const char* spec) const { return *SequenceCache::create(*parse_spec(spec), shape, Arena::create()); }

  std::vector<float> rows;
  LayerScores scores;
  ModelShape shape;
};

void seal_prompt(benchmark::State& state) {
  const Prompt prompt(static_cast<int>(state.range(1)));
  const char* const spec = kSpecs[state.range(0)];
  for (auto _ : state) {
    SequenceCache cache = prompt.cache(spec);
    benchmark::DoNotOptimize(cache.seal_prompt(0, prompt.layer_rows()).ok());
  }
  state.SetLabel(spec);
}
BENCHMARK(seal_prompt)->ArgsProduct({{0, 1, 2, 3, 4, 5, 6}, {4096}})->Unit(benchmark::kMicrosecond);

void decode_step(benchmark::State& state) {
  const Prompt prompt(static_cast<int>(state.range(1)));
  const char* const spec = kSpecs[state.range(0)];
  SequenceCache cache = prompt.cache(spec);
  benchmark::DoNotOptimize(cache.seal_prompt(0, prompt.layer_rows()).ok());
  const MatView<const float> row(prompt.rows.data(), kKvHeads, kDim);
  for (auto _ : state) {
    benchmark::DoNotOptimize(cache.append_row(0, row, row).ok());
    benchmark::DoNotOptimize(cache.after_attention(0, {}).ok());
  }
  state.SetLabel(spec);
}
BENCHMARK(decode_step)->ArgsProduct({{0, 1, 2, 3, 4, 5, 6}, {4096}})->Iterations(2000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvartet
