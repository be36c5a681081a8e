#include "plan/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "cache/spec_grammar.h"

namespace kvartet {
namespace {

struct KindEntry {
  TaskKind kind;
  std::string_view name;
  int output_tokens;
  std::string_view summary;
};
constexpr std::array<KindEntry, 6> kKinds = {
    {{TaskKind::kSingleFact, "single-fact", 64, "one passage holds the answer"},
     {TaskKind::kExtraction, "extraction", 512, "many facts from all over the text"},
     {TaskKind::kSummary, "summary", 512, "the whole text, in the large"},
     {TaskKind::kFewShot, "few-shot", 64, "examples, then a question of their form"},
     {TaskKind::kChat, "chat", 256, "recent turns, and some of the distant ones"},
     {TaskKind::kReasoning, "reasoning", 2048, "a long chain of the model's own output"}}};

const KindEntry& entry_of(TaskKind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(), [&](const KindEntry& e) { return e.kind == kind; });
}

// Pieces of task names, most telling first: "multineedle" holds "needle".
constexpr std::pair<std::string_view, TaskKind> kTaskWords[] = {{"multineedle", TaskKind::kExtraction},
                                                                {"text2json", TaskKind::kExtraction},
                                                                {"tsv", TaskKind::kExtraction},
                                                                {"longproc", TaskKind::kExtraction},
                                                                {"loong", TaskKind::kExtraction},
                                                                {"extract", TaskKind::kExtraction},
                                                                {"passage_count", TaskKind::kExtraction},
                                                                {"table", TaskKind::kExtraction},
                                                                {"needle", TaskKind::kSingleFact},
                                                                {"passage_retrieval", TaskKind::kSingleFact},
                                                                {"qasper", TaskKind::kSingleFact},
                                                                {"qa", TaskKind::kSingleFact},
                                                                {"musique", TaskKind::kSingleFact},
                                                                {"passkey", TaskKind::kSingleFact},
                                                                {"gov_report", TaskKind::kSummary},
                                                                {"qmsum", TaskKind::kSummary},
                                                                {"multi_news", TaskKind::kSummary},
                                                                {"summ", TaskKind::kSummary},
                                                                {"trec", TaskKind::kFewShot},
                                                                {"samsum", TaskKind::kFewShot},
                                                                {"fewshot", TaskKind::kFewShot},
                                                                {"chat", TaskKind::kChat},
                                                                {"gsm8k", TaskKind::kReasoning},
                                                                {"math", TaskKind::kReasoning},
                                                                {"countdown", TaskKind::kReasoning},
                                                                {"travel", TaskKind::kReasoning}};

constexpr std::pair<std::string_view, TaskKind> kQuestionWords[] = {
    {"summar", TaskKind::kSummary},      {"tl;dr", TaskKind::kSummary},       {"in a few sentences", TaskKind::kSummary},
    {"overview of", TaskKind::kSummary}, {"main points", TaskKind::kSummary}, {"step by step", TaskKind::kReasoning},
    {"prove ", TaskKind::kReasoning},    {"calculate", TaskKind::kReasoning}, {"solve ", TaskKind::kReasoning},
    {"extract", TaskKind::kExtraction},  {"list all", TaskKind::kExtraction}, {"list every", TaskKind::kExtraction},
    {"list the", TaskKind::kExtraction}, {"all the ", TaskKind::kExtraction}, {"for each", TaskKind::kExtraction},
    {"json", TaskKind::kExtraction},     {"csv", TaskKind::kExtraction},      {"table", TaskKind::kExtraction},
    {"what is", TaskKind::kSingleFact},  {"what was", TaskKind::kSingleFact}, {"what are", TaskKind::kSingleFact},
    {"who ", TaskKind::kSingleFact},     {"when ", TaskKind::kSingleFact},    {"where ", TaskKind::kSingleFact},
    {"which ", TaskKind::kSingleFact},   {"how many", TaskKind::kSingleFact}, {"how much", TaskKind::kSingleFact}};

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

int count_of(std::string_view text, std::string_view word) {
  int count = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

// Three answered examples before the question are a few-shot prompt.
bool looks_few_shot(const std::string& prompt) {
  for (const std::string_view cue : {"\nanswer:", "\na:", "\noutput:", "\ntype:", "\nsummary:"})
    if (count_of(prompt, cue) >= 3) return true;
  return false;
}

}  // namespace

const char* kind_name(TaskKind kind) { return entry_of(kind).name.data(); }
const char* kind_summary(TaskKind kind) { return entry_of(kind).summary.data(); }
int default_output_tokens(TaskKind kind) { return entry_of(kind).output_tokens; }
int Workload::answer_tokens() const { return output_tokens > 0 ? output_tokens : default_output_tokens(kind); }

Workload workload_filling(TaskKind kind, int context) {
  Workload w;
  w.kind = kind;
  w.output_tokens = std::min(default_output_tokens(kind), std::max(context / 4, 1));
  w.prompt_tokens = context - w.output_tokens;
  return w;
}

Result<TaskKind> parse_kind(std::string_view text) {
  std::vector<std::string_view> names;
  for (const KindEntry& e : kKinds) {
    if (e.name == text) return e.kind;
    names.push_back(e.name);
  }
  return usage_error(fmt::format("the kind of task {} is unknown; {}", quoted(text), choice_hint(text, names)));
}

std::optional<TaskKind> kind_of_task(std::string_view task) {
  const std::string name = lowered(task.substr(0, task.find(':')));
  for (const auto& [word, kind] : kTaskWords)
    if (name.find(word) != std::string::npos) return kind;
  return std::nullopt;
}

KindGuess guess_kind(std::string_view prompt, std::string_view question) {
  constexpr std::size_t kTail = 400;  // bytes of a prompt's end in which its question stands
  if (question.empty()) {
    if (looks_few_shot(lowered(prompt))) return {TaskKind::kFewShot, "the prompt holds several answered examples"};
    question = prompt.substr(prompt.size() - std::min(prompt.size(), kTail));
  }
  const std::string text = lowered(question);
  for (const auto& [word, kind] : kQuestionWords) {
    if (text.find(word) == std::string::npos) continue;
    return {kind, fmt::format("its words hold \"{}\"", word.substr(0, word.find_last_not_of(' ') + 1))};
  }
  return {TaskKind::kChat, "no word tells another kind"};
}

}  // namespace kvartet
