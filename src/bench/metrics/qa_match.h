// Question answering: token F1 (compression.md 13.2) and the two exact matches (13.3).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/metrics/metric.h"

namespace kvartet {

// Lower-case, delete ASCII punctuation, blank out the articles, split on white space: the SQuAD normalization.
std::vector<std::u32string> squad_tokens(std::string_view text);

// The official TriviaQA script's: punctuation, underscores and curly quotes become spaces.
std::vector<std::u32string> triviaqa_tokens(std::string_view text);

double qa_f1(std::string_view prediction, Texts references, Texts all_classes);
double exact_match_squad(std::string_view prediction, Texts references, Texts all_classes);
double exact_match_triviaqa(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
