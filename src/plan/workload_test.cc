#include "plan/workload.h"

#include <gtest/gtest.h>

#include "core/rng.h"

namespace kvartet {
namespace {

TEST(Workload, EveryKindHasANameThatIsReadBack) {
  for (const TaskKind kind : kTaskKinds) EXPECT_EQ(parse_kind(kind_name(kind)).value(), kind);
  const Status status = parse_kind("sumary").status();
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(status.message().find("nearest is summary"), std::string::npos) << status.message();
  EXPECT_FALSE(parse_kind("").ok());
}

TEST(Workload, BenchmarkTasksHaveTheKindOfTheirQuestion) {
  EXPECT_EQ(kind_of_task("needle"), TaskKind::kSingleFact);
  EXPECT_EQ(kind_of_task("multineedle:k=4"), TaskKind::kExtraction);
  EXPECT_EQ(kind_of_task("longbench/multi_news"), TaskKind::kSummary);
  EXPECT_EQ(kind_of_task("longbench/hotpotqa"), TaskKind::kSingleFact);
  EXPECT_EQ(kind_of_task("longbench/trec"), TaskKind::kFewShot);
  EXPECT_EQ(kind_of_task("longbench/samsum"), TaskKind::kFewShot);
  EXPECT_EQ(kind_of_task("my.jsonl"), std::nullopt);
}

TEST(Workload, TheKindIsGuessedFromTheQuestionBeforeThePrompt) {
  EXPECT_EQ(guess_kind("List all names. ...", "Summarize the text.").kind, TaskKind::kSummary);
  EXPECT_EQ(guess_kind("", "List all companies as JSON").kind, TaskKind::kExtraction);
  EXPECT_EQ(guess_kind("A long text. Who wrote it?", "").kind, TaskKind::kSingleFact);
  EXPECT_EQ(guess_kind("Q: a\nA: b\nQ: c\nA: d\nQ: e\nA: f\nQ: g\nA:", "").kind, TaskKind::kFewShot);
  EXPECT_EQ(guess_kind("", "Hello there").kind, TaskKind::kChat);
  EXPECT_EQ(guess_kind("", "").kind, TaskKind::kChat);
  EXPECT_FALSE(guess_kind("", "Summarize").reason.empty());
}

TEST(Workload, AnyBytesAreGuessedWithoutFailing) {
  Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    std::string text(rng.below(900), ' ');
    for (char& c : text) c = static_cast<char>(rng.below(256));
    EXPECT_FALSE(guess_kind(text, i % 2 == 0 ? "" : text).reason.empty());
  }
}

}  // namespace
}  // namespace kvartet
