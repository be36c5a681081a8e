// How long a plan takes, and how long the statistics of a large results folder (issue 8: under 50 ms with 100,000 rows).
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/file_system.h"
#include "plan/plan_fixture.h"
#include "results/planner_store.h"
#include "results/store.h"

namespace kvartet {
namespace {

// A folder with 100,000 outcomes: 8 tasks, 2 contexts, 125 samples, 50 caches; answers of 400 characters.
class LargeFolder {
 public:
  LargeFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_plan_bench_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    root_ = pattern;
    RunRecord run;
    run.identity = {.model_hash = "ours",
                    .model_name = "smollm2",
                    .model_shape = "",
                    .seed = 1,
                    .parameters = "question=seen",
                    .version = "0.1.0"};
    Store store = Store::open(FileSystem::real(), results(), run).value();
    const std::vector<std::string> all = test::candidate_texts();
    std::vector<std::string> specs = {"full"};
    for (std::size_t i = 1; i < 50; ++i) specs.push_back(all[i * (all.size() - 1) / 49]);
    Rng rng(1);
    for (int task = 0; task < 8; ++task)
      for (const int context : {2048, 4096})
        for (int i = 0; i < 125; ++i) {
          SampleRecord s;
          s.key = {"needle:v=" + std::to_string(task), context, "n" + std::to_string(i)};
          s.prompt_tokens = context;
          s.answers_json = "[]";
          s.classes_json = "null";
          std::vector<Outcome> outcomes;
          for (const std::string& spec : specs) {
            Outcome o;
            o.key = s.key;
            o.spec = spec;
            o.prediction.assign(400, 'x');
            o.score = rng.uniform();
            o.gold_log_likelihood = -rng.uniform();
            outcomes.push_back(o);
          }
          if (!store.finish_sample(s, outcomes).ok()) std::abort();
        }
  }
  ~LargeFolder() { std::filesystem::remove_all(root_); }
  std::string results() const { return root_ + "/results"; }
  std::string home() const { return root_ + "/home"; }

 private:
  std::string root_;
};

const LargeFolder& folder() {
  static const LargeFolder kFolder;
  return kFolder;
}

PlanInputs inputs_of(const std::vector<EvidenceCell>& cells) {
  PlanInputs in;
  in.model = test::smol_model();
  in.model_hash = "ours";
  in.evidence = cells;
  in.threads = 2;
  in.candidates = candidate_specs();
  return in;
}

// The first time after the results changed.
void statistics_anew(benchmark::State& state) {
  folder();
  for (auto _ : state) benchmark::DoNotOptimize(read_evidence(FileSystem::real(), folder().results()).value());
}
BENCHMARK(statistics_anew)->Unit(benchmark::kMillisecond);

// Everything that `kvartet plan` does from the second time on, the model file and printing left out.
void whole_plan(benchmark::State& state) {
  PlannerStore::open(FileSystem::real(), folder().home()).value().evidence(FileSystem::real(), folder().results()).value();
  for (auto _ : state) {
    PlannerStore planner = PlannerStore::open(FileSystem::real(), folder().home()).value();
    const std::vector<EvidenceCell> cells = planner.evidence(FileSystem::real(), folder().results()).value();
    const PlanInputs in = inputs_of(cells);
    PlanRequest request;
    request.workload.kind = TaskKind::kSummary;
    request.workload.prompt_tokens = 4096;
    request.memory = 30'000'000;
    benchmark::DoNotOptimize(make_plan(in, request).value());
  }
}
BENCHMARK(whole_plan)->Unit(benchmark::kMillisecond);

void choice_alone(benchmark::State& state) {
  const std::vector<EvidenceCell> cells = test::some_evidence();
  const PlanInputs in = inputs_of(cells);
  PlanRequest request;
  request.workload.prompt_tokens = 4096;
  request.memory = 30'000'000;
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(in, request).value());
  state.counters["candidates"] = static_cast<double>(in.candidates.size());
}
BENCHMARK(choice_alone)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvartet
