#include "bench/shape_meter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "bench/speed.h"
#include "cache/format_label.h"
#include "core/clock.h"
#include "core/rng.h"
#include "core/uz.h"

namespace kvartet {
namespace {

std::vector<float> random_rows(std::size_t count, std::uint64_t stream) {
  const Rng rng(23, stream);
  std::vector<float> rows(count);
  for (std::size_t i = 0; i < count; ++i) rows[i] = static_cast<float>(static_cast<double>(rng.at(i) >> 11) * 0x1.0p-52 - 1.0);
  return rows;
}

constexpr int kAttendRounds = 7;  // short, and so the noisiest
constexpr int kDepths[] = {512, 1536, 4096};
constexpr int kDeepest = 4096;
constexpr int kPromptTokens = 2048;
constexpr int kPromptChunk = 512;
constexpr int kPrefillRounds = 5;

}  // namespace

Spread spread_of(std::vector<double> runs) {
  std::sort(runs.begin(), runs.end());
  const double median = runs[runs.size() / 2];
  return {median, median > 0 ? (runs.back() - runs.front()) / 2 / median : 0};
}

ShapeMeter::ShapeMeter(const LayerShape& layer, int threads) : layer_(layer), threads_(threads), attention_(threads) {
  const std::size_t row = uz(layer.kv_heads * layer.head_dim);
  keys_ = random_rows(uz(kDeepest) * row, 0);
  values_ = random_rows(uz(kDeepest) * row, 1);
  queries_ = random_rows(uz(layer.heads * layer.head_dim), 2);
  out_.resize(queries_.size());
  // Enough layers that the deepest f16 cache does not fit the processor's caches.
  constexpr std::size_t kBytes = 24 << 20;
  const int layers = std::clamp(static_cast<int>(kBytes / (uz(kDeepest) * row * 4)), 2, 16);
  shape_.context = 1 << 20;
  shape_.layers.assign(uz(layers), layer);
}

Status ShapeMeter::measure(std::span<const CacheSpec> specs, std::vector<Rate>* rates) {
  for (const int depth : kDepths) {
    std::vector<SequenceCache> caches;
    std::vector<double> encode(specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      KV_ASSIGN(SequenceCache cache, SequenceCache::create(specs[i], shape_, Arena::create(), {.threads = threads_}));
      KV_TRY(seal(cache, depth, &encode[i]).within(specs[i].canonical));
      caches.push_back(std::move(cache));
    }
    std::vector<std::vector<double>> runs(specs.size());
    for (int round = 0; round < kAttendRounds; ++round) {
      for (std::size_t i = 0; i < specs.size(); ++i) {
        read_bandwidth(threads_);  // sweeps the processor's caches
        runs[i].push_back(attend(caches[i]));
      }
    }
    const double heads = static_cast<double>(shape_.layers.size()) * layer_.kv_heads;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const Spread s = spread_of(std::move(runs[i]));
      add(rate::kAttend, specs[i], depth, s.median / heads, s.relative, rates);
      if (depth != kDeepest) continue;
      add(rate::kEncode, specs[i], 0, encode[i] / heads / depth, 0, rates);
      double append = 0;
      KV_TRY(append_rows(caches[i], depth, &append).within(specs[i].canonical));
      add(rate::kAppend, specs[i], 0, append / heads, 0, rates);
    }
  }
  return {};
}

Rate ShapeMeter::prefill(Precision precision) {
  PrefillAttention attention(threads_, precision);
  std::vector<double> runs;
  for (int round = 0; round < kPrefillRounds; ++round) {
    const double first = attend_prompt(attention, 0);
    runs.push_back(attend_prompt(attention, kPromptTokens / 2) - first);
  }
  const Spread s = spread_of(runs);
  // Of all pairs that are seen the first half has a quarter and the second three.
  const double flops = 0.5 * 2.0 * layer_.heads * layer_.head_dim * kPromptTokens * kPromptTokens;
  return {.what = std::string(rate::kPrefill),
          .subject = std::string(rate::precision(precision == Precision::kNative)),
          .head_dim = layer_.head_dim,
          .group = layer_.group(),
          .depth = 0,
          .value = flops / s.median,
          .spread = s.relative};
}

