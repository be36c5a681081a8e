// Filling a cache with random rows: depth without a prefill.
#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/rng.h"
#include "engine/engine_impl.h"

namespace kvartet {
namespace {

// Rows are drawn from a pool of normal numbers at random places: millions of rows cost a copy each. Quantizers and kernels
// see normal numbers; that rows repeat after a while changes nothing that is measured.
class RowPool {
 public:
  RowPool(std::uint64_t seed, std::size_t row_floats) : row_floats_(row_floats), numbers_(kPool + row_floats), places_(seed, 1) {
    Rng rng(seed);
    for (float& x : numbers_) x = static_cast<float>(rng.normal());
  }
  void draw(std::vector<float>* rows) {
    for (std::size_t at = 0; at < rows->size(); at += row_floats_) {
      std::copy_n(numbers_.begin() + static_cast<std::ptrdiff_t>(places_.below(kPool)), row_floats_,
                  rows->begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

 private:
  static constexpr std::size_t kPool = std::size_t{1} << 18;
  std::size_t row_floats_;
  std::vector<float> numbers_;
  Rng places_;
};

}  // namespace

Result<Sequence> Engine::fill(const CacheSpec& spec, int tokens, std::uint64_t seed) {
  if (tokens < 1) return usage_error(fmt::format("{} tokens make no cache; give at least 1", tokens));
  if (tokens > shape().context) {
    return exhausted(fmt::format("{} tokens exceed the model's context of {}; choose fewer", tokens, shape().context));
  }
  const CacheSpec specs[] = {spec};
  KV_TRY(impl_->check_specs(specs, static_cast<std::size_t>(tokens)));
  KV_ASSIGN(std::vector<Sequence> sequences, impl_->make_sequences(specs));
  Sequence& sequence = sequences.front();
  if (sequence.cache.score_need().window > 0 || sequence.cache.score_need().column_sums) {
    return usage_error(
        fmt::format("'{}' chooses rows by attention scores, which a direct fill does not have; fill by prefill", spec.canonical));
  }
  std::vector<float> keys, values, queries;
  for (int layer = 0; layer < shape().layer_count(); ++layer) {
    const LayerShape& s = shape().layers[static_cast<std::size_t>(layer)];
    const auto row_floats = static_cast<std::size_t>(s.kv_heads) * static_cast<std::size_t>(s.head_dim);
    RowPool pool(seed + static_cast<std::uint64_t>(layer), row_floats);
    keys.resize(static_cast<std::size_t>(tokens) * row_floats);
    values.resize(keys.size());
    pool.draw(&keys);
    pool.draw(&values);
    const auto rows = [&](const std::vector<float>& data) {
      return HeadRows<const float>{data.data(), static_cast<std::size_t>(tokens), static_cast<std::size_t>(s.kv_heads),
                                   static_cast<std::size_t>(s.head_dim), row_floats};
    };
    const auto observed = static_cast<std::size_t>(std::min(sequence.cache.score_need().queries, tokens));
    const std::size_t query_floats = row_floats * static_cast<std::size_t>(s.group());
    queries.resize(observed * query_floats);
    pool.draw(&queries);
    LayerRows exact;
    exact.key = rows(keys);
    exact.value = rows(values);
    if (sequence.cache.wants_pre_rope_keys()) exact.key_pre = exact.key;  // as random as after RoPE
    if (observed > 0) {
      exact.queries = {queries.data(), observed, static_cast<std::size_t>(s.heads), static_cast<std::size_t>(s.head_dim),
                       query_floats};
    }
    KV_TRY(sequence.cache.seal_prompt(layer, exact));
  }
  sequence.cache.finish_prompt(tokens);
  sequence.logits.assign(static_cast<std::size_t>(shape().vocab), 0.0F);
  return std::move(sequence);
}

}  // namespace kvartet
