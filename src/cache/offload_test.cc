// Caches whose rows lie in the slow tier, against the obvious reference: exact rows, exact scores, attention in double
// (offloading.md 11).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cache/offload_cache.h"
#include "cache/offload_fixture.h"
#include "core/float16.h"

namespace kvartet {
namespace {

using namespace test;

TEST(Offload, TOracle1SelectsTheExactTopForEveryGroupSize) {
  for (const int group : {1, 2, 3, 4, 8}) {
    Offloaded fed(kExact + ",budget=20,sinks=4,local=16", 420, kKvHeads * group);
    expect_ok(fed.prompt(400));
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::vector<float> q = fed.queries(i);
      expect_ok(fed.begin_step(q));
      for (int h = 0; h < kKvHeads; ++h) {
        std::vector<std::int32_t> expected = exact_top(fed, q, h, group, 4, 384, 20);
        for (int t = 0; t < 4; ++t) expected.push_back(t);
        for (int t = 384; t < 401 + static_cast<int>(i); ++t) expected.push_back(t);
        std::sort(expected.begin(), expected.end());
        ASSERT_EQ(fed.positions_in(fed.cache().views(0)[static_cast<std::size_t>(h)], h), expected) << group << " " << i;
      }
      expect_ok(fed.end_step());
      expect_ok(fed.cache().check_integrity());
    }
  }
}

// The candidates in the `count` runs with the best of all scores.
std::vector<std::int32_t> rows_of_best_runs(const std::vector<std::int32_t>& candidates, const std::vector<double>& scores,
                                            int run, int count) {
  std::vector<std::pair<double, int>> best;  // of a run, negative, and which
  for (int r = 0; r < std::ssize(scores) / run; ++r)
    best.emplace_back(-*std::max_element(scores.begin() + r * run, scores.begin() + (r + 1) * run), r);
  std::sort(best.begin(), best.end());
  std::vector<std::int32_t> rows;
  for (int i = 0; i < count; ++i)
    for (int t = 0; t < run; ++t)
      rows.push_back(candidates[static_cast<std::size_t>(best[static_cast<std::size_t>(i)].second * run + t)]);
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Runs stand where the prompt's chunks of the same length would, each is as good as its best landmark, and all of it comes.
TEST(Offload, RunsAreSelectedByTheBestOfThem) {
  for (const std::string more : {"", ",generated=64"}) {
    Offloaded fed(kExact + ",run=16,budget=48,sinks=16,local=32" + more, 900);
    expect_ok(fed.prompt(409));
    for (std::uint64_t i = 0; i < 150; ++i) {
      const std::vector<float> q = fed.queries(i);
      expect_ok(fed.begin_step(q));
      for (int h = 0; h < kKvHeads; ++h) {
        const RowSelection selection = fed.cache().selection(0, h);
        ASSERT_EQ(selection.candidates.size() % 16, 0U);
        const std::vector<double> scores = exact_scores(fed, q, h, 3, selection.candidates);
        ASSERT_EQ(selection.selected, rows_of_best_runs(selection.candidates, scores, 16, 3))
            << more << " step " << i << " " << h;
      }
      expect_ok(fed.end_step());
      expect_ok(fed.cache().check_integrity());
    }
  }
}

// Whatever the index, the answer is exact attention over what was kept, selected and generated.
TEST(Offload, ViewsAreTheUnionOfTheSegments) {
  for (const std::string index :
       {"higgs2", "higgs4,chunk=2", "bf16,chunk=8,sinks=16,outliers=cosine", "residual", "digest,chunk=16", "bounds,chunk=8"}) {
    Offloaded fed("select:keys=f16,values=f16,rope=post,budget=48,local=64,index=" + index, 700);
    expect_ok(fed.prompt(600));
    for (std::uint64_t i = 0; i < 5; ++i) {
      const std::vector<float> q = fed.queries(i);
      expect_ok(fed.begin_step(q));
      for (int h = 0; h < kKvHeads; ++h) {
        const HeadView& view = fed.cache().views(0)[static_cast<std::size_t>(h)];
        const std::vector<std::int32_t> positions = fed.positions_in(view, h);
        EXPECT_EQ(std::adjacent_find(positions.begin(), positions.end()), positions.end());
        const float* const query = q.data() + static_cast<std::size_t>(3 * h) * kDim;
        expect_close(attend_view(std::vector<float>(query, query + kDim), view), fed.attend_exactly(query, h, positions), 1e-5);
      }
      expect_ok(fed.end_step());
    }
  }
}

TEST(Offload, TFullWhenEverythingIsSelectedTheCacheIsFull) {
  Offloaded fed(kExact + ",budget=0.99,local=64", 700);
  expect_ok(fed.prompt(600));
  EXPECT_FALSE(fed.cache().acted());
  expect_ok(fed.step(fed.queries(0)));
  Offloaded full("full", 700);
  expect_ok(full.prompt(600));
  expect_ok(full.step(full.queries(0)));
  expect_same_views(fed.cache(), full.cache());
  EXPECT_EQ(fed.cache().bytes(), full.cache().bytes());
}

TEST(Offload, TShortPromptsAreFullToTheBit) {
  for (const std::string spec : {"yakv", "shadowkv:rank=64", "yakv-engine", "oracle", "arkvale", "quest"}) {
    for (const int tokens : {1, 7, 63, 64, 65}) {
      Offloaded fed(spec, 80);
      Offloaded full("full", 80);
      for (Offloaded* one : {&fed, &full}) {
        expect_ok(one->prompt(tokens));
        expect_ok(one->step(one->queries(1)));
        expect_ok(one->cache().check_integrity());
      }
      EXPECT_FALSE(fed.cache().acted()) << spec;
      EXPECT_FALSE(fed.cache().selects()) << spec;
      expect_same_views(fed.cache(), full.cache());
    }
  }
}

TEST(Offload, TGenEveryGeneratedTokenIsAttended) {
  Offloaded fed(kExact + ",budget=8,local=8", 10300);
  expect_ok(fed.prompt(200));
  const std::vector<float> q = fed.queries(3);
  for (int i = 1; i <= 10000; ++i) {
    expect_ok(fed.step(q));
    if (i % 997 == 0 || i == 10000) {
      ASSERT_EQ(fed.cache().views(0)[0].rows, 16 + i);
      expect_ok(fed.cache().check_integrity());
    }
  }
}

TEST(Offload, TCacheTheSameSelectionMovesNothing) {
  Offloaded fed("yakv:budget=32,local=16,tier=disk", 420);
  expect_ok(fed.prompt(400));
  const std::vector<float> q = fed.queries(5);
  expect_ok(fed.step(q));
  const RowTraffic first = fed.cache().traffic();
  EXPECT_EQ(first.rows_fetched, 2U * 32);
  EXPECT_EQ(first.bytes_fetched, 2U * 32 * 2 * (32 + 2));  // rows of 4 bits and a scale, keys and values
  EXPECT_EQ(first.rows_hit, 0U);
  expect_ok(fed.step(q));
  const RowTraffic second = fed.cache().traffic();
  EXPECT_EQ(second.rows_fetched, first.rows_fetched);
  EXPECT_EQ(second.bytes_fetched_this_step, 0U);
  EXPECT_EQ(second.rows_hit, 64U);
}

// Rows that attention reads where they lie are read every step.
TEST(Offload, RowsInPlaceCrossEveryStep) {
  for (const std::string tier : {"ram", "mmap"}) {
    Offloaded fed("yakv:budget=32,local=16,tier=" + tier, 420);
    expect_ok(fed.prompt(400));
    const std::vector<float> q = fed.queries(5);
    for (unsigned step = 1; step <= 3; ++step) {
      expect_ok(fed.step(q));
      const RowTraffic traffic = fed.cache().traffic();
      EXPECT_EQ(traffic.rows_fetched, step * 2U * 32) << tier;
      EXPECT_EQ(traffic.bytes_fetched_this_step, 2U * 32 * 2 * (32 + 2)) << tier;
      EXPECT_EQ(traffic.rows_hit, 0U) << tier;
    }
  }
}

TEST(Offload, TDetAnyNumberOfThreadsGivesTheSameBits) {
  for (const std::string spec : {"yakv", "shadowkv:rank=32,sinks=32", "oracle:share=head"}) {
    Offloaded one(spec, 700, kHeads, 1);
    Offloaded three(spec, 700, kHeads, 3);
    for (Offloaded* fed : {&one, &three}) {
      expect_ok(fed->prompt(650));
      for (std::uint64_t i = 0; i < 4; ++i) expect_ok(fed->step(fed->queries(i)));
    }
    expect_same_views(one.cache(), three.cache());
  }
}

TEST(Offload, TOracle2PerQueryHeadEqualsSharedForGroupsOfOne) {
  Offloaded shared("oracle", 700, kKvHeads);
  Offloaded own("oracle:share=head", 700, kKvHeads);
  for (Offloaded* fed : {&shared, &own}) {
    expect_ok(fed->prompt(650));
    expect_ok(fed->step(fed->queries(1)));
  }
  expect_same_views(shared.cache(), own.cache());
}

TEST(Offload, PerQueryHeadSelectionsHaveViewsOfTheirOwn) {
  Offloaded fed(kExact + ",share=head,budget=10,local=16", 420);
  expect_ok(fed.prompt(400));
  const std::vector<float> q = fed.queries(2);
  expect_ok(fed.begin_step(q));
  ASSERT_EQ(fed.cache().views(0).size(), static_cast<std::size_t>(kHeads));
  for (int h = 0; h < kHeads; ++h) {
    std::vector<std::int32_t> expected =
        exact_top(fed, std::vector<float>(q.begin() + h * kDim, q.begin() + (h + 1) * kDim), 0, 1, 0, 0, 0);
    expected.clear();
    std::vector<std::pair<double, int>> logits;
    for (int t = 0; t < 384; ++t) {
      double dot = 0;
      for (int c = 0; c < kDim; ++c) dot += static_cast<double>(q[static_cast<std::size_t>(h * kDim + c)]) * fed.key(t, h / 3)[c];
      logits.emplace_back(-dot, t);
    }
    std::sort(logits.begin(), logits.end());
    for (int i = 0; i < 10; ++i) expected.push_back(logits[static_cast<std::size_t>(i)].second);
    for (int t = 384; t <= 400; ++t) expected.push_back(t);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(fed.positions_in(fed.cache().views(0)[static_cast<std::size_t>(h)], h / 3), expected);
  }
}

// T-OUTLIER: a chunk with one negated key is the first outlier; with chunks of one token outliers are the first tokens.
TEST(Offload, TOutlier) {
  Offloaded fed("select:index=bf16,chunk=8,outliers=cosine,sinks=8,budget=16,local=8,keys=f16,values=f16", 320);
  for (std::size_t t = 0; t < 320; ++t)
    for (std::size_t c = 0; c < kWidth; ++c) fed.post()[t * kWidth + c] = 1.0F + 0.1F * fed.post()[t * kWidth + c];
  for (std::size_t c = 0; c < kWidth; ++c) fed.post()[(8 * 17 + 3) * kWidth + c] *= -1;
  expect_ok(fed.prompt(300));
  const std::vector<std::int32_t> kept = fed.positions_in(fed.cache().views(0)[0], 0);
  for (int t = 8 * 17; t < 8 * 18; ++t) EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), t)) << t;
  Offloaded first(kExact + ",sinks=5,budget=16,local=8", 320);
  expect_ok(first.prompt(300));
  const std::vector<std::int32_t> sinks = first.positions_in(first.cache().views(0)[0], 0);
  EXPECT_EQ(std::vector<std::int32_t>(sinks.begin(), sinks.begin() + 5), (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(sinks.size(), 13U);
}

// T-ROPE-AFTER and T-RANK: unrotated rows come back rotated at their own position, from codes and from full-rank factors.
TEST(Offload, TRopeAfterRowsTurnAtTheirTruePosition) {
  for (const auto& [store, tolerance] : {std::pair<std::string, float>{"keys=f16", 4e-3F}, {"keys=svd,rank=128", 6e-2F}}) {
    for (const RopeLayout layout : {RopeLayout::kNeighbours}) {
      (void)layout;
      Offloaded fed("select:index=f32,rope=pre,values=f16,budget=30,local=16," + store, 420);
      Offloaded post(kExact + ",budget=30,local=16", 420);
      const std::vector<float> q = fed.queries(8);
      for (Offloaded* one : {&fed, &post}) {
        expect_ok(one->prompt(400));
        expect_ok(one->step(q));
      }
      const std::vector<float> a = read_rows(fed.cache().views(0)[0].keys);
      const std::vector<float> b = read_rows(post.cache().views(0)[0].keys);
      ASSERT_EQ(a.size(), b.size());
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        error += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]);
        norm += static_cast<double>(b[i]) * b[i];
      }
      EXPECT_LT(std::sqrt(error / norm), tolerance) << store;
    }
  }
}

