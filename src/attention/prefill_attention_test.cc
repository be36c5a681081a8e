// Exact causal attention against double arithmetic; the same bits for every chunking and thread count (T9, T12).
#include "attention/prefill_attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

struct Problem {
  int tokens = 0;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  int window = 0;
};

// How a prompt is fed: chunk ends, threads, and whether packed rows are kept from chunk to chunk.
struct Feeding {
  std::vector<int> ends;  // empty: all at once
  int threads = 1;
  bool keep = true;
  Precision precision = Precision::kNative;
};

class Prompt {
 public:
  explicit Prompt(const Problem& p)
      : p_(p),
        q_(random_rows(uz(p.tokens * p.heads * p.head_dim), 2.0, 1)),
        k_(random_rows(uz(p.tokens * p.kv_heads * p.head_dim), 1.0, 2)),
        v_(random_rows(uz(p.tokens * p.kv_heads * p.head_dim), 1.0, 3)) {}

  HeadRows<const float> q() const {
    return {q_.data(), uz(p_.tokens), uz(p_.heads), uz(p_.head_dim), uz(p_.heads * p_.head_dim)};
  }
  HeadRows<const float> k() const {
    return {k_.data(), uz(p_.tokens), uz(p_.kv_heads), uz(p_.head_dim), uz(p_.kv_heads * p_.head_dim)};
  }
  HeadRows<const float> v() const {
    return {v_.data(), uz(p_.tokens), uz(p_.kv_heads), uz(p_.head_dim), uz(p_.kv_heads * p_.head_dim)};
  }

  std::vector<float> attend(const Feeding& feeding, std::span<const HeadView> prefix = {}) const {
    std::vector<float> out(q_.size(), -77.0F);
    const HeadRows<float> all{out.data(), uz(p_.tokens), uz(p_.heads), uz(p_.head_dim), uz(p_.heads * p_.head_dim)};
    PrefillAttention attention(feeding.threads, feeding.precision);
    std::vector<int> ends = feeding.ends;
    if (ends.empty() || ends.back() != p_.tokens) ends.push_back(p_.tokens);
    int begin = 0;
    for (const int end : ends) {
      attention.run({.q = q().token_range(uz(begin), uz(end)),
                     .k = k().token_range(0, uz(end)),
                     .v = v().token_range(0, uz(end)),
                     .first = begin,
                     .kept = feeding.keep ? begin : 0,
                     .window = p_.window,
                     .prefix = prefix,
                     .out = all.token_range(uz(begin), uz(end))});
      begin = end;
    }
    return out;
  }

  // Every `step`-th token against the reference; prefix rows come first.
  double error(const std::vector<float>& out, int step = 1, std::span<const EncodedHead* const> prefix = {}) const {
    RelativeError error;
    for (int t = p_.tokens - 1; t >= 0; t -= step) {
      for (int h = 0; h < p_.heads; ++h) {
        const std::size_t kv_head = uz(h / (p_.heads / p_.kv_heads));
        const std::size_t offset = uz(t * p_.heads + h) * uz(p_.head_dim);
        const std::size_t begin = p_.window > 0 ? uz(std::max(0, t - p_.window + 1)) : 0;
        if (prefix.empty()) {
          error.add(out.data() + offset,
                    ReferenceAttention(q_.data() + offset, k().head(kv_head), v().head(kv_head), begin, uz(t + 1)).out);
          continue;
        }
        const std::size_t rows_before = prefix[kv_head]->keys().rows;
        const std::size_t seen =
            p_.window > 0 ? uz(std::clamp(p_.window - t - 1, 0, static_cast<int>(rows_before))) : rows_before;
        const auto last_of = [&](MatView<const float> rows) { return rows.row_range(rows.rows - seen, rows.rows); };
        const std::vector<float> keys = joined(last_of(prefix[kv_head]->keys()), k().head(kv_head).row_range(begin, uz(t + 1)));
        const std::vector<float> values =
            joined(last_of(prefix[kv_head]->values()), v().head(kv_head).row_range(begin, uz(t + 1)));
        const std::size_t rows = keys.size() / uz(p_.head_dim);
        error.add(out.data() + offset, ReferenceAttention(q_.data() + offset, {keys.data(), rows, uz(p_.head_dim)},
                                                          {values.data(), rows, uz(p_.head_dim)}, 0, rows)
                                           .out);
      }
    }
    return error.value();
  }

