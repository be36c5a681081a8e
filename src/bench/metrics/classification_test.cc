#include "bench/metrics/classification.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;

TEST(Classification, ReproducesTheSkippingFilterOfSection13_6) {
  const Words gold{"Other location"};
  EXPECT_EQ(classification("Other location", gold, Words{"Other", "location", "Other location"}), 0.5);
  EXPECT_EQ(classification("Other location", gold, Words{"location", "Other location", "Other"}), 1.0);
}

TEST(Classification, OtherClassesShareTheScore) {
  const Words classes{"Number of something", "Date", "Person"};
  EXPECT_EQ(classification("Number of something; Date", Words{"Date"}, classes), 0.5);
  EXPECT_EQ(classification("Date", Words{"Date"}, classes), 1.0);
  EXPECT_EQ(classification("Person", Words{"Date"}, classes), 0.0);
  EXPECT_EQ(classification("", Words{"Date"}, classes), 0.0);
}

TEST(Classification, CountAndRetrievalOfSection13_6) {
  EXPECT_EQ(retrieval_share("Paragraph 12 or 3", Words{"Paragraph 12"}, {}), 0.5);
  EXPECT_EQ(retrieval_share("Paragraph 012", Words{"Paragraph 12"}, {}), 0.0);
  EXPECT_EQ(retrieval_share("the first", Words{"Paragraph 1"}, {}), 0.0);
  EXPECT_EQ(retrieval_share("12", Words{"See Paragraph A, Paragraph 12"}, {}), 1.0);
  EXPECT_EQ(retrieval_share("12", Words{"no number"}, {}), 0.0);
  EXPECT_EQ(count_share("12 or 3", Words{"12"}, {}), 0.5);
  EXPECT_EQ(count_share("7.7.7", Words{"7"}, {}), 1.0);
  EXPECT_EQ(count_share("none", Words{"7"}, {}), 0.0);
}

}  // namespace
}  // namespace kvartet
