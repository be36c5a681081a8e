#include "bench/metrics/table_rows.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;
using Rows = std::vector<std::vector<std::string>>;

constexpr const char* kGold = "name\tprice\nThe Cat\t$1.50\nDog, big\t$2\nBird\tN/A\nFish\t$4\n";

// offloading.md 13.4, worked example: precision 4/5, recall 3/4, F1 0.7742.
TEST(TableRows, WorkedExample) {
  const TableScore s = score_table("```tsv\nx\ty\ncat\t1.50\nDog big\t$2\nBird\tna\nBird\tN/A\nLion\t9\n```", kGold);
  EXPECT_DOUBLE_EQ(s.precision, 0.8);
  EXPECT_DOUBLE_EQ(s.recall, 0.75);
  EXPECT_NEAR(s.f1, 0.7742, 5e-5);
  EXPECT_EQ(s.extraction_rate, 1);
}

TEST(TableRows, ExtractsFromTheFirstOpeningToTheLastFence) {
  EXPECT_EQ(tsv_block("Sure:\n```tsv\na\tb\n```\nand\n```\nrest"), "a\tb\n```\nand");
  EXPECT_EQ(tsv_block("x ```tsv\na\tb"), "a\tb");
  EXPECT_EQ(tsv_block("  a\tb \n"), "a\tb");
  EXPECT_EQ(tsv_block("```\na\tb\n```"), "```\na\tb\n```");  // no tsv fence: everything
  EXPECT_EQ(tsv_block(""), "");
}

TEST(TableRows, ParsesCsvQuotes) {
  EXPECT_EQ(parse_tsv("a\tb\n1\t2"), (Rows{{"a", "b"}, {"1", "2"}}));
  EXPECT_EQ(parse_tsv("\"a\tx\ny\"\tb"), (Rows{{"a\tx\ny", "b"}}));
  EXPECT_EQ(parse_tsv("\"say \"\"hi\"\"\"\tb"), (Rows{{"say \"hi\"", "b"}}));
  EXPECT_EQ(parse_tsv("5\" nail\tb"), (Rows{{"5\" nail", "b"}}));  // not at the start of the field: a plain character
  EXPECT_EQ(parse_tsv("\"open\tb\n1\t2"), (Rows{{"open\tb\n1\t2"}}));
  EXPECT_EQ(parse_tsv("a\t\n\nb\tc\r\n"), (Rows{{"a", ""}, {}, {"b", "c"}, {}}));
  EXPECT_EQ(parse_tsv(""), Rows{});
}

TEST(TableRows, WrongColumnCounts) {
  // The last row is dropped, others become N/A in every cell: one more wrong row.
  const TableScore cut = score_table("n\tp\nThe Cat\t$1.50\nDog", kGold);
  EXPECT_EQ(cut.precision, 1);
  EXPECT_EQ(cut.recall, 0.25);
  const TableScore inner = score_table("n\tp\nThe Cat\t$1.50\nDog\nFish\t$4", kGold);
  EXPECT_DOUBLE_EQ(inner.precision, 2.0 / 3);
  EXPECT_EQ(inner.recall, 0.5);
  EXPECT_EQ(score_table("n\tp\tq\nThe Cat\t$1.50\tx", kGold).extraction_rate, 0);
}

TEST(TableRows, NothingToCompareScoresZero) {
  for (const char* prediction : {"", "no table", "n\tp", "n\tp\nDog", "n\tn\nThe Cat\t$1.50"}) {
    const TableScore s = score_table(prediction, kGold);
    EXPECT_EQ(s.precision + s.recall + s.f1 + s.extraction_rate, 0) << prediction;
  }
}

TEST(TableRows, CellsAreNormalizedAndOrderedByPosition) {
  EXPECT_EQ(score_table("n\tp\nthe  cat!\t150", kGold).precision, 1);
  EXPECT_EQ(score_table("n\tp\n$1.50\tThe Cat", kGold).precision, 0);
  EXPECT_EQ(score_table("n\tp\nan a the\t\"\"", "x\ty\na\t\"\"").f1, 1);  // both empty
}

TEST(TableRows, MetricAndParts) {
  const Words gold{kGold};
  EXPECT_EQ(table_rows_f1(kGold, gold, {}), 1);
  const std::vector<ScorePart> parts = table_rows_parts("nothing", gold, {});
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[3].name, "extraction_rate");
  EXPECT_EQ(parts[3].value, 0);
}

}  // namespace
}  // namespace kvartet
