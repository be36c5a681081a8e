// Quest against a slow reference that keeps every key in double (offloading.md 6).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cache/offload_fixture.h"

namespace kvartet {
namespace {

using namespace test;

constexpr int kLayers = 3;
constexpr std::size_t kQueryFloats = kHeads * kDim;

// All that the published rule says, and nothing else: per page and channel the least and the largest key, sum of the larger
// products, per query head the best max(3, budget / page) pages, the last partial page among them.
class QuestReference {
 public:
  QuestReference(int page, int budget) : page_(page), pages_(std::max(3, budget / page)) {}

  // Rows that a query head reads, ascending. keys: [rows][kDim] of its KV head.
  std::vector<std::int32_t> read(const std::vector<const float*>& keys, const float* q) const {
    const int rows = static_cast<int>(keys.size());
    std::vector<std::pair<double, int>> bounds;
    for (int first = 0; first < rows; first += page_) {
      double bound = 0;
      for (int c = 0; c < kDim; ++c) {
        double least = keys[static_cast<std::size_t>(first)][c];
        double largest = least;
        for (int t = first; t < std::min(first + page_, rows); ++t) {
          least = std::min(least, static_cast<double>(keys[static_cast<std::size_t>(t)][c]));
          largest = std::max(largest, static_cast<double>(keys[static_cast<std::size_t>(t)][c]));
        }
        bound += std::max(q[c] * least, q[c] * largest);
      }
      bounds.emplace_back(-bound, first);
    }
    std::sort(bounds.begin(), bounds.end());
    std::vector<std::int32_t> read;
    for (std::size_t p = 0; p < std::min(bounds.size(), static_cast<std::size_t>(pages_)); ++p)
      for (int t = bounds[p].second; t < std::min(bounds[p].second + page_, rows); ++t) read.push_back(t);
    std::sort(read.begin(), read.end());
    return read;
  }

