// Where in a tokenized prompt the pieces stand that its answer needs: the way from a task's gold spans to the diagnostics.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bench/tasks/task.h"
#include "model/vocabulary.h"

namespace kvartet {

// Positions of the tokens that share a byte with one of the spans (bytes of `document`), ascending. `tokens` hold before +
// document as one piece of text, with any template around it. Empty where that text is not to be found in them: the prompt was
// cut.
std::vector<std::int32_t> gold_positions(const Vocabulary& vocabulary, std::span<const Token> tokens, std::string_view before,
                                         std::string_view document, std::span<const GoldSpan> spans);

}  // namespace kvartet