TEST(Offload, QuantizedRowsHaveTheErrorOfTheirFormat) {
  for (const auto& [format, distortion] :
       {std::pair<std::string, double>{"higgs4", 7.6e-3}, {"higgs2", 9.5e-2}, {"fp8", 7.1e-4}, {"nvfp4", 9.0e-3}}) {
    Offloaded fed("select:index=f32,rope=pre,budget=200,local=16,keys=" + format + ",values=" + format, 1020);
    Offloaded exact(kExact + ",budget=200,local=16", 1020);
    const std::vector<float> q = fed.queries(8);
    for (Offloaded* one : {&fed, &exact}) {
      expect_ok(one->prompt(1000));
      expect_ok(one->step(q));
    }
    for (const bool keys : {true, false}) {
      const auto side = [&](Offloaded& one) {
        const HeadView& view = one.cache().views(0)[1];
        const std::vector<float> rows = read_rows(keys ? view.keys : view.values);
        return std::vector<float>(rows.end() - 200 * kDim, rows.end());  // the staged ones
      };
      const std::vector<float> a = side(fed);
      const std::vector<float> b = side(exact);
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        error += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]);
        norm += static_cast<double>(b[i]) * b[i];
      }
      EXPECT_NEAR(error / norm, distortion, 0.12 * distortion) << format << (keys ? " keys" : " values");  // T-RELERR-ROPE
    }
  }
}

