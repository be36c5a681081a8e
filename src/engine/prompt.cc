#include "engine/prompt.h"

#include "core/utf8.h"

namespace kvartet {

namespace {

Result<ChatPrompt> frame(const Vocabulary& vocabulary, PromptForm form) {
  return chat_prompt(vocabulary, form == PromptForm::kChat ? vocabulary.chat_family() : "");
}

void append(std::vector<Token>* to, std::span<const Token> from) { to->insert(to->end(), from.begin(), from.end()); }

}  // namespace

Result<std::vector<Token>> document_part(const Vocabulary& vocabulary, PromptForm form, std::string_view document) {
  KV_ASSIGN(ChatPrompt pieces, frame(vocabulary, form));
  KV_ASSIGN(const std::vector<Token> text, vocabulary.tokenize(document));
  append(&pieces.before, text);
  return std::move(pieces.before);
}

Result<std::vector<Token>> question_part(const Vocabulary& vocabulary, PromptForm form, std::string_view question) {
  KV_ASSIGN(const ChatPrompt pieces, frame(vocabulary, form));
  KV_ASSIGN(std::vector<Token> tokens, vocabulary.tokenize(question));
  append(&tokens, pieces.after);
  return tokens;
}

Result<std::vector<Token>> next_turn(const Vocabulary& vocabulary, PromptForm form, std::string_view question) {
  KV_ASSIGN(ChatPrompt pieces, frame(vocabulary, form));
  const std::size_t first = question.find_first_not_of(" \t\r\n");
  std::string text(first == std::string_view::npos ? std::string_view() : question.substr(first));
  if (pieces.between.empty()) text.insert(0, "\n\n");  // the plain form has no turns; a blank line parts its texts
  KV_ASSIGN(const std::vector<Token> asked, vocabulary.tokenize(text));
  append(&pieces.between, asked);
  append(&pieces.between, pieces.after);
  return std::move(pieces.between);
}

Result<std::vector<Token>> build_prompt(const Vocabulary& vocabulary, PromptForm form, const PromptText& text) {
  if (text.document.empty() && text.question.empty()) return bad_input("the prompt is empty; give some text");
  KV_ASSIGN(std::vector<Token> tokens, document_part(vocabulary, form, text.document));
  KV_ASSIGN(const std::vector<Token> question, question_part(vocabulary, form, text.question));
  append(&tokens, question);
  return tokens;
}

std::vector<Token> truncate_middle(std::span<const Token> tokens, std::size_t max) {
  if (tokens.size() <= max) return {tokens.begin(), tokens.end()};
  const std::size_t half = max / 2;
  std::vector<Token> kept(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(half));
  append(&kept, tokens.last(half));
  return kept;
}

Result<std::string> truncate_middle_text(const Vocabulary& vocabulary, std::string_view text, std::size_t max) {
  KV_ASSIGN(const std::vector<Token> body, vocabulary.tokenize(text));
  std::vector<Token> tokens;
  if (vocabulary.adds_bos()) tokens.push_back(vocabulary.bos());
  append(&tokens, body);
  if (tokens.size() <= max) return std::string(text);
  const std::size_t half = max / 2;
  // The BOS has no text of its own, but in front of the rest it would hide the word-border space that goes with it.
  const std::span<const Token> first = std::span(tokens).first(half).subspan(vocabulary.adds_bos() && half > 0 ? 1 : 0);
  return replace_invalid_utf8(vocabulary.detokenize(first)) +
         replace_invalid_utf8(vocabulary.detokenize(std::span(tokens).last(half)));
}

}  // namespace kvartet
