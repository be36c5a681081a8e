// Tests of offloading.md 11 over the whole grid of options, and the figures of sections 3.2 and 7.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cache/offload_fixture.h"
#include "cache/sealed_prompt.h"

namespace kvartet {
namespace {

using namespace test;

// All candidates selected: any chunk, landmark, aggregation and share give what full gives, to the bit.
TEST(OffloadSections, TFullWhateverTheIndex) {
  Offloaded full("full", 320);
  expect_ok(full.prompt(300));
  expect_ok(full.step(full.queries(0)));
  constexpr std::array<const char*, 4> kAggregates = {"maxsoftmax", "meanquery", "maxlogit", "sumsoftmax"};
  std::size_t turn = 0;  // aggregations take turns: all products would take long
  for (const std::string budget : {"0.999", "236", "100000"}) {
    for (const char* chunk : {"1", "2", "4"}) {
      for (const char* index : {"f32", "bf16", "fp8", "nvfp4", "higgs2", "residual", "bounds", "digest", "partial", "factors"}) {
        const std::string aggregate = kAggregates[turn++ % kAggregates.size()];
        Offloaded fed("select:budget=" + budget + ",chunk=" + chunk + ",index=" + index + ",aggregate=" + aggregate, 320);
        expect_ok(fed.prompt(300));
        expect_ok(fed.step(fed.queries(0)));
        expect_same_views(fed.cache(), full.cache());
        ASSERT_FALSE(HasFailure()) << budget << " " << chunk << " " << index << " " << aggregate;
      }
    }
  }
}

// One candidate fewer than all: attention over all rows but one is within that row's weight of full.
TEST(OffloadSections, TFullWithOneRowLeftOut) {
  Offloaded full("full", 320);
  Offloaded fed(kExact + ",budget=235,local=64", 320);
  const std::vector<float> q = full.queries(4);
  for (Offloaded* one : {&full, &fed}) {
    expect_ok(one->prompt(300));
    expect_ok(one->step(q));
  }
  EXPECT_EQ(fed.cache().views(0)[0].rows, 300);
  EXPECT_EQ(full.cache().views(0)[0].rows, 301);
  expect_close(attend_view(std::vector<float>(q.begin(), q.begin() + kDim), fed.cache().views(0)[0]),
               attend_view(std::vector<float>(q.begin(), q.begin() + kDim), full.cache().views(0)[0]), 0.02);
}

TEST(OffloadSections, TShortPromptsOfEveryMethod) {
  for (const std::string spec :
       {"yakv", "shadowkv:rank=64", "yakv-engine", "oracle", "arkvale", "quest", "lrqk", "select:chunk=8"}) {
    const SelectOptions options = *spec_of(spec).offload;
    const int c = options.index.chunk;
    const int local = options.local.share ? 4 : static_cast<int>(options.local.value);
    for (const int tokens : {0, 1, c - 1, c, local - 1, local, local + c, options.least_prompt - 1}) {
      if (tokens < 0) continue;
      Offloaded fed(spec, 560);
      Offloaded full("full", 560);
      for (Offloaded* one : {&fed, &full}) {
        if (tokens > 0) expect_ok(one->prompt(tokens));
        for (int i = 0; i < 2; ++i) expect_ok(one->step(one->queries(1)));
        expect_ok(one->cache().check_integrity());
      }
      expect_same_views(fed.cache(), full.cache());
      EXPECT_EQ(fed.cache().next_position(), tokens + 2);
      ASSERT_FALSE(HasFailure()) << spec << " at " << tokens;
    }
  }
}

// Always-kept rows, candidates and selected ones: each prompt position in exactly one of the first two, and select_sets * c
// distinct positions selected from the second.
TEST(OffloadSections, TPartOfWhatIsSelected) {
  for (const std::string spec :
       {"yakv:local=16", "shadowkv:rank=64,sinks=32,local=16", "yakv-engine:min=0", "arkvale:sinks=16,local=16",
        "select:chunk=4,sinks=8,local=8,budget=24", "lrqk:local=16,budget=24"}) {
    for (const int tokens : {130, 257, 400}) {
      Offloaded fed(spec, 420);
      expect_ok(fed.prompt(tokens));
      for (std::uint64_t i = 0; i < 3; ++i) {
        expect_ok(fed.step(fed.queries(i)));
        for (int view = 0; view < std::ssize(fed.cache().views(0)); ++view) {
          const RowSelection s = fed.cache().selection(0, view);
          std::vector<std::int32_t> all = s.kept;
          all.insert(all.end(), s.candidates.begin(), s.candidates.end());
          std::sort(all.begin(), all.end());
          ASSERT_EQ(std::ssize(all), tokens) << spec;
          for (int t = 0; t < tokens; ++t) ASSERT_EQ(all[static_cast<std::size_t>(t)], t);
          EXPECT_EQ(std::adjacent_find(s.selected.begin(), s.selected.end()), s.selected.end());
          EXPECT_TRUE(std::includes(s.candidates.begin(), s.candidates.end(), s.selected.begin(), s.selected.end()));
          const SelectOptions options = *fed.cache().spec().offload;
          EXPECT_EQ(std::ssize(s.selected), segment_prompt(options.request(tokens)).selected * options.index.chunk);
        }
      }
    }
  }
}

// T-CACHE: what happens to be staged already changes traffic and nothing else, and what crosses the link are the misses.
TEST(OffloadSections, TCacheReuseChangesTrafficAndNothingElse) {
  for (const std::string spec : {"yakv:budget=32,local=16,tier=disk", "shadowkv:rank=64,sinks=32,local=16,budget=32",
                                 "lrqk:budget=32,local=16,tier=disk", "yakv:budget=32,local=16,groups=joint"}) {
    Offloaded used(spec, 420);
    Offloaded fresh(spec, 420);
    for (Offloaded* fed : {&used, &fresh}) expect_ok(fed->prompt(400));
    for (std::uint64_t i = 0; i < 4; ++i) {
      expect_ok(used.step(used.queries(7)));  // what is asked in the end, too
      expect_ok(fresh.step(fresh.queries(100 + i)));
    }
    const std::vector<float> q = used.queries(7);
    for (Offloaded* fed : {&used, &fresh}) expect_ok(fed->step(q));
    const RowTraffic few = used.cache().traffic();
    const RowTraffic many = fresh.cache().traffic();
    EXPECT_LT(few.rows_fetched, many.rows_fetched) << spec;
    EXPECT_EQ(few.bytes_fetched_this_step, 0U) << spec;
    const std::size_t row = SealedPrompt::row_bytes(*used.cache().spec().offload, used.shape().layers[0]);
    for (const RowTraffic& traffic : {few, many}) EXPECT_EQ(traffic.bytes_fetched, traffic.rows_fetched * row) << spec;
    const std::span<const HeadView> a = used.cache().views(0);
    const std::span<const HeadView> b = fresh.cache().views(0);
    for (std::size_t v = 0; v < a.size(); ++v) {
      const auto at = static_cast<std::ptrdiff_t>(v * (kHeads / a.size()) * kDim);
      const std::vector<float> query(q.begin() + at, q.begin() + at + kDim);
      expect_close(attend_view(query, a[v]), attend_view(query, b[v]), 1e-12);
    }
  }
}

double relative_error(const std::vector<float>& a, const std::vector<float>& exact) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - exact[i]) * static_cast<double>(a[i] - exact[i]);
    norm += static_cast<double>(exact[i]) * exact[i];
  }
  return std::sqrt(error / norm);
}