// T-MEM: section 7 for one layer, C = 128, and the prediction against what is held.
TEST(Offload, TMemBytesEqualSection7) {
  constexpr std::size_t kC = kWidth;
  constexpr std::size_t kN = 1000;
  Offloaded yakv("yakv:budget=40,local=64", 1100);
  expect_ok(yakv.prompt(kN));
  for (int i = 0; i < 3; ++i) expect_ok(yakv.step(yakv.queries(1)));
  const ByteAccount held = yakv.cache().bytes();
  const std::size_t landmarks = (kN - 64) * kKvHeads * (kDim / 4 + 2);
  EXPECT_EQ(held.slow_live, kN * 2 * kKvHeads * (kDim / 2 + 2));
  EXPECT_EQ(held.live - held.slow_live, landmarks + 4 * kC * (64 + 3) + kPlaceBytes * kKvHeads * 40);
  EXPECT_EQ(held, *predict_bytes(spec_of("yakv:budget=40,local=64"), yakv.shape(), kN, 3));

  // N (2r + 2C/c) + 2 r C + 4 C (outlier + W + T + sparse) + ids; landmarks exist for candidates that are no outliers.
  const std::string spec = "shadowkv:rank=48,budget=40,sinks=80,local=32";
  Offloaded shadow(spec, 1100);
  expect_ok(shadow.prompt(kN));
  expect_ok(shadow.step(shadow.queries(1)));
  const ByteAccount bytes = shadow.cache().bytes();
  const std::size_t chunks = kN / 8 - 4;
  const std::size_t window = kN - chunks * 8;
  EXPECT_EQ(bytes.slow_live, 2 * kC * kN);
  EXPECT_EQ(bytes.live - bytes.slow_live,
            2 * 48 * (kN + kC) + 2 * kC * (chunks - 10) + 4 * kKvHeads * (chunks - 10) + 4 * kC * (80 + window + 1 + 40));
  EXPECT_EQ(bytes, *predict_bytes(spec_of(spec), shadow.shape(), kN, 1));
}