void ShapeMeter::add(std::string_view what, const CacheSpec& spec, int depth, double value, double spread,
                     std::vector<Rate>* rates) const {
  rates->push_back({.what = std::string(what),
                    .subject = format_label(spec.key) + "/" + format_label(spec.value),
                    .head_dim = layer_.head_dim,
                    .group = what == rate::kAttend ? layer_.group() : 0,
                    .depth = depth,
                    .value = value,
                    .spread = spread});
}

double ShapeMeter::attend_prompt(PrefillAttention& attention, int begin) {
  const auto heads = uz(layer_.heads);
  const auto kv_heads = uz(layer_.kv_heads);
  const auto dim = uz(layer_.head_dim);
  if (prompt_.empty()) prompt_ = random_rows(uz(kPromptTokens) * heads * dim, 3);
  attended_.resize(uz(kPromptChunk) * heads * dim);
  const double start = Clock::real().seconds();
  for (int first = begin; first < begin + kPromptTokens / 2; first += kPromptChunk) {
    PrefillTask task;
    task.q = {prompt_.data() + uz(first) * heads * dim, uz(kPromptChunk), heads, dim, heads * dim};
    task.k = {keys_.data(), uz(first + kPromptChunk), kv_heads, dim, kv_heads * dim};
    task.v = {values_.data(), uz(first + kPromptChunk), kv_heads, dim, kv_heads * dim};
    task.first = first;
    task.kept = first;
    task.out = {attended_.data(), uz(kPromptChunk), heads, dim, heads * dim};
    attention.run(task);
  }
  return Clock::real().seconds() - start;
}

Status ShapeMeter::seal(SequenceCache& cache, int rows, double* seconds) {
  const auto kv_heads = uz(layer_.kv_heads);
  const auto dim = uz(layer_.head_dim);
  LayerRows layer;
  layer.key = {keys_.data(), uz(rows), kv_heads, dim, kv_heads * dim};
  layer.value = {values_.data(), uz(rows), kv_heads, dim, kv_heads * dim};
  if (cache.wants_pre_rope_keys()) layer.key_pre = layer.key;
  const double begin = Clock::real().seconds();
  for (int l = 0; l < shape_.layer_count(); ++l) KV_TRY(cache.seal_prompt(l, layer));
  *seconds = Clock::real().seconds() - begin;
  cache.finish_prompt(rows);
  return {};
}

Status ShapeMeter::append_rows(SequenceCache& cache, int prompt, double* seconds) {
  constexpr int kSteps = 64;  // whole groups of every format
  const auto kv_heads = uz(layer_.kv_heads);
  const auto dim = uz(layer_.head_dim);
  const double begin = Clock::real().seconds();
  for (int step = 0; step < kSteps; ++step) {
    const std::size_t row = uz((prompt + step) % kDeepest) * kv_heads * dim;
    for (int l = 0; l < shape_.layer_count(); ++l) {
      KV_TRY(cache.append_row(l, {keys_.data() + row, kv_heads, dim}, {values_.data() + row, kv_heads, dim}));
      KV_TRY(cache.after_attention(l, {}));
    }
    cache.finish_step();
  }
  *seconds = (Clock::real().seconds() - begin) / kSteps;
  return {};
}

double ShapeMeter::attend(const SequenceCache& cache) {
  const auto group = uz(layer_.group());
  const auto dim = uz(layer_.head_dim);
  std::vector<AttentionTask> tasks(uz(layer_.kv_heads));
  const double begin = Clock::real().seconds();
  for (int l = 0; l < shape_.layer_count(); ++l) {
    const std::span<const HeadView> views = cache.views(l);
    for (std::size_t h = 0; h < tasks.size(); ++h) {
      tasks[h] = {};
      tasks[h].view = views[h];
      tasks[h].q = queries_.data() + h * group * dim;
      tasks[h].q_stride = dim;
      tasks[h].queries = layer_.group();
      tasks[h].head_dim = layer_.head_dim;
      tasks[h].out = out_.data() + h * group * dim;
      tasks[h].out_stride = dim;
    }
    attention_.run(tasks);
  }
  return Clock::real().seconds() - begin;
}

}  // namespace kvartet
