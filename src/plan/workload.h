// What the cache is chosen for: the kind of task and its size.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"
#include "results/records.h"

namespace kvartet {

// Kinds differ in how much of the context the answer needs, which decides what a cache may lose.
enum class TaskKind : std::uint8_t {
  kSingleFact,  // one passage holds the answer
  kExtraction,  // many facts from all over the text
  kSummary,     // the whole text, in the large
  kFewShot,     // examples, then a question of their form
  kChat,        // recent turns, some of the distant ones
  kReasoning,   // a long chain of its own output
};
inline constexpr std::array<TaskKind, 6> kTaskKinds = {TaskKind::kSingleFact, TaskKind::kExtraction, TaskKind::kSummary,
                                                       TaskKind::kFewShot,    TaskKind::kChat,       TaskKind::kReasoning};

const char* kind_name(TaskKind kind);     // "single-fact", "extraction", "summary", "few-shot", "chat", "reasoning"
const char* kind_summary(TaskKind kind);  // "one passage holds the answer"
// kUsage: unknown, naming the nearest.
Result<TaskKind> parse_kind(std::string_view text);

// The kind of a benchmark task by its spec, where it is known: evidence of other tasks counts as of another kind.
std::optional<TaskKind> kind_of_task(std::string_view task);

struct KindGuess {
  TaskKind kind = TaskKind::kChat;
  std::string reason;  // "the question asks to \"summarize\""
};
// From the words of the question, or of the prompt's end when there is none. Only a guess: callers print it.
KindGuess guess_kind(std::string_view prompt, std::string_view question);

struct Workload {
  TaskKind kind = TaskKind::kChat;
  int prompt_tokens = 0;
  int output_tokens = 0;                                // of one answer; 0: default_output_tokens(kind)
  int questions = 1;                                    // on the same sealed prompt
  QuestionPosition position = QuestionPosition::kSeen;  // of the one question

  int answer_tokens() const;
  // Where the question stands when the cache is sealed: of several questions it knows none.
  QuestionPosition asked_position() const {
    return questions > 1 && position == QuestionPosition::kSeen ? QuestionPosition::kUnseen : position;
  }
};
int default_output_tokens(TaskKind kind);
// One prompt and its answer that fill a context: an answer of the usual length, but no more than a quarter of it.
Workload workload_filling(TaskKind kind, int context);

}  // namespace kvartet