TEST(Offload, PredictedBytesEqualHeldOnes) {
  for (const std::string spec :
       {"yakv", "yakv-engine", "shadowkv:rank=32", "oracle", "oracle:share=head", "arkvale", "select:index=residual,keys=fp8",
        "select:index=nvfp4,chunk=4,sinks=16,outliers=cosine,values=nvfp4", "select:dense=1", "select:index=higgs2x16",
        "select:run=16", "select:chunk=2,index=higgs4,run=8,budget=0.125", "yakv:run=64,budget=0.25", "yakv-engine:run=8"}) {
    for (const int tokens : {0, 1, 300, 600, 1023}) {
      Offloaded fed(spec, 1100);
      if (tokens > 0) expect_ok(fed.prompt(tokens));
      for (int i = 0; i < 3; ++i) expect_ok(fed.step(fed.queries(1)));
      EXPECT_EQ(fed.cache().bytes(), *predict_bytes(spec_of(spec), fed.shape(), tokens, 3)) << spec << " " << tokens;
      expect_ok(fed.cache().check_integrity());
    }
  }
}

// Quest reads the pages with the best bounds, per query head, generated rows included; rows stay where they are.
TEST(Offload, QuestReadsTheBestPages) {
  const std::string spec = "quest:budget=64,chunk=16,dense=0";
  Offloaded fed(spec, 720);
  for (float& x : fed.post()) x = float_from_f16(f16_from_float(x));  // bounds of such keys are exact in f16
  expect_ok(fed.prompt(650));
  EXPECT_TRUE(fed.cache().acted());
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::vector<float> q = fed.queries(i);
    expect_ok(fed.begin_step(q));
    const int rows = 651 + static_cast<int>(i);
    ASSERT_EQ(fed.cache().views(0).size(), static_cast<std::size_t>(kHeads));
    for (int h = 0; h < kHeads; ++h) {
      std::vector<std::pair<double, int>> bounds;
      for (int page = 0; page * 16 < rows; ++page) {
        double bound = 0;
        for (int c = 0; c < kDim; ++c) {
          double best = -1e300;
          for (int t = page * 16; t < std::min(rows, page * 16 + 16); ++t) {
            best = std::max(best, static_cast<double>(q[static_cast<std::size_t>(h * kDim + c)]) * fed.key(t, h / 3)[c]);
          }
          bound += best;
        }
        bounds.emplace_back(-bound, page);
      }
      std::sort(bounds.begin(), bounds.end());
      std::vector<std::int32_t> expected;
      for (int p = 0; p < 4; ++p)
        for (int t = bounds[static_cast<std::size_t>(p)].second * 16;
             t < std::min(rows, bounds[static_cast<std::size_t>(p)].second * 16 + 16); ++t)
          expected.push_back(t);
      std::sort(expected.begin(), expected.end());
      const HeadView& view = fed.cache().views(0)[static_cast<std::size_t>(h)];
      ASSERT_EQ(fed.positions_in(view, h / 3), expected);
      for (const TilePiece& piece : view.keys)
        ASSERT_EQ(piece.row / kBlockRows, (piece.row + piece.end - piece.begin - 1) / kBlockRows);
    }
    expect_ok(fed.end_step());
    expect_ok(fed.cache().check_integrity());
  }
  EXPECT_EQ(fed.cache().bytes(), *predict_bytes(spec_of(spec), fed.shape(), 650, 40));
  SequenceCache fork = fed.cache().fork();
  expect_ok(fork.check_integrity());
}

