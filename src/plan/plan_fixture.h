// For tests: SmolLM2-135M's shape, and results that look like a benchmark's.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "core/rng.h"
#include "plan/candidates.h"
#include "plan/planner.h"

namespace kvartet::test {

inline ModelCost smol_model() {
  ModelCost m;
  m.shape.architecture = "llama";
  m.shape.hidden = 576;
  m.shape.ffn = 1536;
  m.shape.vocab = 49152;
  m.shape.context = 8192;
  m.shape.layers.assign(30, LayerShape{.heads = 9, .kv_heads = 3, .head_dim = 64, .window = 0});
  m.file_bytes = 98'000'000;
  m.parameters = 134'515'008;
  m.tied_embeddings = true;
  m.weight_type = "q4_1";
  return m;
}

inline std::vector<std::string> candidate_texts() {
  std::vector<std::string> texts;
  for (const CacheSpec& spec : candidate_specs()) texts.push_back(spec.canonical);
  return texts;
}

inline PlanInputs inputs_of(const std::vector<EvidenceCell>& cells) {
  PlanInputs in;
  in.model = smol_model();
  in.model_hash = "ours";
  in.evidence = cells;
  in.threads = 2;
  in.candidates = candidate_specs();
  return in;
}

inline Moments moments(int n, double mean, double sd) { return {.n = n, .mean = mean, .m2 = sd * sd * (n - 1)}; }

inline EvidenceCell cell(const std::string& task, int context, const std::string& spec, int n, double nats, double sd) {
  EvidenceCell c;
  c.model_hash = "ours";
  c.model_name = "smollm2";
  c.parameters = "question=seen";
  c.task = task;
  c.metric = "contains";
  c.context = context;
  c.prompt_tokens = context;
  c.spec = parse_spec(spec).value().canonical;
  c.nats = moments(n, nats, sd);
  c.score = moments(n, nats, sd);
  return c;
}

// Losses in nats as SmolLM2 shows them: kivi-2 bad everywhere, snapkv bad for summaries, streaming bad for needles.
inline std::vector<EvidenceCell> some_evidence() {
  std::vector<EvidenceCell> cells;
  for (const int context : {2048, 4096}) {
    cells.push_back(cell("needle", context, "q8_0", 12, 0.0006, 0.002));
    cells.push_back(cell("needle", context, "kivi:bits=4", 12, 0.0075, 0.01));
    cells.push_back(cell("needle", context, "kivi:bits=2", 12, 0.31, 0.2));
    cells.push_back(cell("needle", context, "snapkv", 12, 0.0015, 0.003));
    cells.push_back(cell("needle", context, "streamingllm", 12, 0.135, 0.1));
    cells.push_back(cell("longbench/multi_news", context, "q8_0", 18, 0.0008, 0.003));
    cells.push_back(cell("longbench/multi_news", context, "kivi:bits=4", 18, 0.0066, 0.016));
    cells.push_back(cell("longbench/multi_news", context, "kivi:bits=2", 18, 0.354, 0.12));
    cells.push_back(cell("longbench/multi_news", context, "snapkv", 18, 0.507, 0.33));
    cells.push_back(cell("longbench/multi_news", context, "streamingllm", 18, 0.497, 0.35));
  }
  return cells;
}

// A store of another machine and model: random losses of random caches.
inline std::vector<EvidenceCell> random_evidence(std::uint64_t seed, const std::vector<std::string>& specs) {
  Rng rng(seed, 11);
  std::vector<EvidenceCell> cells;
  const char* tasks[] = {"needle", "multineedle:k=4", "longbench/multi_news", "longbench/trec", "own.jsonl"};
  const auto count = 5 + rng.below(60);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string& spec = specs[rng.below(specs.size())];
    if (spec == "full") continue;
    const int n = static_cast<int>(1 + rng.below(40));
    EvidenceCell c = cell(tasks[rng.below(5)], static_cast<int>(256 << rng.below(6)), spec, n, std::exp(3 * rng.normal() - 5),
                          0.2 * rng.uniform());
    if (rng.below(4) == 0) c.model_hash = "other";
    if (rng.below(4) == 0) c.parameters = "question=unseen";
    cells.push_back(c);
  }
  return cells;
}

}  // namespace kvartet::test