// Far keys as a step would stage them, all candidates of a head.
std::vector<float> stored_keys(Offloaded* fed, int head, std::vector<std::int32_t>* positions) {
  *positions = fed->cache().selection(0, head).candidates;
  std::vector<float> keys(positions->size() * kDim);
  std::vector<float> values(keys.size());
  expect_ok(fed->cache().read_far_rows(0, head, *positions, {keys.data(), positions->size(), kDim},
                                       {values.data(), positions->size(), kDim}));
  return keys;
}

std::vector<float> rotated(const Offloaded& fed, const std::vector<std::int32_t>& positions, int head, int shift) {
  const RopeTable rope = RopeTable::create(fed.shape().rope, 1100, *Arena::create()).value();
  std::vector<float> out;
  for (const std::int32_t t : positions) {
    std::vector<float> row(kDim);
    std::copy_n(fed.pre().begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * kWidth) + head * kDim, kDim,
                row.begin());
    rope.rotate(row.data(), t + shift);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

// T-RANK with bf16 factors, and T-ROPE-AFTER with its guard: one position further must not fit.
TEST(OffloadSections, TRankAndTRopeAfterOfStoredKeys) {
  for (const auto& [store, tolerance] :
       {std::pair<std::string, double>{"keys=svd,rank=128", 4e-3}, {"keys=f32", 1e-6}, {"keys=f16", 5e-4}}) {
    Offloaded fed("select:rope=pre,values=f16,budget=30,local=16," + store, 420);
    expect_ok(fed.prompt(400));
    expect_ok(fed.step(fed.queries(1)));
    for (int h = 0; h < kKvHeads; ++h) {
      std::vector<std::int32_t> positions;
      const std::vector<float> keys = stored_keys(&fed, h, &positions);
      ASSERT_EQ(positions.size(), 384U);
      EXPECT_LT(relative_error(keys, rotated(fed, positions, h, 0)), tolerance) << store;
      EXPECT_GT(relative_error(keys, rotated(fed, positions, h, 1)), 0.1) << store;
    }
  }
}

// Rotation keeps lengths: the relative error of a key is the same before and after it.
TEST(OffloadSections, TRelErrRope) {
  const RopeTable rope = RopeTable::create(rotating_shape().rope, 1100, *Arena::create()).value();
  for (const RowFormat format : {RowFormat::kHiggs4, RowFormat::kHiggs2, RowFormat::kFp8, RowFormat::kNvfp4}) {
    RowCodec codec = RowCodec::create(format, kDim).value();
    codec.fit(5);
    for (const int position : {0, 1, 77, 1000}) {
      std::vector<float> key = random_query(static_cast<std::uint64_t>(position) + 1);
      std::vector<std::byte> row(codec.row_bytes());
      std::vector<float> back(kDim);
      codec.encode(key.data(), row.data());
      codec.decode(row.data(), back.data());
      const double before = relative_error(back, key);
      rope.rotate(key.data(), position);
      rope.rotate(back.data(), position);
      EXPECT_NEAR(relative_error(back, key), before, 1e-5 * before + 1e-7) << row_format_name(format);
    }
  }
}

// Model shapes of 1.1.
struct PaperModel {
  std::string name;
  int layers, heads, kv_heads;
  // Section 7, GiB and MiB.
  double full, shadow_fast, yakv_fast, shadow_slow, yakv_slow, shadow_link, yakv_link;

  ModelShape shape() const {
    ModelShape made;
    made.context = 1 << 20;
    made.layers.assign(static_cast<std::size_t>(layers),
                       LayerShape{.heads = heads, .kv_heads = kv_heads, .head_dim = 128, .window = 0});
    made.rope = {.dims = 128, .base = 500000, .scale = 1, .layout = RopeLayout::kHalves};
    return made;
  }
};

const std::vector<PaperModel> kPaperModels = {{"Llama-3.1-8B", 32, 32, 8, 16.0, 2.56, 1.09, 8.0, 4.02, 128, 128.5},
                                              {"Llama-3.2-3B", 28, 24, 8, 14.0, 2.24, 0.95, 7.0, 3.51, 112, 112},
                                              {"Qwen3-4B", 36, 32, 8, 18.0, 2.88, 1.22, 9.0, 4.52, 144, 145},
                                              {"Qwen3-30B-A3B", 48, 32, 4, 12.0, 2.86, 0.81, 6.0, 3.02, 96, 97}};

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kMib = 1024.0 * 1024;
constexpr int kPaperTokens = 131072;

double fast_of(const ByteAccount& bytes) { return static_cast<double>(bytes.live - bytes.slow_live); }

// N = 131,072 as the table of section 7 has it. Ours stages per layer; the table's YAKV shares one staging buffer, and its far
// rows have one scale a token (groups=joint).
TEST(OffloadSections, Section7Table) {
  for (const PaperModel& model : kPaperModels) {
    const ModelShape shape = model.shape();
    const double full = static_cast<double>(predict_bytes(spec_of("full"), shape, kPaperTokens, 0)->live);
    EXPECT_NEAR(full / kGib, model.full, 0.005) << model.name;
    const ByteAccount shadow = *predict_bytes(spec_of("shadowkv"), shape, kPaperTokens, 0);
    EXPECT_NEAR(fast_of(shadow) / kGib, model.shadow_fast, 0.03) << model.name;  // chunk numbers are beside the table's
    EXPECT_NEAR(static_cast<double>(shadow.slow_live) / kGib, model.shadow_slow, 0.005) << model.name;
    const ByteAccount yakv = *predict_bytes(spec_of("yakv:groups=joint"), shape, kPaperTokens, 0);
    const double staged = 4.0 * model.kv_heads * 128 * 4096;  // a layer
    EXPECT_NEAR((fast_of(yakv) - staged * (model.layers - 1)) / kGib, model.yakv_fast, 0.01) << model.name;
    EXPECT_NEAR(full / fast_of(yakv), 10.2, 0.1) << model.name;
    EXPECT_NEAR(static_cast<double>(yakv.slow_live) / kGib, model.yakv_slow, 0.005) << model.name;
    EXPECT_NEAR(static_cast<double>(predict_bytes(spec_of("yakv:keys=fp8,values=fp8"), shape, kPaperTokens, 0)->slow_live) / kGib,
                model.shadow_slow, 0.005)
        << model.name;
    // The link: selected rows times their bytes, no hits.
    const auto link = [&](const std::string& text, double tokens) {
      const double row = static_cast<double>(SealedPrompt::row_bytes(*spec_of(text).offload, shape.layers[0]));
      const double rows = spec_of(text).offload->groups == RowGroup::kJoint ? 1 : model.kv_heads;
      return tokens * row * rows * model.layers / kMib;
    };
    EXPECT_NEAR(link("shadowkv", 2048), model.shadow_link, 0.5) << model.name;
    EXPECT_NEAR(link("yakv:groups=joint", 4096), model.yakv_link, 0.6) << model.name;
  }
}

// 3.2: what one more token costs near, 2r + 2C/c, and its chunk's number.
TEST(OffloadSections, Section32BytesPerToken) {
  for (const auto& [kv_heads, expected] : {std::pair{8, 576.0}, {4, 448.0}}) {
    ModelShape shape = kPaperModels[0].shape();
    shape.layers.resize(1);
    shape.layers[0].kv_heads = kv_heads;
    const auto fast = [&](int tokens) { return fast_of(*predict_bytes(spec_of("shadowkv:budget=2048"), shape, tokens, 0)); };
    EXPECT_DOUBLE_EQ((fast(65536) - fast(32768)) / 32768, expected + 4.0 * kv_heads / 8);
  }
}

}  // namespace
}  // namespace kvartet
