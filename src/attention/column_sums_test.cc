// Column sums of prefill attention against the softmax rows in double (compression.md 6.2: they need no L x L memory).
#include "attention/column_sums.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "attention/prefill_attention.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

struct Shape {
  int tokens = 0;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 16;
  int window = 0;
};

struct Feeding {
  std::vector<int> ends = {};
  int threads = 1;
  int from = 0;
  std::span<const HeadView> prefix = {};
};

class Problem {
 public:
  explicit Problem(const Shape& shape, double sharpness = 2.0)
      : s_(shape),
        q_(queries_rounded_to_bf16(random_rows(uz(s_.tokens * s_.heads * s_.head_dim), sharpness, 1), s_.head_dim)),
        k_(rounded_to_bf16(random_rows(uz(s_.tokens * s_.kv_heads * s_.head_dim), 1.0, 2))),
        v_(random_rows(uz(s_.tokens * s_.kv_heads * s_.head_dim), 1.0, 3)) {}

  HeadRows<const float> rows_of(const std::vector<float>& x, int heads) const {
    return {x.data(), uz(s_.tokens), uz(heads), uz(s_.head_dim), uz(heads * s_.head_dim)};
  }

  std::vector<float> sums(Feeding feeding, std::vector<float>* attended = nullptr) const {
    std::vector<float> out(q_.size());
    const HeadRows<float> all{out.data(), uz(s_.tokens), uz(s_.heads), uz(s_.head_dim), uz(s_.heads * s_.head_dim)};
    const int prefix_rows = feeding.prefix.empty() ? 0 : feeding.prefix[0].rows;
    ColumnSums columns;
    columns.start(s_.heads, prefix_rows + s_.tokens);
    PrefillAttention attention(feeding.threads, Precision::kNative);
    feeding.ends.push_back(s_.tokens);
    int begin = 0;
    for (const int end : feeding.ends) {
      attention.run({.q = rows_of(q_, s_.heads).token_range(uz(begin), uz(end)),
                     .k = rows_of(k_, s_.kv_heads).token_range(0, uz(end)),
                     .v = rows_of(v_, s_.kv_heads).token_range(0, uz(end)),
                     .first = begin,
                     .kept = begin,
                     .window = s_.window,
                     .prefix = feeding.prefix,
                     .out = all.token_range(uz(begin), uz(end)),
                     .columns = &columns,
                     .columns_from = feeding.from});
      begin = end;
    }
    if (attended != nullptr) *attended = out;
    return columns.read();
  }

  // The obvious way: every softmax row, added up. Prefix keys come first.
  std::vector<double> reference(int from = 0, std::span<const EncodedHead* const> prefix = {}) const {
    const std::size_t before = prefix.empty() ? 0 : prefix[0]->keys().rows;
    const std::size_t columns = before + uz(s_.tokens);
    std::vector<double> sums(uz(s_.heads) * columns, 0.0);
    for (int h = 0; h < s_.heads; ++h) {
      const std::size_t kv_head = uz(h / (s_.heads / s_.kv_heads));
      std::vector<float> keys;
      if (before > 0) keys.assign(prefix[kv_head]->keys().data, prefix[kv_head]->keys().data + before * uz(s_.head_dim));
      const MatView<const float> fresh = rows_of(k_, s_.kv_heads).head(kv_head);
      for (std::size_t t = 0; t < fresh.rows; ++t) keys.insert(keys.end(), fresh.row(t), fresh.row(t) + s_.head_dim);
      const MatView<const float> all(keys.data(), columns, uz(s_.head_dim));
      for (int t = from; t < s_.tokens; ++t) {
        const std::size_t begin = s_.window > 0 ? uz(std::max(0, t - s_.window + 1)) : 0;
        const ReferenceAttention row(q_.data() + uz(t * s_.heads + h) * uz(s_.head_dim), all, all, begin, before + uz(t) + 1);
        for (std::size_t i = 0; i < row.weights.size(); ++i) sums[uz(h) * columns + begin + i] += row.weights[i];
      }
    }
    return sums;
  }

 private:
  Shape s_;
  std::vector<float> q_, k_, v_;
};

// Queries and keys are such that BF16 holds them: where it is multiplied, each weight is still rounded by up to 2^-8 of itself.
double rounding() { return multiplies_bf16() ? 0x1p-8 + 1e-4 : 0.0; }

void expect_near(const std::vector<float>& got, const std::vector<double>& want, double bound = 2e-6) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound * (1 + want[i]) + rounding() * want[i]) << i;
}

class ColumnSumsOnTarget : public testing::TestWithParam<SimdTarget> {
 protected:
  ScopedSimdTarget scope_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, ColumnSumsOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ColumnSumsOnTarget, EqualTheSumOfSoftmaxRows) {
  for (const int tokens : {1, 2, 5, 47, 48, 49, 127, 128, 129, 300}) {
    for (const int group : {1, 3, 8}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, group " << group);
      const Problem problem({.tokens = tokens, .heads = 2 * group, .kv_heads = 2});
      expect_near(problem.sums({}), problem.reference());
    }
  }
}

