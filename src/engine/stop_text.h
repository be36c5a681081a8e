// Finds stop strings in text that arrives in pieces, and lets text out as soon as it cannot be part of one.
//
// The text ends where a stop string is first completed, whatever the borders of the pieces; of several completed by the
// same byte the longest counts. So the result is that of searching the whole text, streamed or not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvartet {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops);  // none empty

  // A further stop string for text that comes from now on.
  void add_stop(std::string stop);

  // Text that is now certain to belong to the answer. Empty after a stop.
  std::string push(std::string_view text);
  // The end of the answer: text held back because it began like a stop.
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  std::size_t completed_stop(std::size_t end) const;  // length of the longest stop that ends at held_[end - 1]; 0: none
  std::size_t begun_stop() const;                     // length of the longest end of held_ that a stop begins with

  struct Stop {
    std::string text;
    std::size_t first = 0;  // bytes of held_ that came before it was added
  };
  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kvartet
