#include "bench/divergence.h"

#include <algorithm>

#include "core/check.h"

namespace kvartet {
namespace {

Token greedy(const Sequence& sequence) {
  const std::vector<float>& logits = sequence.logits;  // ties: the lower id, as the sampler has it
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Result<std::vector<int>> tokens_until_divergence(Engine& engine, std::span<Sequence> sequences, int limit) {
  KV_CHECK(!sequences.empty() && limit >= 0);
  std::vector<int> same(sequences.size(), limit);
  std::vector<std::size_t> together;
  for (std::size_t i = 1; i < sequences.size(); ++i) together.push_back(i);
  for (int step = 0; step < limit; ++step) {
    const Token next = greedy(sequences[0]);
    std::erase_if(together, [&](std::size_t i) {
      const bool differs = greedy(sequences[i]) != next;
      if (differs) same[i] = step;
      return differs;
    });
    if (together.empty() || step + 1 == limit) break;
    std::vector<Sequence*> batch = {&sequences[0]};
    for (const std::size_t i : together) batch.push_back(&sequences[i]);
    KV_TRY(engine.decode(batch, std::vector<Token>(batch.size(), next)));
  }
  return same;
}

}  // namespace kvartet
