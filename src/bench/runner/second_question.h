// The second question about a document: what does a cache that was sealed for one question still know for the next?
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/runner/prepared_sample.h"

namespace kvartet {

struct SecondQuestions {
  std::vector<PreparedSample> samples;
  int alone = 0;  // samples left out, since no other question is about their document
};

// Every sample as the second question of a conversation. `document`, after which the caches are sealed, is the whole prompt of
// another sample about the same document; `question` is that sample's reference answer, as if the model had given it, and then
// the sample's own question in a turn of its own. The other sample is the nearest one before it, of a document's first question
// the nearest one behind, so that a conversation stays the same when more questions are added. The same words are not asked
// twice, and a question without a reference answer is not asked first.
SecondQuestions ask_second(std::span<const PreparedSample> samples);

bool can_ask_second(std::span<const PreparedSample> samples);  // at least one of them

// How to get second questions out of a task that has none: "give --task needle:questions=4".
std::string how_to_ask_several(const std::string& task);

}  // namespace kvartet
