// Methods whose index is made from the prompt's queries (InfiniGen, LRQK), joint rows, and what a guess of the queries does
// (offloading.md 4.1 and 6).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cache/offload_fixture.h"
#include "core/bfloat16.h"

namespace kvartet {
namespace {

using namespace test;

const std::string kRows = "share=head,keys=f16,values=f16,rope=post,budget=30,local=16";

// Keys that bf16, the index's format, and f16, the rows', both hold exactly: then nothing but the method decides.
void round_keys(Offloaded* fed) {
  for (float& x : fed->post()) x = float_from_bf16(bf16_from_float(x));
}

double overlap(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  std::vector<std::int32_t> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return static_cast<double>(common.size()) / static_cast<double>(a.size());
}

// Mean share of the exact selection of every query head that `spec` finds, too.
double recall(const std::string& spec, Offloaded* exact, Offloaded* fed) {
  SCOPED_TRACE(spec);
  double sum = 0;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const std::vector<float> q = exact->queries(i);
    for (Offloaded* one : {exact, fed}) expect_ok(one->begin_step(q));
    for (int h = 0; h < kHeads; ++h)
      sum += overlap(exact->cache().selection(0, h).selected, fed->cache().selection(0, h).selected) / (8 * kHeads);
    for (Offloaded* one : {exact, fed}) expect_ok(one->end_step());
    expect_ok(fed->cache().check_integrity());
  }
  return sum;
}

double recall(const std::string& spec) {
  Offloaded exact("oracle:" + kRows, 620);
  Offloaded fed(spec, 620);
  for (Offloaded* one : {&exact, &fed}) expect_ok(one->prompt(600));
  return recall(spec, &exact, &fed);
}

// The test that offloading.md 6 asks for: all columns, identity skew, the layer's own input.
TEST(OffloadQueries, InfiniGenWithEverythingIsTheOraclePerQueryHead) {
  Offloaded oracle("oracle:" + kRows, 620);
  Offloaded all("select:index=partial,partial=1,skew=none," + kRows, 620);
  for (Offloaded* fed : {&oracle, &all}) {
    round_keys(fed);
    expect_ok(fed->prompt(600));
  }
  for (std::uint64_t i = 0; i < 10; ++i) {
    for (Offloaded* fed : {&oracle, &all}) expect_ok(fed->step(fed->queries(i)));
    expect_same_views(oracle.cache(), all.cache());
  }
  // Turned keys are rounded to bf16, so near ties may change places.
  EXPECT_GT(recall("select:index=partial,partial=1,skew=prompt," + kRows), 0.95);
}

TEST(OffloadQueries, LrqkWithAsManyFactorsAsChannelsIsTheOracle) { EXPECT_GT(recall("lrqk:factors=64," + kRows), 0.95); }

// Random keys and queries have no structure: more channels and more factors find more, none finds nothing.
TEST(OffloadQueries, MoreChannelsAndMoreFactorsFindMore) {
  double last = 0.1;
  for (const char* partial : {"0.1", "0.25", "0.4", "0.5"}) {
    const double now = recall(std::string("select:index=partial,partial=") + partial + "," + kRows);
    EXPECT_GT(now, last) << partial;
    last = now;
  }
  last = 0.1;
  for (const char* factors : {"8", "24", "48", "64"}) {
    const double now = recall(std::string("lrqk:factors=") + factors + "," + kRows);
    EXPECT_GT(now, last) << factors;
    last = now;
  }
}

// Queries and keys that live in few directions are what both methods bet on: they then find nearly all with few numbers.
TEST(OffloadQueries, FewDirectionsAreEnoughWhereQueriesHaveFew) {
  for (const char* spec : {"select:index=partial,partial=0.1,", "lrqk:factors=8,"}) {
    Offloaded exact("oracle:" + kRows, 620);
    Offloaded fed(spec + kRows, 620);
    // Prompt queries and later ones are mixtures of four fixed directions.
    const std::vector<float> directions = fed.queries(1000);  // [heads, kDim]: the first four rows
    const auto mix = [&](Rng* rng, float* q) {
      std::fill_n(q, kDim, 0.0F);
      for (std::size_t k = 0; k < 4; ++k) {
        const auto weight = static_cast<float>(rng->normal());
        for (std::size_t c = 0; c < kDim; ++c) q[c] += weight * directions[k * kDim + c];
      }
    };
    Rng rng(77);
    for (std::size_t at = 0; at < fed.prompt_queries().size(); at += kDim) mix(&rng, fed.prompt_queries().data() + at);
    for (Offloaded* one : {&exact, &fed}) expect_ok(one->prompt(600));
    double found = 0;
    for (int i = 0; i < 8; ++i) {
      std::vector<float> q(kHeads * kDim);
      for (std::size_t at = 0; at < q.size(); at += kDim) mix(&rng, q.data() + at);
      for (Offloaded* one : {&exact, &fed}) expect_ok(one->begin_step(q));
      for (int h = 0; h < kHeads; ++h)
        found += overlap(exact.cache().selection(0, h).selected, fed.cache().selection(0, h).selected) / (8 * kHeads);
      for (Offloaded* one : {&exact, &fed}) expect_ok(one->end_step());
    }
    EXPECT_GT(found, 0.9) << spec;
  }
}

// Only the last `window` queries of the prompt count, whatever others asked for.
TEST(OffloadQueries, TheWindowDecidesWhichQueriesCount) {
  for (const char* spec : {"infinigen:window=20,dense=1", "lrqk:window=20"}) EXPECT_EQ(spec_of(spec).offload->index.window, 20);
  const std::string spec = "select:index=partial,partial=0.1,window=20," + kRows;
  Offloaded one(spec, 620);
  Offloaded two(spec, 620);
  EXPECT_EQ(one.cache().score_need().queries, 20);
  std::fill_n(two.prompt_queries().begin(), 580 * kHeads * kDim, 3.0F);
  for (Offloaded* fed : {&one, &two}) {
    expect_ok(fed->prompt(600));
    expect_ok(fed->step(fed->queries(1)));
  }
  expect_same_views(one.cache(), two.cache());
}

// 1.4: a layer that does not select needs no guess. The first layer never has one, so it must not select.
TEST(OffloadQueries, GuessesNeedADenseFirstLayer) {
  EXPECT_TRUE(parse_spec("yakv:queries=guessed,dense=1").ok());
  const Result<CacheSpec> spec = parse_spec("infinigen:dense=0");
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.status().message().find("dense=1"), std::string::npos) << spec.status().message();
}