TEST(Offload, ForksDoNotSeeEachOther) {
  Offloaded fed("yakv:budget=32,local=16", 420);
  expect_ok(fed.prompt(400));
  expect_ok(fed.step(fed.queries(1)));
  const std::vector<float> before = read_rows(fed.cache().views(0)[0].keys);
  SequenceCache fork = fed.cache().fork();
  expect_same_views(fed.cache(), fork);
  const std::vector<float> q = fed.queries(2);
  expect_ok(fork.append_row(0, {fed.key(401, 0), kKvHeads, kDim}, {fed.key(401, 0), kKvHeads, kDim}));
  expect_ok(fork.before_attention(0, {q.data(), kHeads, kDim}));
  expect_ok(fork.check_integrity());
  EXPECT_EQ(read_rows(fed.cache().views(0)[0].keys), before);
  EXPECT_NE(read_rows(fork.views(0)[0].keys), before);
}

TEST(Offload, EveryFailedAllocationIsReported) {
  for (long n = 1; n < 400; ++n) {
    const std::shared_ptr<Arena> arena = Arena::create();
    Offloaded fed("shadowkv:rank=16,sinks=16,budget=32", 420, kHeads, 1, arena);
    arena->fail_nth_allocation(n);
    Status status = fed.prompt(400);
    for (std::uint64_t i = 0; status.ok() && i < 3; ++i) status = fed.step(fed.queries(i));
    if (status.ok()) {
      EXPECT_GT(n, 10);
      return;
    }
    EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
  }
}