 private:
  static std::vector<float> joined(MatView<const float> a, MatView<const float> b) {
    std::vector<float> rows;
    for (const MatView<const float>& m : {a, b}) {
      for (std::size_t r = 0; r < m.rows; ++r) rows.insert(rows.end(), m.row(r), m.row(r) + m.cols);
    }
    return rows;
  }

  Problem p_;
  std::vector<float> q_;
  std::vector<float> k_;
  std::vector<float> v_;
};

// Where BF16 is multiplied, queries, keys, values and weights are each rounded by up to 2^-8: at random, 3e-3 of an output that
// is the average of random values, as here, and less the more the values have in common. Sums stay in f32 everywhere.
double tolerance(double exact) { return multiplies_bf16() ? 6e-3 : exact; }

class PrefillAttentionOnTarget : public testing::TestWithParam<SimdTarget> {
 protected:
  ScopedSimdTarget scope_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, PrefillAttentionOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PrefillAttentionOnTarget, EveryHeadDimensionAndT10GroupSize) {
  for (const int head_dim : {8, 16, 64, 80, 96, 128}) {
    for (const int group : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " group " << group);
      const Prompt prompt({.tokens = 150, .heads = 2 * group, .kv_heads = 2, .head_dim = head_dim});
      EXPECT_LT(prompt.error(prompt.attend({}), 7), tolerance(1e-6));
    }
  }
}

TEST_P(PrefillAttentionOnTarget, TokenCountsAroundEveryBorder) {
  for (const int tokens : {1, 2, 5, 6, 7, 47, 48, 49, 127, 128, 129, 255, 257, 385}) {
    SCOPED_TRACE(tokens);
    const Prompt prompt({.tokens = tokens, .heads = 3, .kv_heads = 1});
    EXPECT_LT(prompt.error(prompt.attend({})), tolerance(1e-6));
  }
}

TEST_P(PrefillAttentionOnTarget, LongPromptKeepsItsAccuracy) {
  const Prompt prompt({.tokens = 2000, .heads = 3, .kv_heads = 1});
  EXPECT_LT(prompt.error(prompt.attend({}), 97), tolerance(1e-6));
}

TEST_P(PrefillAttentionOnTarget, SlidingWindow) {
  for (const int window : {1, 3, 16, 100, 128, 129, 300, 1000}) {
    SCOPED_TRACE(window);
    const Prompt prompt({.tokens = 450, .heads = 4, .kv_heads = 2, .head_dim = 16, .window = window});
    const std::vector<float> whole = prompt.attend({});
    EXPECT_LT(prompt.error(whole), tolerance(1e-6));
    EXPECT_EQ(whole, prompt.attend({.ends = {1, 200, 201, 420}}));
  }
}

TEST_P(PrefillAttentionOnTarget, T9EveryChunkingGivesTheSameBits) {
  const Prompt prompt({.tokens = 700, .heads = 6, .kv_heads = 2, .head_dim = 64});
  const std::vector<float> whole = prompt.attend({});
  EXPECT_EQ(whole, prompt.attend({.ends = {331}}));
  EXPECT_EQ(whole, prompt.attend({.ends = {100, 200, 300, 400, 500, 600}}));
  EXPECT_EQ(whole, prompt.attend({.ends = {1, 2, 49, 128, 383, 384}}));
  EXPECT_EQ(whole, prompt.attend({.ends = {1, 2, 49, 128, 383, 384}, .keep = false}));
}

TEST(PrefillAttention, T12SameBitsForEveryThreadCount) {
  const Prompt prompt({.tokens = 300, .heads = 6, .kv_heads = 2, .head_dim = 64});
  const EncodedHead head(std::vector<Stretch>{{{"f16"}, {"f16"}, 1500}}, 64, 5);
  const std::vector<HeadView> prefix(2, head.view());
  const std::vector<float> want = prompt.attend({}, prefix);
  for (const int threads : {2, 3, 7, 16}) EXPECT_EQ(want, prompt.attend({.ends = {150}, .threads = threads}, prefix)) << threads;
}

