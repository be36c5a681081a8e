#include "bench/tasks/article_tasks.h"

#include <map>
#include <set>

#include "bench/tasks/made_up_articles.h"
#include "bench/tasks/task_fixture.h"

namespace kvartet {
namespace {

class ArticleTasks : public TaskFixture {};

TEST_F(ArticleTasks, DocqaAsksForOneFactOfOneArticle) {
  std::set<std::string> kinds;
  for (const Sample& s : samples("docqa", 800, 10)) {
    ASSERT_EQ(s.gold_spans.size(), 1U);
    EXPECT_EQ(gold_text(s, 0), s.gold);
    EXPECT_EQ(occurrences(s.document, s.gold), 1U);
    EXPECT_NE(s.gold.find(s.answers[0]), std::string::npos);
    kinds.insert(s.question.substr(s.question.find("What is the ") + 12, 4));
  }
  EXPECT_EQ(kinds.size(), 5U);  // every kind of fact in turn
}

TEST_F(ArticleTasks, MultihopFactsStandInTwoArticlesInBothOrders) {
  std::set<bool> company_first;
  for (const Sample& s : samples("multihop", 1200, 8)) {
    ASSERT_EQ(s.gold_spans.size(), 2U);
    const bool first_is_company = gold_text(s, 0).starts_with("The owner of");
    company_first.insert(first_is_company);
    const std::string& owner = gold_text(s, first_is_company ? 0 : 1);
    const std::string& fact = gold_text(s, first_is_company ? 1 : 0);
    EXPECT_EQ(s.gold, owner + " " + fact);
    EXPECT_GT(s.gold_spans[1].begin - s.gold_spans[0].end, s.document.size() / 6);  // apart
    EXPECT_EQ(s.question.find(s.answers[0]), std::string::npos);
    const std::string company = owner.substr(13, owner.find(" is ") - 13);
    EXPECT_NE(s.question.find(company), std::string::npos);
  }
  EXPECT_EQ(company_first.size(), 2U);
}

TEST_F(ArticleTasks, ChatGoesBackToItsFirstPerson) {
  for (const Sample& s : samples("chat:turns=4", 1200, 6)) {
    EXPECT_EQ(occurrences(s.question, "Question: "), 4U);
    EXPECT_EQ(occurrences(s.question, "Answer: "), 3U);
    EXPECT_EQ(gold_text(s, 0), s.gold);
    // What the earlier turns say stands in the document.
    for (std::size_t at = s.question.find("Answer: "); at != std::string::npos; at = s.question.find("Answer: ", at + 1)) {
      const std::string answer = s.question.substr(at + 8, s.question.find('\n', at) - at - 8);
      EXPECT_EQ(occurrences(s.document, answer), 1U) << answer;
    }
    EXPECT_EQ(s.question.find(s.gold), std::string::npos);
  }
  EXPECT_EQ(occurrences(samples("chat:turns=2", 1200, 1)[0].question, "Answer: "), 1U);
}

TEST(MadeUpArticles, NamesAreDifferentAndOwnersHaveArticles) {
  const ArticleWorld world(3, 1);
  std::set<std::string> names;
  for (std::size_t i = 0; i < ArticleWorld::kPeople; ++i) names.insert(world.person(i).name);
  EXPECT_EQ(names.size(), ArticleWorld::kPeople);
  for (std::size_t i = 0; i < ArticleWorld::kCompanies; ++i) {
    names.insert(world.company(i).name);
    EXPECT_EQ(world.company(i).owner, world.person(i).name);
  }
  EXPECT_EQ(names.size(), ArticleWorld::kPeople + ArticleWorld::kCompanies);
  const Person p = world.person(5);
  EXPECT_NE(p.birthplace, p.home);
}

class FewshotTask : public TaskFixture {};

TEST_F(FewshotTask, ExamplesCarryOneLabelPerKindAndEveryClassComesEquallyOften) {
  for (const Sample& s : samples("fewshot", 800, 6)) {
    ASSERT_EQ(s.all_classes.size(), 6U);
    std::map<std::string, int> count;
    for (const std::string& label : s.all_classes) count[label] = static_cast<int>(occurrences(s.document, "Type: " + label));
    for (const auto& [label, n] : count) EXPECT_NEAR(n, count.begin()->second, 1) << label;
    const std::string sentence = s.question.substr(2, s.question.find("\nType:") - 2);
    EXPECT_EQ(s.document.find(sentence), std::string::npos);  // not one of the examples
    EXPECT_FALSE(s.chat_template);
    EXPECT_TRUE(s.stop_at_newline);
    EXPECT_EQ(gold_continuation(s, PromptForm::kRaw), " " + s.answers[0]);
  }
  EXPECT_EQ(samples("fewshot:classes=3", 400, 1)[0].all_classes.size(), 3U);
}

// The first word of an answer must not decide: its first token comes from the exact prompt pass, whatever the cache.
TEST_F(FewshotTask, LabelsShareTheirFirstWordInPairs) {
  for (const char* spec : {"fewshot", "fewshot:classes=2", "fewshot:classes=4"}) {
    for (const Sample& s : samples(spec, 400, 4)) {
      std::map<std::string, std::set<std::string>> second_words;
      for (const std::string& label : s.all_classes) {
        const std::size_t space = label.find(' ');
        ASSERT_NE(space, std::string::npos) << label;
        second_words[label.substr(0, space)].insert(label.substr(space + 1));
      }
      EXPECT_EQ(second_words.size(), s.all_classes.size() / 2);
      for (const auto& [first, words] : second_words) EXPECT_EQ(words.size(), 2U) << first;
    }
  }
}

}  // namespace
}  // namespace kvartet
