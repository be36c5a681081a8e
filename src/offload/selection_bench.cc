// What one KV head's selection costs, step by step: scores of the landmarks, one score of the group, the best of them.
// Argument: landmarks. Four queries of 64 channels; a 32nd is chosen.
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/normals_fixture.h"
#include "offload/landmark_index.h"
#include "offload/select_top.h"

namespace kvartet {
namespace {

constexpr std::size_t kDim = 64;
constexpr std::size_t kQueries = 4;

struct Head {
  Head(RowFormat format, std::size_t count)
      : landmarks(count), queries(normals(kQueries * kDim, 1)), logits(kQueries * count), scores(count) {
    const std::vector<float> keys = normals(count * kDim, 2);
    auto built = LandmarkIndex::build(*arena, {.format = format}, {keys.data(), count, kDim});
    KV_CHECK(built.ok());
    index.push_back(std::move(built).value());
  }
  MatView<const float> q() const { return {queries.data(), kQueries, kDim}; }
  MatView<float> rows() { return {logits.data(), kQueries, landmarks}; }

  std::shared_ptr<Arena> arena = Arena::create();
  std::size_t landmarks;
  std::vector<float> queries, logits, scores, scratch;
  std::vector<LandmarkIndex> index;
};

template <class Score>
void measure(benchmark::State& state, RowFormat format, const Score& score) {
  Head head(format, static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    score(head);
    benchmark::DoNotOptimize(head.logits.data());
    benchmark::DoNotOptimize(head.scores.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void score(Head& head) { head.index.front().score(head.q(), 0.125F, head.rows(), &head.scratch); }

void BM_ScoreHiggs2(benchmark::State& state) { measure(state, RowFormat::kHiggs2, score); }
void BM_ScoreHiggs2x16(benchmark::State& state) { measure(state, RowFormat::kHiggs2x16, score); }

void BM_LargestHiggs2x16(benchmark::State& state) {
  measure(state, RowFormat::kHiggs2x16,
          [](Head& head) { head.index.front().score_largest(head.q(), 0.125F, head.scores, &head.scratch); });
}

void aggregate(benchmark::State& state, Aggregate how) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const std::vector<float> logits = normals(kQueries * count, 3);
  std::vector<float> scores(count);
  for (auto _ : state) {
    aggregate_scores(how, {logits.data(), kQueries, count}, scores);
    benchmark::DoNotOptimize(scores.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void BM_MaxLogit(benchmark::State& state) { aggregate(state, Aggregate::kMaxLogit); }
void BM_MaxSoftmax(benchmark::State& state) { aggregate(state, Aggregate::kMaxSoftmax); }

// Other scores each time, as in a step: a branch predictor learns a selection that is repeated.
void BM_SelectTop(benchmark::State& state) {
  constexpr std::size_t kHeads = 90;
  const auto count = static_cast<std::size_t>(state.range(0));
  const std::vector<float> scores = normals(kHeads * count, 4);
  TopSelector top;
  std::vector<std::int32_t> chosen;
  std::size_t head = 0;
  for (auto _ : state) {
    top.select(std::span(scores).subspan(head * count, count), static_cast<int>(count) / 32, &chosen);
    benchmark::DoNotOptimize(chosen.data());
    head = (head + 1) % kHeads;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(BM_ScoreHiggs2)->Arg(7168)->Arg(32768);
BENCHMARK(BM_ScoreHiggs2x16)->Arg(7168)->Arg(32768);
BENCHMARK(BM_LargestHiggs2x16)->Arg(7168)->Arg(32768);
BENCHMARK(BM_MaxLogit)->Arg(32768);
BENCHMARK(BM_MaxSoftmax)->Arg(7168)->Arg(32768);
BENCHMARK(BM_SelectTop)->Arg(7168)->Arg(32768);

}  // namespace
}  // namespace kvartet
