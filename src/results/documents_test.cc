#include "results/documents.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvartet {
namespace {

SampleRecord sample(const std::string& task, int context, const std::string& id, const std::string& document) {
  SampleRecord s;
  s.key = {task, context, id};
  s.document = document;
  return s;
}

// A short document is the same text at every context, and two tasks can ask about it: whoever pools over them has it once.
TEST(DocumentNumbers, ADocumentIsTheSameInEveryTaskContextAndPosition) {
  StoredResults results;
  results.samples = {sample("a", 1024, "0", "X"), sample("a", 2048, "0", "X"), sample("b", 1024, "7", "X"),
                     sample("a", 1024, "1", "Y")};
  results.samples.push_back(results.samples[0]);
  results.samples.back().key.position = QuestionPosition::kUnseen;
  const DocumentNumbers numbers(results);
  for (const std::size_t i : {1U, 2U, 4U}) EXPECT_EQ(numbers.of(results.samples[i].key), numbers.of(results.samples[0].key)) << i;
  EXPECT_NE(numbers.of(results.samples[3].key), numbers.of(results.samples[0].key));
}

// The same prompt, asked in one position by a program that did not know documents.
TEST(DocumentNumbers, BothPositionsHaveTheDocumentThatOneOfThemKnows) {
  StoredResults results;
  for (const char* id : {"0", "1"}) {
    results.samples.push_back(sample("a", 1024, id, ""));
    results.samples.push_back(sample("a", 1024, id, "X"));
    results.samples.back().key.position = QuestionPosition::kUnseen;
  }
  const DocumentNumbers numbers(results);
  for (const SampleRecord& s : results.samples) EXPECT_EQ(numbers.of(s.key), numbers.of(results.samples[0].key));
}

TEST(DocumentNumbers, WithoutOneEverySampleStandsForItself) {
  StoredResults results;
  results.samples = {sample("a", 1024, "0", ""), sample("a", 2048, "0", ""), sample("b", 1024, "0", ""),
                     sample("a", 1024, "1", "")};
  Outcome unknown;
  unknown.key = {"a", 1024, "2"};
  results.outcomes = {unknown};
  SampleRecord unseen = results.samples[0];
  unseen.key.position = QuestionPosition::kUnseen;
  results.samples.push_back(unseen);
  const DocumentNumbers numbers(results);
  std::set<int> different = {numbers.of(unknown.key)};
  for (const SampleRecord& s : results.samples) different.insert(numbers.of(s.key));
  EXPECT_EQ(different.size(), 5U);
  EXPECT_EQ(numbers.of(unseen.key), numbers.of(results.samples[0].key));
}

}  // namespace
}  // namespace kvartet
