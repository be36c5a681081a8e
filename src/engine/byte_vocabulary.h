// For tests: a vocabulary without a file. Token b is byte b, then any pieces the test wants; the last token ends a text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/vocabulary.h"

namespace kvartet {

class ByteVocabulary final : public Vocabulary {
 public:
  explicit ByteVocabulary(std::vector<std::string> pieces = {}) : pieces_(std::move(pieces)) {}

  int size() const override { return 257 + static_cast<int>(pieces_.size()); }
  bool adds_bos() const override { return asks_for_bos; }
  Token bos() const override { return size() - 1; }
  bool is_end(Token token) const override { return token == size() - 1; }
  Result<std::vector<Token>> tokenize(std::string_view text) const override { return tokenize_special(text); }
  std::vector<Token> tokenize_special(std::string_view text) const override {
    std::vector<Token> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string piece(Token token) const override {
    if (token < 256) return {static_cast<char>(token)};
    return token < size() - 1 ? pieces_[static_cast<std::size_t>(token) - 256] : std::string();
  }
  std::string detokenize(std::span<const Token> tokens) const override {
    std::string text;
    for (const Token token : tokens) text += piece(token);
    return text;
  }
  std::string chat_family() const override { return {}; }

  bool asks_for_bos = false;

 private:
  std::vector<std::string> pieces_;
};

}  // namespace kvartet
