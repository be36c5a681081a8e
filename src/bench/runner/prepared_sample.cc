#include "bench/runner/prepared_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/runner/gold_positions.h"
#include "core/utf8.h"
#include "engine/prompt.h"
#include "model/shared_prefix.h"
#include "results/fingerprint.h"

namespace kvartet {
namespace {

constexpr int kLeastPromptTokens = 16;  // text below this is no prompt any more, whatever the task

// The text in two parts; `question` is empty when the cut went through it.
struct PromptParts {
  std::vector<Token> document;
  std::vector<Token> question;
  int tokens() const { return static_cast<int>(document.size() + question.size()); }
};

Result<PromptParts> tokenize_parts(const Vocabulary& vocabulary, PromptForm form, const std::string& document,
                                   const std::string& question) {
  PromptParts parts;
  KV_ASSIGN(parts.document, document_part(vocabulary, form, document));
  KV_ASSIGN(parts.question, question_part(vocabulary, form, question));
  return parts;
}

// Cut in the middle to at most `max` text tokens, then split where the question begins if it is still whole.
Result<PromptParts> truncated_parts(const Vocabulary& vocabulary, PromptForm form, const Sample& sample, int max) {
  KV_ASSIGN(std::string text, truncate_middle_text(vocabulary, sample.prompt(), static_cast<std::size_t>(max)));
  if (!sample.question.empty() && text.ends_with(sample.question)) {
    text.resize(text.size() - sample.question.size());
    return tokenize_parts(vocabulary, form, text, sample.question);
  }
  return tokenize_parts(vocabulary, form, text, "");
}

// Re-tokenizing at the seam can add a token or two, so the limit is lowered until the prompt fits.
Result<PromptParts> fitted_parts(const Vocabulary& vocabulary, PromptForm form, const Sample& sample, int limit) {
  KV_ASSIGN(const int frame, template_tokens(vocabulary, form));
  for (int max = limit - frame; max >= kLeastPromptTokens;) {
    KV_ASSIGN(PromptParts parts, truncated_parts(vocabulary, form, sample, max));
    if (parts.tokens() <= limit) return parts;
    max -= parts.tokens() - limit;
  }
  return exhausted(
      fmt::format("The sample {} does not fit: {} tokens remain for its prompt; give a larger --context.", sample.id, limit));
}

// What a reader of the results needs to understand an answer: the question, without white space around it, cut if long.
std::string shown_question(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  text = text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
  if (text.size() <= kQuestionBytes) return replace_invalid_utf8(text);
  text = text.substr(0, kQuestionBytes);
  return replace_invalid_utf8(text.substr(0, complete_utf8_prefix(text))) + "…";
}

}  // namespace

std::vector<Token> PreparedSample::prompt() const {
  std::vector<Token> out = document;
  out.insert(out.end(), question.begin(), question.end());
  return out;
}

DocumentKey document_key(const PreparedSample& sample) {
  return {sample.record.key.task, sample.record.key.context, sample.record.document};
}

// A document that is prefilled alone needs rows behind the shared ones, too; so that both positions share the same rows, all
// prompts leave them out.
void share_documents(std::span<PreparedSample> samples, std::size_t positions) {
  std::map<std::string, std::vector<PreparedSample*>> by_document;
  for (PreparedSample& sample : samples) by_document[sample.record.document].push_back(&sample);
  for (auto& [document, group] : by_document) {
    if (group.size() * positions < 2) continue;
    const std::vector<Token>& first = group.front()->document;
    int shared = prefix_tokens(static_cast<int>(first.size()), static_cast<int>(first.size()));
    for (const PreparedSample* sample : group) {
      const auto differ = std::ranges::mismatch(first, sample->document);
      shared = prefix_tokens(static_cast<int>(sample->document.size()),
                             std::min(shared, static_cast<int>(differ.in1 - first.begin())));
    }
    for (PreparedSample* sample : group) sample->shared_tokens = shared;
  }
}

PromptForm prompt_form(const Vocabulary& vocabulary, const Sample& sample) {
  return sample.chat_template && !vocabulary.chat_family().empty() ? PromptForm::kChat : PromptForm::kRaw;
}

Result<int> template_tokens(const Vocabulary& vocabulary, PromptForm form) {
  KV_ASSIGN(const std::vector<Token> before, document_part(vocabulary, form, ""));
  KV_ASSIGN(const std::vector<Token> after, question_part(vocabulary, form, ""));
  return static_cast<int>(before.size() + after.size());
}

Result<PreparedSample> prepare_sample(const Vocabulary& vocabulary, Sample sample, SampleKey key, int ordinal) {
  if (sample.prompt().empty()) return bad_input(fmt::format("The sample {} of {} has an empty prompt.", sample.id, key.task));
  PreparedSample out;
  const PromptForm form = prompt_form(vocabulary, sample);
  KV_ASSIGN(out.gold, vocabulary.tokenize(gold_continuation(sample, form)));
  const int answer_room = std::max(sample.max_new_tokens, static_cast<int>(out.gold.size()));
  const int limit = key.context - answer_room;

  KV_ASSIGN(PromptParts parts, tokenize_parts(vocabulary, form, sample.before + sample.document, sample.question));
  const int whole = parts.tokens();
  if (whole > limit) {
    KV_ASSIGN(parts, fitted_parts(vocabulary, form, sample, limit));
    out.record.dropped_tokens = whole - parts.tokens();
  }
  out.document = std::move(parts.document);
  if (out.record.dropped_tokens == 0)
    out.gold_positions = gold_positions(vocabulary, out.document, sample.before, sample.document, sample.gold_spans);
  out.question = std::move(parts.question);
  if (out.record.question = shown_question(sample.question); !out.record.question.empty()) {
    KV_ASSIGN(out.next_turn, next_turn(vocabulary, form, sample.question));
  }

  const std::vector<Token> prompt = out.prompt();
  out.record.key = std::move(key);
  out.record.ordinal = ordinal;
  out.record.prompt_hash = hash_tokens(prompt);
  out.record.prompt_tokens = static_cast<int>(prompt.size());
  out.record.gold_tokens = static_cast<int>(out.gold.size());
  out.record.length = sample.length;
  out.record.answers_json = nlohmann::json(sample.answers).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  out.record.classes_json =
      sample.all_classes.empty()
          ? "null"
          : nlohmann::json(sample.all_classes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  out.record.document = hash_bytes(sample.document.empty() ? sample.prompt() : sample.document);
  if (!sample.gold_spans.empty()) out.record.depths_json = nlohmann::json(sample.gold_depths()).dump();
  out.sample = std::move(sample);
  out.sample.before.clear();
  out.sample.document.clear();
  out.sample.question.clear();
  return out;
}

}  // namespace kvartet