// The guess chooses, the layer's own queries attend.
TEST(OffloadQueries, TheGuessChooses) {
  ModelShape shape = rotating_shape(2);
  const auto cache_of = [&](const std::string& spec) {
    return SequenceCache::create(spec_of(spec), shape, Arena::create()).value();
  };
  SequenceCache guessing = cache_of("oracle:share=head,dense=1,budget=20,local=8,queries=guessed");
  SequenceCache asking = cache_of("oracle:share=head,dense=1,budget=20,local=8");
  const TokenRows& rows = shared_rows();
  EXPECT_TRUE(guessing.wants_guessed_queries());
  EXPECT_FALSE(asking.wants_guessed_queries());
  const std::vector<float> own = Offloaded("full", 8).queries(1);
  const std::vector<float> guess = Offloaded("full", 8).queries(2);
  const MatView<const float> q(own.data(), kHeads, kDim);
  const MatView<const float> g(guess.data(), kHeads, kDim);
  for (SequenceCache* cache : {&guessing, &asking}) {
    for (int l = 0; l < 2; ++l)
      expect_ok(cache->seal_prompt(l, {.key = rows.key_rows(0, 300), .key_pre = {}, .value = rows.value_rows(0, 300)}));
    cache->finish_prompt(300);
    for (int l = 0; l < 2; ++l) {
      expect_ok(cache->append_row(l, {rows.key(300, 0), kKvHeads, kDim}, {rows.value(300, 0), kKvHeads, kDim}));
      expect_ok(cache->before_attention(l, cache == &guessing ? q : g, l == 0 ? MatView<const float>() : g));
    }
  }
  expect_same_views(guessing, asking, 0);
  expect_same_views(guessing, asking, 1);
}

