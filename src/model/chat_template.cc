#include "model/chat_template.h"

#include <array>

#include <fmt/format.h>

#include "core/status.h"
#include "model/vocabulary.h"

namespace kvartet {

namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Jinja strings in a file hold a newline either as itself or as backslash n.
std::string unescape_newlines(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool escaped = text.substr(at, 2) == "\\n";
    out += escaped ? '\n' : text[at];
    at += escaped ? 1 : 0;
  }
  return out;
}

// The default system message of a ChatML template: what stands as plain text between the system header and the end of
// the turn. A place where the template inserts a variable instead has a quote or a brace there.
std::string chatml_default_system(const std::string& chat_template) {
  constexpr std::string_view kHeader = "<|im_start|>system\n";
  constexpr std::string_view kEnd = "<|im_end|>";
  for (std::size_t at = chat_template.find(kHeader); at != std::string::npos; at = chat_template.find(kHeader, at + 1)) {
    const std::size_t begin = at + kHeader.size();
    const std::size_t end = chat_template.find(kEnd, begin);
    if (end == std::string::npos) break;
    std::string_view message = std::string_view(chat_template).substr(begin, end - begin);
    if (message.find_first_of("'\"{}") == std::string_view::npos) return std::string(message);
  }
  return {};
}

ChatText chatml(const std::string& chat_template) {
  ChatText text;
  const std::string system = chatml_default_system(chat_template);
  if (!system.empty()) text.before = fmt::format("<|im_start|>system\n{}<|im_end|>\n", system);
  text.before += "<|im_start|>user\n";
  text.after = "<|im_end|>\n<|im_start|>assistant\n";
  text.between = "<|im_end|>\n<|im_start|>user\n";
  return text;
}

// What Qwen3's template writes when thinking is switched off: answers are compared, and a cache is judged by them, so they
// must not begin with a monologue of any length.
constexpr std::string_view kNoThinking = "<think>\n\n</think>\n\n";

ChatText gemma() {
  ChatText text;
  text.before = "<start_of_turn>user\n";
  text.after = "<end_of_turn>\n<start_of_turn>model\n";
  text.between = "<end_of_turn>\n<start_of_turn>user\n";
  text.starts_with_bos = true;
  return text;
}

ChatText llama3(std::string_view system) {
  ChatText text;
  if (!system.empty()) text.before = fmt::format("<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>", system);
  text.before += "<|start_header_id|>user<|end_header_id|>\n\n";
  text.after = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
  text.between = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n";
  text.starts_with_bos = true;
  return text;
}

// Llama 2 and the Mistral generations differ in the spaces inside the markers, and in how a second turn begins: as a text of its
// own (`turn_begin` <s>) or not.
ChatText inst(std::string_view chat_template, std::string_view turn_begin) {
  ChatText text;
  text.before = chat_template.empty() || contains(chat_template, "[INST] ") ? "[INST] " : "[INST]";
  text.after = chat_template.empty() || contains(chat_template, " [/INST]") ? " [/INST]" : "[/INST]";
  text.between = fmt::format("</s>{}{}", turn_begin, text.before);
  text.starts_with_bos = true;
  return text;
}

// The template writes the day it is rendered where it can; a fixed one keeps runs comparable, and is its own fallback.
constexpr std::string_view kLlama31System = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

constexpr std::array<std::string_view, 8> kFamilies = {"chatml", "qwen3",   "llama3", "llama3.1",
                                                       "llama2", "mistral", "gemma",  "plain"};

}  // namespace

std::span<const std::string_view> chat_families() { return kFamilies; }

std::string recognize_chat_family(std::string_view chat_template) {
  if (contains(chat_template, "<|im_start|>")) return contains(chat_template, "enable_thinking") ? "qwen3" : "chatml";
  if (contains(chat_template, "<start_of_turn>")) return "gemma";
  if (contains(chat_template, "<|start_header_id|>")) {
    return contains(chat_template, "Cutting Knowledge Date") ? "llama3.1" : "llama3";
  }
  if (contains(chat_template, "[INST]")) return contains(chat_template, "<<SYS>>") ? "llama2" : "mistral";
  return {};
}

bool chat_text(std::string_view family, std::string_view chat_template, ChatText* out) {
  const std::string source = unescape_newlines(chat_template);
  if (family.empty() || family == "plain") {
    *out = {};
  } else if (family == "chatml") {
    *out = chatml(source);
  } else if (family == "qwen3") {
    *out = chatml(source);
    out->after += kNoThinking;
  } else if (family == "gemma") {
    *out = gemma();
  } else if (family == "llama3") {
    *out = llama3("");
  } else if (family == "llama3.1") {
    *out = llama3(kLlama31System);
  } else if (family == "llama2" || family == "mistral") {
    *out = inst(source, family == "llama2" ? "<s>" : "");
  } else {
    return false;
  }
  return true;
}

namespace {

// A SentencePiece vocabulary puts a space before the first word of whatever it tokenizes, so a piece that follows or
// precedes another must give up the space that stands at the border.
bool adds_space_prefix(const Vocabulary& vocabulary) {
  const Result<std::vector<Token>> letter = vocabulary.tokenize("a");
  if (!letter.ok()) return false;
  std::string text;
  for (const Token token : *letter) text += vocabulary.piece(token);
  return text == " a";
}

}  // namespace

Result<ChatPrompt> chat_prompt(const Vocabulary& vocabulary, const std::string& family) {
  ChatText text;
  if (!chat_text(family, vocabulary.chat_template(), &text)) {
    return usage_error(fmt::format("unknown chat template family '{}'; known are {}", family, fmt::join(chat_families(), ", ")));
  }
  if (adds_space_prefix(vocabulary)) {
    if (text.before.ends_with(' ')) text.before.pop_back();
    if (text.after.starts_with(' ')) text.after.erase(0, 1);
    if (text.between.ends_with(' ')) text.between.pop_back();
  }
  ChatPrompt prompt;
  if (vocabulary.adds_bos() || (text.starts_with_bos && vocabulary.bos() >= 0)) prompt.before.push_back(vocabulary.bos());
  for (const auto& [piece, tokens] : {std::pair{&text.before, &prompt.before}, std::pair{&text.after, &prompt.after},
                                      std::pair{&text.between, &prompt.between}}) {
    if (piece->empty()) continue;
    const std::vector<Token> more = vocabulary.tokenize_special(*piece);
    if (more.empty())
      return bad_input(fmt::format("the vocabulary has no tokens for the chat template's '{}'; use the raw form", *piece));
    tokens->insert(tokens->end(), more.begin(), more.end());
  }
  return prompt;
}

}  // namespace kvartet
