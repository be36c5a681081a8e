// Prompts as token ids: one document, any number of questions about it, chat or raw; and LongBench's middle truncation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "model/vocabulary.h"

namespace kvartet {

enum class PromptForm : std::uint8_t {
  kChat,  // inside the model's chat template; a model without one gets the raw form
  kRaw,   // BOS if the file asks for it, then the text
};

// A prompt is document_part followed by one question_part. The two are tokenized apart, so the ids are the same whether
// the question is prefilled with the document or asked later on the sealed cache of the document alone.
// Control words in the text stay text. kBadInput: invalid UTF-8.
Result<std::vector<Token>> document_part(const Vocabulary& vocabulary, PromptForm form, std::string_view document);
// Ends with the header of the answer. `question` may be empty: then it is that header alone (raw: nothing).
Result<std::vector<Token>> question_part(const Vocabulary& vocabulary, PromptForm form, std::string_view question);

// What follows the text of an answer when `question` is asked next, in a turn of its own: the border between the turns, the
// question, the header of its answer. White space in front of the question has separated it from a document, and goes.
Result<std::vector<Token>> next_turn(const Vocabulary& vocabulary, PromptForm form, std::string_view question);

struct PromptText {
  std::string document;
  std::string question;  // "": none; what separates it from the document is the caller's business
};
// kBadInput: invalid UTF-8, or no text at all.
Result<std::vector<Token>> build_prompt(const Vocabulary& vocabulary, PromptForm form, const PromptText& text);

// The first and the last floor(max / 2) tokens if there are more than max; else all (compression.md 13.1: an odd max
// loses one token).
std::vector<Token> truncate_middle(std::span<const Token> tokens, std::size_t max);

// LongBench's own order: tokenize (BOS counted), cut the middle, turn both halves back to text without control tokens.
// The text is tokenized anew by the caller, so its count can differ a little from max. A character cut in two at the
// seam becomes U+FFFD, as it does in the reference.
Result<std::string> truncate_middle_text(const Vocabulary& vocabulary, std::string_view text, std::size_t max);

}  // namespace kvartet