 private:
  int page_;
  int pages_;
};

// Rows of f16, so that bounds in f16 are exact, as are rows in the cache.
const TokenRows& exact_rows() {
  static const TokenRows rows = [] {
    TokenRows made(400, 23);
    for (std::vector<float>* side : {&made.keys, &made.values})
      for (float& x : *side) x = float_from_f16(f16_from_float(x));
    return made;
  }();
  return rows;
}

std::vector<double> attend_reference(const float* q, int kv_head, const std::vector<std::int32_t>& read) {
  std::vector<float> k;
  std::vector<float> v;
  for (const std::int32_t t : read) {
    k.insert(k.end(), exact_rows().key(t, kv_head), exact_rows().key(t, kv_head) + kDim);
    v.insert(v.end(), exact_rows().value(t, kv_head), exact_rows().value(t, kv_head) + kDim);
  }
  return attend(std::vector<float>(q, q + kDim), k, v);
}

std::vector<float> queries_of(std::uint64_t seed) {
  Rng rng(seed, 40);
  std::vector<float> q(kQueryFloats);
  for (float& x : q) x = static_cast<float>(rng.normal());
  return q;
}

struct QuestCase {
  std::string spec;
  int prompt;
  int page;
  int budget;  // in rows
};

class QuestTest : public testing::TestWithParam<QuestCase> {};

TEST_P(QuestTest, ReadsAndAttendsAsTheReferenceDoes) {
  const QuestCase& c = GetParam();
  FedCache fed = fed_cache(c.spec, Arena::create(), small_shape(kLayers), &exact_rows());
  expect_ok(fed.prompt(c.prompt));
  const QuestReference reference(c.page, c.budget);
  for (int step = 0; step < 2 * c.page + 3; ++step) {  // the newest page fills, and another one begins
    const std::vector<float> q = queries_of(static_cast<std::uint64_t>(step));
    for (int l = 0; l < kLayers; ++l) {
      expect_ok(fed.append(l));
      expect_ok(fed.cache.before_attention(l, {q.data(), kHeads, kDim}));
      const int rows = c.prompt + step + 1;
      const std::span<const HeadView> views = fed.cache.views(l);
      const auto per_view = static_cast<std::size_t>(kHeads) / views.size();
      for (int h = 0; h < kHeads; ++h) {
        const int kv_head = h / (kHeads / kKvHeads);
        const float* const query = q.data() + static_cast<std::size_t>(h) * kDim;
        std::vector<std::int32_t> read;
        if (l < 2) {  // the first two layers read everything
          for (int t = 0; t < rows; ++t) read.push_back(t);
        } else {
          std::vector<const float*> keys;
          for (int t = 0; t < rows; ++t) keys.push_back(exact_rows().key(t, kv_head));
          read = reference.read(keys, query);
        }
        const HeadView& view = views[static_cast<std::size_t>(h) / per_view];
        ASSERT_EQ(view.rows, static_cast<int>(read.size())) << "layer " << l << " head " << h << " step " << step;
        expect_close(attend_view(std::vector<float>(query, query + kDim), view), attend_reference(query, kv_head, read), 1e-5);
      }
      expect_ok(fed.settle(l));
    }
    fed.cache.finish_step();
    expect_ok(fed.cache.check_integrity());
  }
}

INSTANTIATE_TEST_SUITE_P(Offload, QuestTest,
                         testing::Values(QuestCase{"quest:budget=64", 200, 16, 64}, QuestCase{"quest", 200, 16, 6},
                                         QuestCase{"quest:budget=0.25", 203, 16, 50},
                                         QuestCase{"quest:budget=35,chunk=5", 137, 5, 35},
                                         QuestCase{"quest:budget=32,chunk=32", 320, 32, 32},
                                         QuestCase{"quest:budget=33,chunk=11", 99, 11, 33},
                                         QuestCase{"quest:budget=64", 15, 16, 64}),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

// Pages of one row are the rows themselves: the exact best rows of every query head.
TEST(Quest, PagesOfOneRowAreTheOracle) {
  FedCache fed = fed_cache("quest:budget=20,chunk=1,dense=0", Arena::create(), small_shape(), &exact_rows());
  expect_ok(fed.prompt(250));
  expect_ok(fed.append(0));
  const std::vector<float> q = queries_of(9);
  expect_ok(fed.cache.before_attention(0, {q.data(), kHeads, kDim}));
  for (int h = 0; h < kHeads; ++h) {
    const float* const query = q.data() + static_cast<std::size_t>(h) * kDim;
    std::vector<std::pair<double, std::int32_t>> logits;
    for (int t = 0; t < 251; ++t) {
      double dot = 0;
      for (int c = 0; c < kDim; ++c) dot += static_cast<double>(query[c]) * exact_rows().key(t, h / 3)[c];
      logits.emplace_back(-dot, t);
    }
    std::sort(logits.begin(), logits.end());
    std::vector<std::int32_t> best;
    for (int i = 0; i < 20; ++i) best.push_back(logits[static_cast<std::size_t>(i)].second);
    std::sort(best.begin(), best.end());
    expect_close(attend_view(std::vector<float>(query, query + kDim), fed.cache.views(0)[static_cast<std::size_t>(h)]),
                 attend_reference(query, h / 3, best), 1e-5);
  }
}

// Nothing is read because of where it is: neither the first rows nor the newest page. That is the published rule, and why Quest
// needs a larger budget than methods that keep both (docs/methods/quest.md).
TEST(Quest, SinksAndTheNewestPageCompeteLikeAnyOther) {
  TokenRows rows(400, 29);
  std::vector<float> q(kQueryFloats, 1.0F);
  for (std::size_t t = 0; t < 400; ++t) {
    const bool wanted = t / 16 == 3 || t / 16 == 5 || t / 16 == 8;
    for (std::size_t c = 0; c < kWidth; ++c) rows.keys[t * kWidth + c] = wanted ? 1.0F : -1.0F;
  }
  FedCache fed = fed_cache("quest:budget=48,dense=0", Arena::create(), small_shape(), &rows);
  expect_ok(fed.prompt(300));
  expect_ok(fed.append(0));
  expect_ok(fed.cache.before_attention(0, {q.data(), kHeads, kDim}));
  for (int h = 0; h < kHeads; ++h) {
    const HeadView& view = fed.cache.views(0)[static_cast<std::size_t>(h)];
    EXPECT_EQ(view.rows, 48);
    for (const float x : read_rows(view.keys)) EXPECT_EQ(x, 1.0F);
  }
}

}  // namespace
}  // namespace kvartet