// One step of two caches over the same rows; `early` is told each layer's guess while the layer in front is at work. Both show
// the same rows all the way.
void step_both(SequenceCache* early, SequenceCache* late, int layers, std::size_t at, std::uint64_t step) {
  const TokenRows& rows = shared_rows();
  const std::vector<float> own(kHeads * kDim, 0.5F);
  const auto guess_of = [&](int layer) { return Offloaded("full", 8).queries(100 * step + static_cast<std::uint64_t>(layer)); };
  for (int l = 0; l < layers; ++l) {
    if (l + 1 < layers) early->expect_queries(l + 1, {guess_of(l + 1).data(), kHeads, kDim});
    const std::vector<float> guess = guess_of(l);
    for (SequenceCache* cache : {early, late}) {
      expect_ok(cache->append_row(l, {rows.key(at, 0), kKvHeads, kDim}, {rows.value(at, 0), kKvHeads, kDim}));
      expect_ok(cache->before_attention(l, {own.data(), kHeads, kDim}, {guess.data(), kHeads, kDim}));
    }
    expect_same_views(*early, *late, l);
    for (SequenceCache* cache : {early, late}) expect_ok(cache->after_attention(l, {}));
  }
  for (SequenceCache* cache : {early, late}) cache->finish_step();
}

// Told its queries a layer early, a cache has two layers' rows on their way at once, and shows the same rows as without.
TEST(OffloadQueries, WhatIsExpectedComesEarlyAndIsTheSame) {
  constexpr int kLayers = 4;
  constexpr int kTokens = 300;
  ModelShape shape = rotating_shape(kLayers);
  const TokenRows& rows = shared_rows();
  for (const char* spec :
       {"yakv:queries=guessed,dense=1,budget=20,local=8", "select:queries=guessed,dense=2,groups=joint,budget=20,local=8"}) {
    for (const char* tier : {"ram", "mmap", "disk", "disk,cache=0.125"}) {
      for (const int threads : {1, 3}) {
        const auto made = [&] {
          SequenceCache cache =
              SequenceCache::create(spec_of(fmt::format("{},tier={}", spec, tier)), shape, Arena::create(), {.threads = threads})
                  .value();
          for (int l = 0; l < kLayers; ++l)
            expect_ok(cache.seal_prompt(
                l,
                {.key = rows.key_rows(0, kTokens), .key_pre = rows.key_rows(0, kTokens), .value = rows.value_rows(0, kTokens)}));
          cache.finish_prompt(kTokens);
          return cache;
        };
        SequenceCache early = made();
        SequenceCache late = made();
        for (int step = 0; step < 3; ++step) {
          step_both(&early, &late, kLayers, static_cast<std::size_t>(kTokens + step), static_cast<std::uint64_t>(step));
          EXPECT_EQ(early.traffic().rows_fetched, late.traffic().rows_fetched);
          EXPECT_EQ(early.traffic().bytes_fetched_this_step, late.traffic().bytes_fetched_this_step);
        }
        SequenceCache given_up = early.fork();
        given_up.expect_queries(
            2, {Offloaded("full", 8).queries(5).data(), kHeads, kDim});  // and never asked: the fetch is waited for
      }
    }
  }
}

// Rows of a layer in front may go far, for which a longer table of angles takes the place of the one that the expected rows of
// the next layer are to be turned with.
TEST(OffloadQueries, WhatIsExpectedKeepsItsAngles) {
  constexpr int kLayers = 3;
  constexpr int kTokens = 300;
  mallopt(M_PERTURB, 0x5a);  // what is freed is no longer what it was
  const ModelShape shape = rotating_shape(kLayers);
  const TokenRows& rows = shared_rows();
  const auto made = [&] {
    SequenceCache cache =
        SequenceCache::create(spec_of("yakv:queries=guessed,dense=1,budget=20,local=8,generated=64"), shape, Arena::create(), {})
            .value();
    for (int l = 0; l < kLayers; ++l) {
      expect_ok(cache.seal_prompt(
          l, {.key = rows.key_rows(0, kTokens), .key_pre = rows.key_rows(0, kTokens), .value = rows.value_rows(0, kTokens)}));
    }
    cache.finish_prompt(kTokens);
    return cache;
  };
  SequenceCache early = made();
  SequenceCache late = made();
  for (int step = 0; step < 80; ++step) {
    step_both(&early, &late, kLayers, static_cast<std::size_t>(kTokens + step), static_cast<std::uint64_t>(step));
  }
  mallopt(M_PERTURB, 0);
}

