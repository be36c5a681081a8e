#include "plan/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cache/spec.h"
#include "cache/spec_method.h"
#include "plan/plan_fixture.h"

namespace kvartet {
namespace {

bool holds(const std::vector<std::string>& list, const std::string& spec) {
  return std::find(list.begin(), list.end(), parse_spec(spec).value().canonical) != list.end();
}

TEST(Candidates, AreCanonicalAndWithoutRepetition) {
  const std::vector<std::string> specs = test::candidate_texts();
  EXPECT_EQ(specs.front(), "full");
  EXPECT_EQ(std::set<std::string>(specs.begin(), specs.end()).size(), specs.size());
  for (const std::string& spec : specs) EXPECT_EQ(parse_spec(spec).value().canonical, spec);
  EXPECT_EQ(test::candidate_texts(), specs);
}

// A method that somebody adds to the grammar is a candidate without a line in the planner.
TEST(Candidates, CoverEveryMethodOfTheGrammar) {
  const std::vector<std::string> specs = test::candidate_texts();
  for (const std::span<const SpecMethod> table : {quantizer_methods(), evictor_methods()})
    for (const SpecMethod& method : table) {
      if (method.info.name == "f32") continue;
      const bool there =
          std::any_of(specs.begin(), specs.end(), [&](const std::string& s) { return s.starts_with(method.info.name); });
      EXPECT_TRUE(there) << method.info.name;
    }
}

TEST(Candidates, HoldCombinationsPairsAndBudgets) {
  const std::vector<std::string> specs = test::candidate_texts();
  for (const char* spec : {"kivi:bits=4/2", "q8_0/kivi:bits=4", "snapkv:budget=0.1", "snapkv:budget=0.25+kivi:bits=4",
                           "snapkv:budget=0.5+q8_0", "streamingllm:budget=0.25", "streamingllm+q8_0"}) {
    EXPECT_TRUE(holds(specs, spec)) << spec;
  }
  EXPECT_FALSE(holds(specs, "kivi:bits=2/4"));  // keys in fewer bits than values: nobody's choice
}

TEST(Candidates, SettingsComeFromHelpAndEntry) {
  EXPECT_EQ(settings_tried("bits=4|2, group=32|64", {}, "bits"), (std::vector<std::string>{"", "bits=4", "bits=4/2", "bits=2"}));
  EXPECT_EQ(settings_tried("", {"rotate=hadamard"}, "bits"), (std::vector<std::string>{"", "rotate=hadamard"}));
  EXPECT_EQ(settings_tried("target=1024", {"target=256"}, "budget"), (std::vector<std::string>{"", "target=256"}));
  EXPECT_EQ(settings_tried("sinks=4, window=512 (or budget)", {}, "budget").size(), 7U);
  EXPECT_EQ(settings_tried("subbits=4|2", {}, "bits"), (std::vector<std::string>{""}));
}

}  // namespace
}  // namespace kvartet
