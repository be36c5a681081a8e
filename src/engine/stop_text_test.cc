#include "engine/stop_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/rng.h"

namespace kvartet {
namespace {

using std::string;

struct Outcome {
  string text;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << (o.stopped ? "\" stopped" : "\" not stopped");
}

Outcome stream(const std::vector<string>& pieces, const std::vector<string>& stops) {
  StopText matcher(stops);
  Outcome outcome;
  for (const string& piece : pieces) outcome.text += matcher.push(piece);
  outcome.text += matcher.finish();
  outcome.stopped = matcher.stopped();
  return outcome;
}

// The rule on the whole text: the stop completed first, the longest of those that end there.
Outcome search(const string& text, const std::vector<string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// user-needs C9

TEST(StopText, C9StopInsideAToken) { EXPECT_EQ(stream({"one ", "two###three", " four"}, {"###"}), (Outcome{"one two", true})); }

TEST(StopText, C9StopAcrossThreeTokens) { EXPECT_EQ(stream({"ab<", "sto", "p>cd"}, {"<stop>"}), (Outcome{"ab", true})); }

TEST(StopText, C9TwoStopsThatShareAPrefix) {
  EXPECT_EQ(stream({"x", "\n", "\nU", "ser:"}, {"\n\nUser:", "\n\nUSER"}), (Outcome{"x", true}));
  EXPECT_EQ(stream({"x", "\n", "\nUS", "ER"}, {"\n\nUser:", "\n\nUSER"}), (Outcome{"x", true}));
  EXPECT_EQ(stream({"x", "\n\nU", "SAr"}, {"\n\nUser:", "\n\nUSER"}), (Outcome{"x\n\nUSAr", false}));
}

TEST(StopText, C9TextThatOnlyBeginsLikeAStopIsNotLost) {
  EXPECT_EQ(stream({"ab", "<st", "o"}, {"<stop>"}), (Outcome{"ab<sto", false}));
}

TEST(StopText, C9NothingOfAStopLeaksEarly) {
  StopText matcher({"<stop>"});
  EXPECT_EQ(matcher.push("ab<st"), "ab");
  EXPECT_EQ(matcher.push("o"), "");
  EXPECT_EQ(matcher.push("x"), "<stox");
  EXPECT_EQ(matcher.push("<<stop>"), "<");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "") << "after the end";
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopText, RepeatedBeginnings) {
  EXPECT_EQ(stream({"a", "a", "a", "b"}, {"aab"}), (Outcome{"a", true}));
  EXPECT_EQ(stream({"aaa", "ab"}, {"aab"}), (Outcome{"aa", true}));
}

TEST(StopText, WithoutStopsEverythingPassesAtOnce) {
  StopText matcher({});
  EXPECT_EQ(matcher.push("anything\n"), "anything\n");
}

TEST(StopText, ALaterStopLooksOnlyAtLaterText) {
  StopText matcher({"\n\nQ"});
  EXPECT_EQ(matcher.push("\n"), "") << "held: it may begin the first stop";
  matcher.add_stop("\n");
  EXPECT_EQ(matcher.push("yes"), "\nyes");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.push(" and\nno"), " and");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopText, EqualsSearchingTheWholeTextForAnyBorders) {
  Rng rng(11);
  const auto word = [&](std::size_t most) {
    string s;
    for (std::size_t n = 1 + rng.below(most); s.size() < n;) s += static_cast<char>('a' + rng.below(2));
    return s;
  };
  int stopped = 0;
  for (int i = 0; i < 30000; ++i) {
    std::vector<string> stops;
    for (std::uint64_t n = rng.below(4); n > 0; --n) stops.push_back(word(6));
    std::vector<string> pieces;
    string whole;
    for (std::uint64_t n = rng.below(8); n > 0; --n) {
      pieces.push_back(word(4));
      whole += pieces.back();
    }
    const Outcome expected = search(whole, stops);
    ASSERT_EQ(stream(pieces, stops), expected) << whole;
    ASSERT_EQ(stream({whole}, stops), expected) << whole;
    stopped += expected.stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 5000);
  EXPECT_LT(stopped, 29000);
}

}  // namespace
}  // namespace kvartet
