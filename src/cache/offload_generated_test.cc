// generated=N: rows of the answer that go far block by block, so that a long output stays bounded in the fast tier, and are found
// again among the prompt's (docs/methods/yakv.md).
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "cache/offload_fixture.h"
#include "core/faulty_file_system.h"

namespace kvartet {
namespace {

using namespace test;

constexpr int kPrompt = 300;
constexpr int kLocal = 16;
constexpr int kBudget = 20;
constexpr int kBlock = 64;

std::string more_of(const std::string& spec, int rows) {
  return fmt::format("{}generated={}", spec.find(':') == std::string::npos ? ":" : ",", rows);
}

std::string exact(const std::string& more) { return kExact + ",budget=20,local=16" + more; }

// What attention has to see of a head: rows near, and the best of the others by exact scores.
std::vector<std::int32_t> expected_positions(const Offloaded& fed, const std::vector<float>& q, int head, int now, int far) {
  std::vector<std::int32_t> candidates;
  for (int t = 0; t < kPrompt - kLocal; ++t) candidates.push_back(t);
  for (int t = kPrompt; t < kPrompt + far; ++t) candidates.push_back(t);
  std::vector<double> score(candidates.size(), -1e300);
  for (int g = 0; g < kHeads / kKvHeads; ++g) {
    std::vector<double> logits;
    double sum = 0;
    for (const int t : candidates) {
      double dot = 0;
      for (int c = 0; c < kDim; ++c)
        dot +=
            static_cast<double>(q[static_cast<std::size_t>((head * (kHeads / kKvHeads) + g) * kDim + c)]) * fed.key(t, head)[c];
      logits.push_back(dot / 8);
      sum += std::exp(logits.back());
    }
    for (std::size_t j = 0; j < score.size(); ++j) score[j] = std::max(score[j], logits[j] - std::log(sum));
  }
  std::vector<std::size_t> order(score.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
  std::vector<std::int32_t> seen;
  for (std::size_t i = 0; i < kBudget; ++i) seen.push_back(candidates[order[i]]);
  for (int t = kPrompt - kLocal; t < kPrompt; ++t) seen.push_back(t);
  for (int t = kPrompt + far; t < now; ++t) seen.push_back(t);
  std::sort(seen.begin(), seen.end());
  return seen;
}

TEST(OffloadGenerated, NothingChangesUntilAsManyRowsAreNear) {
  for (const std::string spec :
       {"yakv:budget=32", "yakv-engine:min=0", "arkvale", "oracle:share=head", "select:index=residual"}) {
    const std::string more = more_of(spec, 128);
    Offloaded fed(spec + more, 900);
    Offloaded all_near(spec, 900);
    for (Offloaded* one : {&fed, &all_near}) expect_ok(one->prompt(700));
    for (std::uint64_t i = 1; i <= 128; ++i) {
      for (Offloaded* one : {&fed, &all_near}) expect_ok(one->begin_step(one->queries(i)));
      expect_same_views(fed.cache(), all_near.cache());
      if (i < 128) {
        EXPECT_EQ(fed.cache().bytes(), all_near.cache().bytes()) << spec << " " << i;
      }
      for (Offloaded* one : {&fed, &all_near}) expect_ok(one->end_step());
    }
    expect_ok(fed.step(fed.queries(0)));
    expect_ok(all_near.step(fed.queries(0)));
    EXPECT_LT(fed.cache().views(0)[0].rows, all_near.cache().views(0)[0].rows) << spec;
  }
}

// Selection among prompt and answer against the obvious way, and attention over what it gives.
TEST(OffloadGenerated, RowsThatWentFarCompeteWithThePrompt) {
  for (const std::string tier : {"", ",tier=mmap", ",tier=disk", ",cache=0.5"}) {
    Offloaded fed(exact(",generated=100" + tier), 900);
    expect_ok(fed.prompt(kPrompt));
    int far = 0;
    bool chosen = false;
    for (int i = 0; i < 500; ++i) {
      const std::vector<float> q = fed.queries(static_cast<std::uint64_t>(i));
      expect_ok(fed.begin_step(q));
      for (int h = 0; h < kKvHeads && i % 37 == 0; ++h) {
        const HeadView& view = fed.cache().views(0)[static_cast<std::size_t>(h)];
        const std::vector<std::int32_t> positions = fed.positions_in(view, h);
        ASSERT_EQ(positions, expected_positions(fed, q, h, kPrompt + i + 1, far)) << i << tier;
        const float* const query = q.data() + static_cast<std::size_t>(3 * h) * kDim;
        expect_close(attend_view(std::vector<float>(query, query + kDim), view), fed.attend_exactly(query, h, positions), 1e-5);
        for (const std::int32_t p : fed.cache().selection(0, h).selected) chosen = chosen || p >= kPrompt;
      }
      expect_ok(fed.end_step());
      if (i + 1 - far == 100) far += kBlock;
    }
    EXPECT_EQ(far, 7 * kBlock);
    EXPECT_TRUE(chosen);
    expect_ok(fed.cache().check_integrity());
  }
}

// A needle written early in the answer: the query that asks for it finds it, whatever the index.
TEST(OffloadGenerated, ANeedleGeneratedEarlyIsFoundLate) {
  for (const std::string spec :
       {"yakv:budget=16", "select:index=higgs2x16,budget=16", "select:index=bf16,chunk=8,budget=16,outliers=cosine,sinks=16",
        "select:index=residual,budget=16", "arkvale:budget=32", "yakv:budget=16,groups=joint", "yakv:budget=16,tier=disk"}) {
    Offloaded fed(spec + ",local=32,generated=128", 1400);
    constexpr int kNeedle = 640 + 5;
    for (int t = kNeedle / 8 * 8; t < kNeedle / 8 * 8 + 8; ++t)
      for (std::size_t c = 0; c < kWidth; ++c)
        fed.post()[static_cast<std::size_t>(t) * kWidth + c] = 3 * fed.post()[static_cast<std::size_t>(kNeedle) * kWidth + c];
    expect_ok(fed.prompt(600));
    for (int i = 0; i < 700; ++i) expect_ok(fed.step(fed.queries(static_cast<std::uint64_t>(i))));
    std::vector<float> q = fed.queries(1);
    for (std::size_t h = 0; h < kHeads; ++h) std::copy_n(fed.key(kNeedle, static_cast<int>(h) / 3), kDim, q.data() + h * kDim);
    expect_ok(fed.begin_step(q));
    for (int h = 0; h < kKvHeads; ++h) {
      const std::vector<std::int32_t> selected = fed.cache().selection(0, h).selected;
      EXPECT_TRUE(std::binary_search(selected.begin(), selected.end(), kNeedle)) << spec << " head " << h;
    }
    // And it is the needle that came back, at its own angle.
    std::vector<float> key(kDim);
    std::vector<float> value(kDim);
    const std::int32_t at[] = {kNeedle};
    expect_ok(fed.cache().read_far_rows(0, 1, at, {key.data(), 1, kDim}, {value.data(), 1, kDim}));
    double error = 0;
    double norm = 0;
    for (int c = 0; c < kDim; ++c) {
      error += std::pow(key[static_cast<std::size_t>(c)] - fed.key(kNeedle, 1)[c], 2);
      norm += std::pow(fed.key(kNeedle, 1)[c], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 0.15) << spec;  // 4 bits
    expect_ok(fed.end_step());
  }
}

TEST(OffloadGenerated, UnrotatedKeysComeBackAtTheirAngle) {
  Offloaded pre("select:index=f32,keys=f32,values=f16,rope=pre,budget=20,local=16,generated=64", 3000);
  Offloaded post(exact(",generated=64"), 3000);
  for (Offloaded* one : {&pre, &post}) expect_ok(one->prompt(kPrompt));
  for (int i = 0; i < 2500; ++i) {
    const std::vector<float> q = pre.queries(static_cast<std::uint64_t>(i));
    for (Offloaded* one : {&pre, &post}) expect_ok(one->step(q));
  }
  EXPECT_EQ(pre.cache().selection(0, 0).selected, post.cache().selection(0, 0).selected);
  std::vector<std::int32_t> positions = {kPrompt, kPrompt + 63, kPrompt + 64, kPrompt + 1000, kPrompt + 2400};
  std::vector<float> keys(positions.size() * kDim);
  std::vector<float> values(keys.size());
  expect_ok(
      pre.cache().read_far_rows(0, 0, positions, {keys.data(), positions.size(), kDim}, {values.data(), positions.size(), kDim}));
  for (std::size_t i = 0; i < positions.size(); ++i)
    for (std::size_t c = 0; c < kDim; ++c) ASSERT_NEAR(keys[i * kDim + c], pre.key(positions[i], 0)[c], 4e-3) << positions[i];
}

// The point of it: near rows do not grow, and what grows are the landmarks and, with rope=pre, the table of angles.
TEST(OffloadGenerated, ALongOutputStaysBounded) {
  for (const std::string spec :
       {"yakv:budget=32,local=32", "select:index=higgs2x16,budget=32", "select:index=residual,budget=32", "arkvale:budget=64",
        "yakv:share=head", "yakv:groups=joint,dense=0", "yakv:budget=32,local=32,run=32"}) {
    const std::string more = more_of(spec, 256);
    const auto arena = Arena::create();
    Offloaded fed(spec + more, 4700, kHeads, 1, arena);
    expect_ok(fed.prompt(600));
    std::size_t most_rows = 0;
    const CacheSpec parsed = spec_of(spec + more);
    for (int i = 1; i <= 4000; ++i) {
      expect_ok(fed.step(fed.queries(static_cast<std::uint64_t>(i % 17))));
      most_rows = std::max(most_rows, static_cast<std::size_t>(fed.cache().views(0)[0].rows));
      if (i % 211 != 0 && i != 255 && i != 256 && i != 257 && i != 4000) continue;
      expect_ok(fed.cache().check_integrity());
      ASSERT_EQ(fed.cache().bytes(), *predict_bytes(parsed, fed.shape(), 600, i)) << spec << " " << i;
      EXPECT_EQ(fed.cache().bytes().fast_allocated(), arena->allocated_bytes()) << spec << " " << i;
    }
    const SelectOptions& options = *parsed.offload;
    const int near = 600 - static_cast<int>(fed.cache().selection(0, 0).candidates.size()) + options.far_generated(4000);
    EXPECT_LE(most_rows, static_cast<std::size_t>(near + 256 + 64)) << spec;
    // Formula: rows near in f16, landmarks of all others and, where these lie unrotated, their angles.
    const std::size_t before = predict_bytes(parsed, fed.shape(), 600, 256)->fast_allocated();
    const std::size_t after = predict_bytes(parsed, fed.shape(), 600, 256 + 3840)->fast_allocated();
    const ByteAccount longer =
        LandmarkIndex::bytes_of(options.index, kDim, (options.far_generated(256 + 3840)) / options.index.chunk);
    const ByteAccount shorter = LandmarkIndex::bytes_of(options.index, kDim, options.far_generated(256) / options.index.chunk);
    const auto angles = [&](int generated) {
      const bool rotates = options.rope == KeyRope::kPre;
      return rotates ? RopeTable::bytes(fed.shape().rope, 600 + options.far_generated(generated)) : 0;
    };
    EXPECT_EQ(after - before, kKvHeads * (longer.allocated - shorter.allocated) + angles(256 + 3840) - angles(256)) << spec;
  }
}

TEST(OffloadGenerated, ForksGoTheirOwnWays) {
  Offloaded one(exact(",generated=64"), 900);
  Offloaded two(exact(",generated=64"), 900);
  for (Offloaded* fed : {&one, &two}) {
    expect_ok(fed->prompt(kPrompt));
    for (std::uint64_t i = 0; i < 140; ++i) expect_ok(fed->step(fed->queries(i)));
  }
  SequenceCache fork = one.cache().fork();
  EXPECT_EQ(fork.bytes(), one.cache().bytes());
  expect_same_views(fork, two.cache());
  for (std::uint64_t i = 140; i < 400; ++i) expect_ok(one.step(one.queries(i + 1000)));  // other choices, more blocks
  expect_same_views(fork, two.cache());
  EXPECT_EQ(fork.bytes(), two.cache().bytes());
  expect_ok(fork.check_integrity());
  // The fork goes on alone, as the other did.
  SequenceCache reference = two.cache().fork();
  for (int i = 0; i < 200; ++i) {
    const std::vector<float> q = one.queries(static_cast<std::uint64_t>(i));
    for (SequenceCache* cache : {&fork, &reference}) {
      const int at = cache->next_position();
      std::vector<float> values(kWidth);
      for (int h = 0; h < kKvHeads; ++h) std::copy_n(one.value(at, h), kDim, values.data() + static_cast<std::size_t>(h) * kDim);
      expect_ok(cache->append_row(0, {one.key(at, 0), kKvHeads, kDim}, {values.data(), kKvHeads, kDim}));
      expect_ok(cache->before_attention(0, {q.data(), kHeads, kDim}));
      expect_ok(cache->after_attention(0, {}));
      cache->finish_step();
    }
    expect_same_views(fork, reference);
  }
  expect_ok(fork.check_integrity());
}

TEST(OffloadGenerated, AnyNumberOfThreadsGivesTheSameBits) {
  for (const std::string spec :
       {"yakv:budget=32,generated=64", "yakv:groups=joint,generated=64", "oracle:share=head,generated=64"}) {
    Offloaded one(spec, 1000, kHeads, 1);
    expect_ok(one.prompt(650));
    for (std::uint64_t i = 0; i < 300; ++i) expect_ok(one.step(one.queries(i)));
    for (const int threads : {2, 3, 7, 16}) {
      Offloaded many(spec, 1000, kHeads, threads);
      expect_ok(many.prompt(650));
      for (std::uint64_t i = 0; i < 300; ++i) expect_ok(many.step(many.queries(i)));
      expect_same_views(one.cache(), many.cache());
    }
  }
}

// Whichever allocation fails, also among those of a block that goes far: one status, and a fork that is not touched.
TEST(OffloadGenerated, AFailedAllocationEndsThisSequenceOnly) {
  int failures = 0;
  bool failed = true;
  for (long n = 1; failed; ++n) {
    const auto arena = Arena::create();
    Offloaded fed(exact(",generated=64"), 500, kHeads, 1, arena);
    expect_ok(fed.prompt(kPrompt));
    for (std::uint64_t i = 0; i < 63; ++i) expect_ok(fed.step(fed.queries(i)));
    const SequenceCache before = fed.cache().fork();
    const std::size_t held = arena->allocated_bytes();
    expect_ok(fed.begin_step(fed.queries(63)));
    arena->fail_nth_allocation(n);
    const Status status = fed.end_step();
    arena->fail_nth_allocation(0);
    failed = !status.ok();
    if (!failed) continue;
    ++failures;
    EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
    EXPECT_FALSE(fed.step(fed.queries(1)).ok());  // the cache says that it is broken
    EXPECT_GE(arena->allocated_bytes(), held);
    SequenceCache other = before.fork();
    const std::vector<float> q = fed.queries(5);
    expect_ok(other.append_row(0, {fed.key(363, 0), kKvHeads, kDim}, {fed.value(363, 0), kKvHeads, kDim}));
    expect_ok(other.before_attention(0, {q.data(), kHeads, kDim}));
    expect_ok(other.after_attention(0, {}));
    expect_ok(other.check_integrity());
  }
  EXPECT_GE(failures, 2 * kKvHeads);  // the tiles that the fork shares, and the new indexes
}

TEST(OffloadGenerated, WhatCannotBeDoneIsRefused) {
  EXPECT_EQ(spec_of(spec_of("yakv:generated=256").canonical), spec_of("yakv:generated=256"));
  EXPECT_EQ(spec_of("yakv").canonical.find("generated"), std::string::npos);
  EXPECT_EQ(spec_of("yakv:generated=0"), spec_of("yakv"));
  expect_refusals({{"yakv:generated=63", "generated=64"},
                   {"select:chunk=48,index=bf16,local=48,generated=64", "generated=96"},
                   {"yakv:generated=-1", "generated"},
                   {"infinigen:generated=128", "prompt's queries"},
                   {"lrqk:generated=128", "prompt's queries"},
                   {"shadowkv:generated=128", "keys=f16"},
                   {"quest:generated=128", "generated"}});
}

}  // namespace
}  // namespace kvartet
