// Text to tokens and back, and the model's chat template. Runs on libllama; nobody outside model/ sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

using Token = std::int32_t;

class Vocabulary {
 public:
  static Result<std::unique_ptr<Vocabulary>> load(const std::string& gguf_path);
  virtual ~Vocabulary() = default;

  virtual int size() const = 0;
  virtual bool adds_bos() const = 0;           // does the file ask for a BOS in front?
  virtual Token bos() const = 0;               // -1: none
  virtual bool is_end(Token token) const = 0;  // end of text or of turn

  // Plain text: control words in it stay text. kBadInput: invalid UTF-8.
  virtual Result<std::vector<Token>> tokenize(std::string_view text) const = 0;
  // Template pieces: control words become control tokens.
  virtual std::vector<Token> tokenize_special(std::string_view text) const = 0;
  // The bytes of a token; may be part of a character. Control tokens give none.
  virtual std::string piece(Token token) const = 0;
  virtual std::string detokenize(std::span<const Token> tokens) const = 0;

  // Name of the recognized template family ("chatml", "llama3", ...), "" when the model has none we know.
  virtual std::string chat_family() const = 0;
  // The template's own text (Jinja), "" when the file has none: default system messages stand in it.
  virtual std::string chat_template() const { return {}; }
};

// The pieces around user text for a chat family: before + text + after, as tokens. Empty family: BOS (if asked) + text.
struct ChatPrompt {
  std::vector<Token> before;
  std::vector<Token> after;
  std::vector<Token> between;  // from the text of an answer to that of the user's next turn; none in the plain form
};
Result<ChatPrompt> chat_prompt(const Vocabulary& vocabulary, const std::string& family);

}  // namespace kvartet
