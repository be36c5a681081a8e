#include "bench/runner/second_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "bench/tasks/generated_task.h"
#include "bench/tasks/own_file.h"
#include "results/fingerprint.h"

namespace kvartet {
namespace {

using Group = std::vector<const PreparedSample*>;  // about one document, in the order of the plan

const PreparedSample* question_before(const Group& group, std::size_t own) {
  const auto fits = [&](const PreparedSample* s) { return s->next_turn != group[own]->next_turn && !s->sample.gold.empty(); };
  for (std::size_t i = own; i-- > 0;) {
    if (fits(group[i])) return group[i];
  }
  const auto behind = std::find_if(group.begin() + static_cast<std::ptrdiff_t>(own) + 1, group.end(), fits);
  return behind == group.end() ? nullptr : *behind;
}

// For each sample the one whose question is asked first; null: none.
std::vector<const PreparedSample*> first_questions(std::span<const PreparedSample> samples) {
  std::map<std::string, Group> by_document;
  for (const PreparedSample& sample : samples) by_document[sample.record.document].push_back(&sample);
  std::vector<const PreparedSample*> out(samples.size(), nullptr);
  for (const auto& [document, group] : by_document) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      out[static_cast<std::size_t>(group[i] - samples.data())] = question_before(group, i);
    }
  }
  return out;
}

PreparedSample conversation(const PreparedSample& first, const PreparedSample& second) {
  PreparedSample out = second;
  out.document = first.prompt();
  out.question = first.gold;
  out.question.insert(out.question.end(), second.next_turn.begin(), second.next_turn.end());
  // Long documents lose their middle, and another question leaves another middle.
  if (first.document != second.document) out.gold_positions.clear();
  const std::vector<Token> prompt = out.prompt();
  out.record.key.position = QuestionPosition::kSecond;
  out.record.prompt_hash = hash_tokens(prompt);
  out.record.prompt_tokens = static_cast<int>(prompt.size());
  out.record.dropped_tokens = first.record.dropped_tokens;
  return out;
}

}  // namespace

std::string how_to_ask_several(const std::string& task) {
  const Result<TaskSpec> spec = parse_task_spec(task);
  const std::string name = spec.ok() ? spec->name : task;
  if (is_record_file(name)) return "give it several lines with the same context";
  const bool has_several = spec.ok() && std::ranges::any_of(spec->keys, [](const auto& key) { return key.first == "questions"; });
  if (has_several) return "give --samples 2 or more";
  const auto entry = std::ranges::find(task_registry(), name, &TaskEntry::name);
  const bool can = entry != task_registry().end() && entry->keys.find("questions=") != std::string::npos;
  if (can) return fmt::format("give --task {}", spec_with_questions(task, 4));
  return "take a task that has them, such as docqa:questions=4, or a file of your own in which several lines have the same "
         "context";
}

bool can_ask_second(std::span<const PreparedSample> samples) {
  return std::ranges::any_of(first_questions(samples), [](const PreparedSample* first) { return first != nullptr; });
}

SecondQuestions ask_second(std::span<const PreparedSample> samples) {
  const std::vector<const PreparedSample*> first = first_questions(samples);
  SecondQuestions out;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (first[i] == nullptr) {
      ++out.alone;
    } else {
      out.samples.push_back(conversation(*first[i], samples[i]));
    }
  }
  return out;
}

}  // namespace kvartet
