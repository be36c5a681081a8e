// A sample as token ids, built once: every cache sees exactly these.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "bench/tasks/task.h"
#include "core/status.h"
#include "model/vocabulary.h"
#include "results/records.h"

namespace kvartet {

struct PreparedSample {
  SampleRecord record;
  // The prompt is document + question; the parts are apart so that the question can also come after sealing. Of a question asked
  // second (bench/runner/second_question.h) `document` is the whole prompt of the first one.
  std::vector<Token> document;
  std::vector<Token> question;
  std::vector<Token> next_turn;  // the question in a turn of its own behind an answer's text; none: it is not known apart
  std::vector<Token> gold;       // tokens whose likelihood is measured; may be empty
  // Tokens of the prompt that hold what the answer needs; empty: unknown, or the prompt was cut.
  std::vector<std::int32_t> gold_positions;
  // So many first tokens of `document` are those of other prompts of the plan as well: they are computed once for all
  // (docs/decisions/0012-shared-documents.md). 0: none, or too few.
  int shared_tokens = 0;
  Sample sample;  // its long texts are dropped

  std::vector<Token> prompt() const;
};

// Template around the text, and LongBench's middle truncation (compression.md 13.1) where prompt + answer would exceed
// `context` tokens; the answer's room is the larger of max_new_tokens and the gold tokens.
// kBadInput: invalid UTF-8 or an empty prompt; kExhausted: not even a cut prompt fits.
Result<PreparedSample> prepare_sample(const Vocabulary& vocabulary, Sample sample, SampleKey key, int ordinal);

// Which prompts may share rows: those about one document of a task and context.
using DocumentKey = std::tuple<std::string, int, std::string>;
DocumentKey document_key(const PreparedSample& sample);

// Finds the beginnings that prompts about the same document have in common. `positions`: in how many positions of its question
// each sample runs; with two or more, every document is asked about twice at least.
void share_documents(std::span<PreparedSample> samples, std::size_t positions);

// Chat if the sample wants it and the model has a template we know, else raw.
PromptForm prompt_form(const Vocabulary& vocabulary, const Sample& sample);

// Tokens that the template adds around the text.
Result<int> template_tokens(const Vocabulary& vocabulary, PromptForm form);

}  // namespace kvartet
