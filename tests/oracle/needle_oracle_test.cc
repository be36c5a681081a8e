// The same needle prompts through our engine and through llama.cpp: as many right answers, give or take one.
// Twenty prompts of 4,096 tokens take minutes, so this runs in `make test-full` only (KVARTET_SLOW=1).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/metrics/metric.h"
#include "bench/runner/benchmark.h"
#include "core/parallel_for.h"
#include "engine/engine.h"
#include "model/peer_llama.h"

namespace kvartet {
namespace {

TEST(NeedleOracle, AnswersAsManyRightAsLlamaCpp) {
  if (std::getenv("KVARTET_SLOW") == nullptr) GTEST_SKIP() << "takes minutes; set KVARTET_SLOW=1 (make test-full does)";
  const std::string root = KVARTET_SOURCE_DIR;
  const std::string path = root + "/models/smollm2.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no model at " << path << "; make setup puts it there";

  EngineOptions options;
  options.model_path = path;
  options.threads = physical_cores();
  Result<std::unique_ptr<Engine>> engine = Engine::open(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  BenchmarkRequest request;
  request.tasks = {"needle"};
  request.contexts = {4096};
  request.samples = 20;
  request.data_dir = root + "/models";
  Result<std::vector<PlannedTask>> plan =
      plan_benchmark(request, (*engine)->vocabulary(), (*engine)->shape(), FileSystem::real());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const PlannedTask& task = plan->front();
  const Metric* metric = find_metric(task.metric);
  ASSERT_NE(metric, nullptr);

  PeerOptions peer_options;
  peer_options.threads = options.threads;
  Result<std::unique_ptr<PeerLlama>> peer = PeerLlama::open(path, peer_options);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const Result<CacheSpec> full = parse_spec("full");
  double ours = 0;
  double theirs = 0;
  for (const PreparedSample& sample : task.samples) {
    const std::vector<Token> prompt = sample.prompt();
    const int max_tokens = sample.sample.max_new_tokens;
    const auto score = [&](const std::string& text) {
      return score_answer(*metric, task.answer_cut, text, sample.sample.answers, sample.sample.all_classes);
    };
    Result<std::vector<Sequence>> sealed = (*engine)->prefill(prompt, {&*full, 1});
    ASSERT_TRUE(sealed.ok()) << sealed.status().message();
    GenerateOptions generate;
    generate.max_tokens = max_tokens;
    Sequence* list[] = {&(*sealed)[0]};
    Result<std::vector<Completion>> answer = (*engine)->generate(list, generate);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    ours += score((*answer)[0].text);

    PeerSessionOptions session;
    session.flash = FlashAttention::kOn;
    session.context = static_cast<int>(prompt.size()) + max_tokens + 8;
    Result<std::vector<std::int32_t>> tokens = (*peer)->generate(prompt, max_tokens, session);
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    theirs += score((*engine)->vocabulary().detokenize(*tokens));
  }
  std::printf("needle at 4,096, %zu prompts: ours %.0f right, llama.cpp %.0f\n", task.samples.size(), ours, theirs);
  EXPECT_NEAR(ours, theirs, 1.0);
}

}  // namespace
}  // namespace kvartet