TEST_P(PrefillAttentionOnTarget, SealedPrefixComesFirst) {
  const FormatRequest kivi{.name = "kivi", .bits = 4, .group = 32};
  const EncodedHead a(std::vector<Stretch>{{kivi, kivi, 128 * 9}, {{"f16"}, {"f16"}, 50}}, 64, 5);
  const EncodedHead b(std::vector<Stretch>{{{"f16"}, {"q8_0"}, 333}}, 64, 6);
  const HeadView views[] = {a.view(), b.view()};
  const EncodedHead* const heads[] = {&a, &b};
  const Prompt prompt({.tokens = 140, .heads = 6, .kv_heads = 2, .head_dim = 64});
  const std::vector<float> whole = prompt.attend({}, views);
  EXPECT_LT(prompt.error(whole, 13, heads), tolerance(coded_tolerance(GetParam())));
  EXPECT_EQ(whole, prompt.attend({.ends = {3, 100}}, views));
  EXPECT_NE(whole, prompt.attend({}));
}

// Query i sees what lies at most window - 1 rows before its own row, be it new or sealed.
TEST_P(PrefillAttentionOnTarget, SlidingWindowReachesIntoThePrefix) {
  const FormatRequest kivi{.name = "kivi", .bits = 4, .group = 32};
  const EncodedHead a(std::vector<Stretch>{{kivi, kivi, 256}, {{"f16"}, {"f16"}, 50}}, 64, 5);
  const EncodedHead b(std::vector<Stretch>{{{"f16"}, {"q8_0"}, 306}}, 64, 6);
  const HeadView views[] = {a.view(), b.view()};
  const EncodedHead* const heads[] = {&a, &b};
  for (const int window : {1, 2, 40, 140, 200, 306, 1000}) {
    SCOPED_TRACE(window);
    const Prompt prompt({.tokens = 140, .heads = 6, .kv_heads = 2, .head_dim = 64, .window = window});
    const std::vector<float> whole = prompt.attend({}, views);
    EXPECT_LT(prompt.error(whole, 1, heads), tolerance(coded_tolerance(GetParam())));
    EXPECT_EQ(whole, prompt.attend({.ends = {3, 100}}, views));
    EXPECT_EQ(whole, prompt.attend({.ends = {3, 100}, .threads = 3}, views));
  }
}

// Exact means f32 wherever it runs: the kernels that round do not show.
TEST_P(PrefillAttentionOnTarget, ExactStaysF32) {
  const Prompt prompt({.tokens = 450, .heads = 6, .kv_heads = 2, .head_dim = 80, .window = 300});
  const std::vector<float> exact = prompt.attend({.ends = {}, .precision = Precision::kExact});
  EXPECT_LT(prompt.error(exact), 1e-6);
  EXPECT_EQ(exact == prompt.attend({}), !multiplies_bf16());
}

TEST(PrefillAttention, EmptyPrefixChangesNoBit) {
  const Prompt prompt({.tokens = 100, .heads = 2, .kv_heads = 2, .head_dim = 64});
  const std::vector<HeadView> nothing(2);
  EXPECT_EQ(prompt.attend({}), prompt.attend({}, nothing));
}

TEST(PrefillAttention, LaterTokensAreNeverSeen) {
  const Prompt prompt({.tokens = 200, .heads = 1, .kv_heads = 1, .head_dim = 16});
  const std::vector<float> whole = prompt.attend({});
  // A prompt that ends earlier: the random rows are the same, the later ones do not exist.
  const Prompt shorter({.tokens = 131, .heads = 1, .kv_heads = 1, .head_dim = 16});
  const std::vector<float> cut = shorter.attend({});
  EXPECT_EQ(cut, std::vector<float>(whole.begin(), whole.begin() + 131 * 16));
}

// One object serves layers of different sizes one after the other.
TEST(PrefillAttention, ScratchOfAnEarlierLayerDoesNotLeak) {
  const Prompt big({.tokens = 300, .heads = 8, .kv_heads = 4, .head_dim = 128});
  const Prompt small({.tokens = 90, .heads = 2, .kv_heads = 1, .head_dim = 16});
  const std::vector<float> want = small.attend({});
  PrefillAttention attention(2, Precision::kNative);
  std::vector<float> big_out(300 * 8 * 128);
  attention.run({.q = big.q(), .k = big.k(), .v = big.v(), .prefix = {}, .out = {big_out.data(), 300, 8, 128, 8 * 128}});
  std::vector<float> out(90 * 2 * 16);
  attention.run({.q = small.q(), .k = small.k(), .v = small.v(), .prefix = {}, .out = {out.data(), 90, 2, 16, 2 * 16}});
  EXPECT_EQ(out, want);
}

}  // namespace
}  // namespace kvartet