// 4.1: one 4-bit code of C channels and one scale a token where rows are joint, one of d and a scale per head otherwise.
TEST(OffloadQueries, JointRowsOfSection41) {
  constexpr std::size_t kC = kWidth;
  for (const auto& [groups, row] :
       {std::pair<std::string, std::size_t>{"head", kKvHeads * (kDim / 2 + 2)}, {"joint", kC / 2 + 2}}) {
    Offloaded fed("yakv:budget=40,local=64,groups=" + groups, 1100);
    expect_ok(fed.prompt(1000));
    EXPECT_EQ(fed.cache().bytes().slow_live, 1000 * 2 * row) << groups;
    expect_ok(fed.step(fed.queries(1)));
    EXPECT_EQ(fed.cache().bytes(), *predict_bytes(fed.cache().spec(), fed.shape(), 1000, 1));
  }
  // Design b of 4.1: 66 bytes per (token, head) for each of keys and values at d = 128.
  EXPECT_EQ(RowCodec::create(RowFormat::kHiggs4, 128)->row_bytes(), 66U);
  EXPECT_EQ(RowCodec::create(RowFormat::kHiggs4, 1024)->row_bytes(), 514U);
}

// A joint row comes near for all heads if any head wants it: the union is what is fetched, once.
TEST(OffloadQueries, JointRowsAreFetchedForTheUnionOfTheHeads) {
  Offloaded joint("yakv:budget=40,local=16,groups=joint", 420);
  Offloaded apart("yakv:budget=40,local=16", 420);
  const std::vector<float> q = joint.queries(3);
  for (Offloaded* fed : {&joint, &apart}) {
    expect_ok(fed->prompt(400));
    expect_ok(fed->step(q));
  }
  std::vector<std::int32_t> all;
  for (int h = 0; h < kKvHeads; ++h) {
    const std::vector<std::int32_t> selected = joint.cache().selection(0, h).selected;
    EXPECT_EQ(selected, apart.cache().selection(0, h).selected);  // landmarks are each head's own
    all.insert(all.end(), selected.begin(), selected.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  EXPECT_GT(all.size(), 40U);
  EXPECT_EQ(joint.cache().traffic().rows_fetched, all.size());
  EXPECT_EQ(joint.cache().traffic().bytes_fetched, all.size() * 2 * (kWidth / 2 + 2));
  EXPECT_EQ(apart.cache().traffic().rows_fetched, 2U * 40);
  expect_ok(joint.cache().check_integrity());
}

// Rows that are exact come back the same either way, and quantized ones with the error of 2.3.2 for their group.
TEST(OffloadQueries, JointRowsHaveTheErrorOfTheirGroup) {
  const auto staged = [](const std::string& spec) {
    Offloaded fed(spec + ",index=f32,budget=300,local=16", 1020);
    expect_ok(fed.prompt(1000));
    expect_ok(fed.step(fed.queries(8)));
    std::vector<float> rows = read_rows(fed.cache().views(0)[1].keys);
    const std::vector<float> values = read_rows(fed.cache().views(0)[1].values);
    rows.insert(rows.end(), values.begin(), values.end());
    return rows;
  };
  const std::vector<float> exact = staged("select:keys=f16,values=f16,rope=post");
  EXPECT_EQ(staged("select:keys=f16,values=f16,rope=post,groups=joint"), exact);
  const std::vector<float> coded = staged("select:keys=higgs4,values=higgs4,rope=pre,groups=joint");
  ASSERT_EQ(coded.size(), exact.size());
  // The staged 300 of 317 rows of each side are coded.
  double error = 0;
  double norm = 0;
  for (const std::size_t side : {std::size_t{0}, exact.size() / 2}) {
    for (std::size_t i = side + 17 * kDim; i < side + exact.size() / 2; ++i) {
      error += (coded[i] - exact[i]) * static_cast<double>(coded[i] - exact[i]);
      norm += static_cast<double>(exact[i]) * exact[i];
    }
  }
  EXPECT_NEAR(error / norm, 0.00764, 0.1 * 0.00764);
}

TEST(OffloadQueries, JointRowsOfOtherWidthsAreRefused) {
  ModelShape shape = rotating_shape();
  shape.layers[0].kv_heads = 3;
  shape.layers[0].heads = 9;
  const Status status = check_spec(spec_of("yakv:groups=joint"), shape);
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(status.message().find("192"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("groups=head"), std::string::npos);
  EXPECT_TRUE(check_spec(spec_of("yakv"), shape).ok());
}

TEST(OffloadQueries, BytesOfSection6) {
  constexpr std::size_t kN = 1000;
  // LRQK: 2 r bytes per candidate and query head, and its map; rows far as f16; one selection per query head.
  Offloaded lrqk("lrqk:factors=16,budget=40,local=64", 1100);
  expect_ok(lrqk.prompt(kN));
  for (int i = 0; i < 3; ++i) expect_ok(lrqk.step(lrqk.queries(1)));
  ByteAccount held = lrqk.cache().bytes();
  EXPECT_EQ(held.slow_live, kN * 4 * kWidth);
  EXPECT_EQ(held.live - held.slow_live,
            kHeads * (2 * 16 * (kN - 64) + 4 * 16 * kDim) + 4 * kWidth * (64 + 3) + kPlaceBytes * kHeads * 40);
  EXPECT_EQ(held, *predict_bytes(lrqk.cache().spec(), lrqk.shape(), kN, 3));
  // InfiniGen: 26 of 64 channels.
  Offloaded infinigen("select:index=partial," + kRows, 1100);
  expect_ok(infinigen.prompt(kN));
  expect_ok(infinigen.step(infinigen.queries(1)));
  held = infinigen.cache().bytes();
  EXPECT_EQ(held.live - held.slow_live,
            kHeads * (2 * 26 * (kN - 16) + 4 * 26 * kDim) + 4 * kWidth * (16 + 1) + kPlaceBytes * kHeads * 30);
  EXPECT_EQ(held, *predict_bytes(infinigen.cache().spec(), infinigen.shape(), kN, 1));
}

TEST(OffloadQueries, CanonicalAndRefusals) {
  EXPECT_EQ(
      spec_of("infinigen").canonical,
      "infinigen:budget=0.2,chunk=1,index=partial,partial=0.2,skew=prompt,window=128,keys=f16,values=f16,rope=post,"
      "aggregate=maxsoftmax,share=head,queries=guessed,sinks=0,outliers=first,local=0,segments=chunks,min=0,dense=2,tier=ram,"
      "cache=0");
  EXPECT_EQ(spec_of("lrqk").canonical,
            "lrqk:budget=0.03125,chunk=1,index=factors,factors=32,window=128,keys=f16,values=f16,rope=post,aggregate=maxsoftmax,"
            "share=head,sinks=0,outliers=first,local=64,segments=chunks,min=0,dense=0,tier=ram,cache=0");
  for (const std::string text :
       {"infinigen", "lrqk", "yakv:groups=joint", "select:index=factors,factors=7,window=9,queries=guessed,dense=3",
        "select:index=partial,partial=0.35,skew=none"})
    EXPECT_EQ(spec_of(spec_of(text).canonical), spec_of(text)) << text;
  expect_refusals({{"yakv:factors=4", "index=factors"},
                   {"lrqk:partial=0.5", "index=partial"},
                   {"yakv:window=4", "index=partial or index=factors"},
                   {"infinigen:partial=0", "up to 1"},
                   {"infinigen:skew=both", "prompt"},
                   {"yakv:groups=all", "joint"},
                   {"yakv:queries=gessed", "guessed"}});
  EXPECT_FALSE(check_spec(spec_of("lrqk:factors=65"), rotating_shape()).ok());
}

TEST(OffloadQueries, EveryFailedAllocationIsReported) {
  for (const std::string spec : {"lrqk:factors=8,budget=32,local=16", "yakv:groups=joint,budget=32,local=16"}) {
    bool ended = false;
    for (long n = 1; n < 400 && !ended; ++n) {
      const std::shared_ptr<Arena> arena = Arena::create();
      Offloaded fed(spec, 420, kHeads, 1, arena);
      arena->fail_nth_allocation(n);
      Status status = fed.prompt(400);
      for (std::uint64_t i = 0; status.ok() && i < 3; ++i) status = fed.step(fed.queries(i));
      if (status.ok()) {
        EXPECT_GT(n, 5);
        ended = true;
      } else {
        EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
      }
    }
    EXPECT_TRUE(ended) << spec;
  }
}

TEST(OffloadQueries, TDetAnyNumberOfThreadsGivesTheSameBits) {
  for (const std::string spec : {"lrqk:factors=16,budget=30", "select:index=partial,share=head,budget=30", "yakv:groups=joint"}) {
    Offloaded one(spec, 700, kHeads, 1);
    Offloaded three(spec, 700, kHeads, 3);
    for (Offloaded* fed : {&one, &three}) {
      expect_ok(fed->prompt(650));
      for (std::uint64_t i = 0; i < 4; ++i) expect_ok(fed->step(fed->queries(i)));
    }
    expect_same_views(one.cache(), three.cache());
  }
}

}  // namespace
}  // namespace kvartet
