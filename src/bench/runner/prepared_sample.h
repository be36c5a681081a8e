// A sample as token ids, built once: every cache sees exactly these.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/tasks/task.h"
#include "core/status.h"
#include "model/vocabulary.h"
#include "results/records.h"

namespace kvartet {

struct PreparedSample {
  SampleRecord record;
  // The prompt is document + question; the parts are apart so that the question can also come after sealing.
  std::vector<Token> document;
  std::vector<Token> question;
  std::vector<Token> gold;  // tokens whose likelihood is measured; may be empty
  Sample sample;            // its long texts are dropped

  std::vector<Token> prompt() const;
};

// Template around the text, and LongBench's middle truncation (compression.md 13.1) where prompt + answer would exceed
// `context` tokens; the answer's room is the larger of max_new_tokens and the gold tokens.
// kBadInput: invalid UTF-8 or an empty prompt; kExhausted: not even a cut prompt fits.
Result<PreparedSample> prepare_sample(const Vocabulary& vocabulary, Sample sample, SampleKey key, int ordinal);

// Chat if the sample wants it and the model has a template we know, else raw.
PromptForm prompt_form(const Vocabulary& vocabulary, const Sample& sample);

// Tokens that the template adds around the text.
Result<int> template_tokens(const Vocabulary& vocabulary, PromptForm form);

}  // namespace kvartet
