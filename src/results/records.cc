#include "results/records.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvartet {

const char* question_position_name(QuestionPosition position) {
  switch (position) {
    case QuestionPosition::kSeen: return "seen";
    case QuestionPosition::kUnseen: return "unseen";
    case QuestionPosition::kSecond: return "second";
  }
  return "";
}

std::string question_suffix(QuestionPosition position) {
  switch (position) {
    case QuestionPosition::kSeen: return "";
    case QuestionPosition::kUnseen: return ", question unseen";
    case QuestionPosition::kSecond: return ", second question";
  }
  return "";
}

std::optional<QuestionPosition> find_question_position(std::string_view name) {
  for (const QuestionPosition position : kQuestionPositions) {
    if (name == question_position_name(position)) return position;
  }
  return std::nullopt;
}

std::string parameters_text(const StoredResults& results) {
  std::string positions;
  for (const QuestionPosition position : kQuestionPositions) {
    const bool there = std::ranges::any_of(results.samples, [&](const SampleRecord& s) { return s.key.position == position; });
    if (there) positions += fmt::format("{}{}", positions.empty() ? "" : "+", question_position_name(position));
  }
  std::string out = positions.empty() ? "" : fmt::format("question={}", positions);
  const std::string given = results.runs.empty() ? "" : results.runs.front().identity.parameters;
  if (!given.empty()) out += fmt::format("{}{}", out.empty() ? "" : ", ", given);
  return out;
}

}  // namespace kvartet