TEST(Offload, BadRowsAreRefused) {
  Offloaded fed("yakv", 420);
  fed.post()[5 * kWidth + 3] = std::numeric_limits<float>::quiet_NaN();
  const Status status = fed.prompt(400);
  EXPECT_EQ(status.code(), Code::kBadInput);
}

TEST(OffloadSpec, CanonicalAndRefusals) {
  EXPECT_EQ(
      spec_of("yakv").canonical,
      "yakv:budget=0.03125,chunk=1,index=higgs2,keys=higgs4,values=higgs4,rope=pre,aggregate=maxsoftmax,share=group,sinks=0,"
      "outliers=first,local=64,segments=chunks,min=0,dense=0,tier=ram,cache=0");
  EXPECT_EQ(spec_of(spec_of("shadowkv").canonical), spec_of("shadowkv"));
  for (const std::string name : {"yakv-engine", "oracle", "arkvale", "quest", "select"})
    EXPECT_EQ(spec_of(spec_of(name).canonical), spec_of(name));
  expect_refusals({{"yakv:index=higgs3", "higgs"},
                   {"shadowkv:sinks=383", "sinks=376"},
                   {"yakv:rank=3", "keys=svd"},
                   {"shadowkv:rope=post", "rope=pre"},
                   {"select:outliers=cosine", "outliers=first"},
                   {"yakv+kivi", "alone"},
                   {"snapkv+yakv", "alone"},
                   {"yakv:budget=1.5", "share"},
                   {"yakv:run=12", "run=8 and run=16"},
                   {"yakv:run=128", "run=64"},
                   {"yakv:run=16,local=24", "local=16 and local=32"},
                   {"yakv:run=64,budget=32", "budget=64"},
                   {"shadowkv:run=2", "outliers=first"},
                   {"yakv:meta=4", "residual"}});
  EXPECT_EQ(spec_of("yakv:run=1"), spec_of("yakv"));
  EXPECT_NE(spec_of("yakv:run=16").canonical.find(",share=group,run=16,sinks=0,"), std::string::npos);
  EXPECT_FALSE(check_spec(spec_of("shadowkv"), rotating_shape()).ok());  // rank 160 of 128 channels
  EXPECT_FALSE(check_spec(spec_of("yakv"), small_shape()).ok());         // no rotation known
  EXPECT_TRUE(check_spec(spec_of("oracle"), small_shape()).ok());
}

}  // namespace
}  // namespace kvartet