TEST_P(ColumnSumsOnTarget, SlidingWindow) {
  for (const int window : {1, 3, 100, 128, 129, 300}) {
    SCOPED_TRACE(window);
    const Problem problem({.tokens = 333, .heads = 2, .kv_heads = 1, .window = window});
    expect_near(problem.sums({.ends = {200}}), problem.reference());
  }
}

// Maxima that keep growing: every block's weights must be brought to the final maximum.
TEST_P(ColumnSumsOnTarget, SharpAttention) {
  const Problem problem({.tokens = 700, .heads = 3, .kv_heads = 1, .head_dim = 64}, 20.0);
  expect_near(problem.sums({}), problem.reference(), 5e-5);  // logits of a hundred, rounded to f32
}

TEST_P(ColumnSumsOnTarget, OnlyTheLastQueriesCount) {
  const Problem problem({.tokens = 200, .heads = 3, .kv_heads = 1});
  for (const int from : {0, 1, 150, 199}) {
    expect_near(problem.sums({.ends = {50, 160}, .from = from}), problem.reference(from));
  }
}

TEST_P(ColumnSumsOnTarget, SealedPrefixComesFirst) {
  const FormatRequest kivi{.name = "kivi", .bits = 4, .group = 32};
  const EncodedHead a(std::vector<Stretch>{{kivi, kivi, 128 * 9}, {{"f16"}, {"f16"}, 50}}, 64, 5);
  const EncodedHead b(std::vector<Stretch>{{{"f16"}, {"q8_0"}, 128 * 9 + 50}}, 64, 6);
  const HeadView views[] = {a.view(), b.view()};
  const EncodedHead* const heads[] = {&a, &b};
  const Problem problem({.tokens = 140, .heads = 6, .kv_heads = 2, .head_dim = 64});
  for (const int from : {0, 139}) {
    const std::vector<double> want = problem.reference(from, heads);
    const std::vector<float> got = problem.sums({.from = from, .prefix = views});
    ASSERT_EQ(got.size(), want.size());
    // q8_0 and kivi score with rounded queries: a little further away, with kernels in integers (coded_tolerance) somewhat more.
    const double allowed = GetParam().extension >= SimdExtension::kVnni ? 1e-4 : 2e-5;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], allowed * (1 + want[i]) + rounding() * want[i]) << i;
    }
    EXPECT_EQ(got, problem.sums({.ends = {3, 100}, .threads = 3, .from = from, .prefix = views}));
  }
}

// Every query gives 1: the sums of a head add up to the number of queries (6.2).
TEST(ColumnSums, Section62NothingIsLost) {
  const Problem problem({.tokens = 900, .heads = 3, .kv_heads = 1});
  const std::vector<float> sums = problem.sums({});
  for (int h = 0; h < 3; ++h) {
    double total = 0;
    for (int t = 0; t < 900; ++t) total += static_cast<double>(sums[uz(h * 900 + t)]);
    EXPECT_NEAR(total, 900, 1e-3);
  }
}

TEST(ColumnSums, T9AndT12SameBitsForEveryChunkingAndThreadCount) {
  const Problem problem({.tokens = 700, .heads = 6, .kv_heads = 2});
  const std::vector<float> want = problem.sums({});
  EXPECT_EQ(want, problem.sums({.ends = {1, 2, 49, 128, 383, 384}}));
  for (const int threads : {2, 3, 7, 16}) EXPECT_EQ(want, problem.sums({.ends = {331}, .threads = threads})) << threads;
}

// A part that was summed earlier and the queries behind it: whole numbers, so the bits of all at once.
TEST(ColumnSums, PartsAddUpToTheWhole) {
  ColumnSums all;
  ColumnSums part;
  all.start(2, 5);
  part.start(2, 3);
  const std::uint32_t early[] = {7, 0, 11};
  const std::uint32_t late[] = {1, 2, 3, 4, 5};
  for (int head = 0; head < 2; ++head) {
    part.add(head, 0, early);
    all.add(head, 0, early);
    all.add(head, 0, late);
  }
  ColumnSums sum;
  sum.start(2, 5);
  for (int head = 0; head < 2; ++head) sum.add(head, 0, late);
  sum.add(part);
  EXPECT_EQ(sum.read(), all.read());
  ColumnSums cut;
  cut.start(2, 5);
  for (int head = 0; head < 2; ++head) cut.add(head, 0, early);
  EXPECT_EQ(cut.first(3).read(), part.read());
  EXPECT_EQ(part.bytes(), ColumnSums::bytes_of(2, 3));
}

TEST(ColumnSums, AskingForThemChangesNoOutput) {
  const Problem problem({.tokens = 400, .heads = 6, .kv_heads = 2});
  std::vector<float> with, without;
  (void)problem.sums({}, &with);
  (void)problem.sums({.from = 400}, &without);
  EXPECT_EQ(with, without);
}

}  // namespace
}  // namespace kvartet
