#include "cli/shared_prompts.h"

#include <fmt/format.h>

#include "cli/command.h"
#include "core/bytes_text.h"
#include "core/counted.h"

namespace kvartet {

void SharedPrompts::begin() {
  before_ = engine_.shared_prefix_tally();
  was_held_ = engine_.shared_prefix_bytes() > 0;
}

void SharedPrompts::end() {
  const Engine::SharedPrefixTally& now = engine_.shared_prefix_tally();
  taken_ += was_held_ && now.taken > before_.taken ? 1 : 0;
  not_held_ += now.not_held > before_.not_held ? 1 : 0;
}

void SharedPrompts::print_notes() const {
  const Engine::SharedPrefixTally& tally = engine_.shared_prefix_tally();
  if (taken_ > 0) {
    print_note(
        fmt::format("{} like an earlier one, about the same document: only what follows was computed ({} held); times "
                    "to the first token count the document's own prefill",
                    counted(taken_, "prompt began", "prompts began"), bytes_text(tally.most_bytes)));
  }
  if (not_held_ > 0) {
    print_note(
        fmt::format("{} computed whole, though others are about the same document: holding its rows takes {} or "
                    "more, over half of the memory that was free",
                    counted(not_held_, "prompt"), bytes_text(tally.least_bytes)));
  }
}

}  // namespace kvartet
