// Tokens of one sequence to the text of its answer: whole characters, cut at the first stop string.
#pragma once

#include <string>

#include "core/utf8.h"
#include "engine/engine.h"
#include "engine/stop_text.h"

namespace kvartet {

class CompletionText {
 public:
  CompletionText(const Vocabulary& vocabulary, const GenerateOptions& options)
      : vocabulary_(&vocabulary), stop_(options.stop), newline_stops_(options.stop_at_newline) {}

  // The text that became certain with this token.
  std::string push(Token token) {
    std::string out = stop_.push(characters_.push(vocabulary_->piece(token)));
    if (newline_stops_) stop_.add_stop("\n");  // from the second token on
    newline_stops_ = false;
    return out;
  }

  // What was held back. Call once, at the end.
  std::string finish() {
    if (stop_.stopped()) return {};
    std::string out = stop_.push(characters_.finish());
    if (!stop_.stopped()) out += stop_.finish();
    return out;
  }

  bool stopped() const { return stop_.stopped(); }

 private:
  const Vocabulary* vocabulary_;
  Utf8Stream characters_;
  StopText stop_;
  bool newline_stops_;
};

}  // namespace kvartet
