// Live bytes equal the spec's formulas, allocated bytes equal the arena's count, padding is bounded (DESIGN 4, T7).
#include <gtest/gtest.h>

#include "cache/cache_fixture.h"
#include "cache/layer_cache.h"

namespace kvartet {
namespace {

using namespace test;

ModelShape one_head(int head_dim) {
  ModelShape shape;
  shape.context = 1 << 20;
  shape.layers = {{.heads = 1, .kv_heads = 1, .head_dim = head_dim, .window = 0}};
  return shape;
}

std::size_t live_bytes(const std::string& spec, int prompt, int generated, int head_dim = 128) {
  const Result<ByteAccount> account = predict_bytes(spec_of(spec), one_head(head_dim), prompt, generated);
  EXPECT_TRUE(account.ok()) << account.status().message();
  return account->live;
}

// 2.7's formula, written out again.
double kivi_formula(int tokens, int bits, int group, int residual, int head_dim) {
  const double row = head_dim * (bits / 8.0 + 4.0 / group);
  const int keys = tokens - tokens % residual;
  const int values = tokens - std::min(tokens, residual);
  return (keys + values) * row + (2 * tokens - keys - values) * 2.0 * head_dim;
}

TEST(ByteAccounts, Section27Formula) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const int group : {32, 64, 128}) {
      for (const int residual : {128, 256}) {
        const std::string spec =
            "kivi:bits=" + std::to_string(bits) + ",group=" + std::to_string(group) + ",residual=" + std::to_string(residual);
        for (const int tokens : {0, 1, 127, 128, 129, 700, 1000, 4096}) {
          EXPECT_EQ(static_cast<double>(live_bytes(spec, tokens, 0)), kivi_formula(tokens, bits, group, residual, 128))
              << spec << " " << tokens;
        }
      }
    }
  }
}

// 2.7's check value, on a real cache: D = 128, b = 2, G = 32, R = 128, L = 1000.
TEST(ByteAccounts, Section27CheckValue) {
  const TokenRows rows(1000, 3, 128);
  FedCache fed = fed_cache("kivi:bits=2", Arena::create(), small_shape(1, 128), &rows);
  expect_ok(fed.prompt(1000));
  std::size_t keys = 0;
  std::size_t values = 0;
  for (const StateBuffer& buffer : fed.cache.state()) {
    if (buffer.name.starts_with("layer 0 head 0 key ")) keys += buffer.bytes.live;
    if (buffer.name.starts_with("layer 0 head 0 value ")) values += buffer.bytes.live;
  }
  EXPECT_EQ(keys, 69632U);
  EXPECT_EQ(values, 74624U);
}

// 2.7's table of realized ratios after prefill.
TEST(ByteAccounts, Section27Table) {
  struct Row {
    int bits, group, residual;
    double ratios[4];
  };
  const Row table[] = {{2, 32, 32, {4.908, 5.245, 5.289, 5.322}},  {2, 32, 128, {3.549, 4.995, 5.159, 5.289}},
                       {2, 64, 128, {3.935, 5.902, 6.141, 6.333}}, {2, 128, 128, {4.161, 6.491, 6.787, 7.027}},
                       {4, 32, 32, {3.065, 3.173, 3.186, 3.197}},  {4, 32, 128, {2.549, 3.094, 3.146, 3.186}},
                       {4, 64, 128, {2.743, 3.419, 3.486, 3.538}}, {4, 128, 128, {2.851, 3.609, 3.685, 3.744}}};
  const int lengths[] = {1000, 4096, 8192, 32768};
  for (const Row& row : table) {
    const std::string spec = "kivi:bits=" + std::to_string(row.bits) + ",group=" + std::to_string(row.group) +
                             ",residual=" + std::to_string(row.residual);
    for (int i = 0; i < 4; ++i) {
      const double ratio = 512.0 * lengths[i] / static_cast<double>(live_bytes(spec, lengths[i], 0));
      EXPECT_NEAR(ratio, row.ratios[i], 5.1e-4) << spec << " at " << lengths[i];
    }
  }
}

// Section 9: bytes per token of the Llama-3.1-8B shape.
TEST(ByteAccounts, Section9PlainRows) {
  ModelShape llama;
  llama.context = 131072;
  llama.layers.assign(32, {.heads = 32, .kv_heads = 8, .head_dim = 128, .window = 0});
  const auto live = [&](const char* spec) { return predict_bytes(spec_of(spec), llama, 1024, 0)->live; };
  EXPECT_EQ(live("full"), 1024U * 131072U);
  EXPECT_EQ(live("f32"), 1024U * 262144U);
  EXPECT_EQ(live("q8_0"), 1024U * 69632U);
  EXPECT_EQ(live("fp8"), 1024U * 65536U);
  EXPECT_EQ(live("q8_0/q4_0"), 1024U * 53248U);
  EXPECT_EQ(live("q5_0"), 1024U * 45056U);
  EXPECT_EQ(live("q4_0"), 1024U * 36864U);
  EXPECT_EQ(live("q4_1"), 1024U * 40960U);
  EXPECT_EQ(live("q3_0"), 1024U * 28672U);  // 14 bytes per 32
  // Beside the rows: 512 bytes of signs, and for variant=prod a sketch matrix of 64 KiB, once per cache (3.7, R7).
  EXPECT_EQ(live("turboquant"), 1024U * 33792U + 512U);
  EXPECT_EQ(live("turboquant:bits=3"), 1024U * 25600U + 512U);
  EXPECT_EQ(live("turboquant:bits=4,rotation=dense"), 1024U * 33792U + 65536U);
  EXPECT_EQ(live("turboquant:bits=3,variant=prod"), 1024U * (26624U + 25600U) / 2 + 512U + (65536U + 512U));
  EXPECT_EQ(live("polar-angle"), 1024U * 32 * 8 * 2 * 62 + 512U);  // 3.10: 3.875 bits
  // 3.9: sketch / 8 + 2 bytes per key, and a sketch matrix of 256 x 128 floats.
  EXPECT_EQ(live("qjl/full:residual=0"), 1024U * 32 * 8 * (34 + 256) + 131072U);
  // Section 8: layers left at f16 enter the formula.
  EXPECT_EQ(live("q4_0:keep=0-1.30-31"), 1024U * (36864U / 32 * 28 + 131072U / 32 * 4));
  // A mean of 128 floats per layer and head, and a calibrated scale per side.
  EXPECT_EQ(live("q4_0:center=mean"), 1024U * 36864U + 32U * 8U * 512U);
  EXPECT_EQ(live("fp8:scale=calibrated"), 1024U * 65536U + 32U * 8U * 8U);
}

// 4.4: rows x (both rows + 4 bytes of position), before and after the decode steps.
TEST(ByteAccounts, Section44) {
  EXPECT_EQ(live_bytes("snapkv:budget=2000", 8000, 0), 2000U * (512 + 4));
  EXPECT_EQ(live_bytes("snapkv:budget=2000", 8000, 512), 2512U * (512 + 4));
  // Of the rows alone: 4.00 after the prompt, 3.39 after 512 tokens; the positions are 0.8 % of a row.
  EXPECT_EQ(512.0 * 8000 / (static_cast<double>(live_bytes("snapkv:budget=2000", 8000, 0)) - 4 * 2000), 4.0);
  EXPECT_NEAR(512.0 * 8512 / (static_cast<double>(live_bytes("snapkv:budget=2000", 8000, 512)) - 4 * 2512), 3.39, 5e-3);
  EXPECT_EQ(live_bytes("snapkv:budget=0.25", 500, 0), 125U * (512 + 4));
  EXPECT_EQ(live_bytes("snapkv:budget=0.25", 20, 3), 23U * (512 + 4));
  EXPECT_EQ(live_bytes("streamingllm", 8000, 512), 516U * (512 + 4));
  EXPECT_EQ(live_bytes("streamingllm:budget=0.5", 800, 50), 400U * (512 + 4));
  EXPECT_EQ(live_bytes("streamingllm", 300, 100), 400U * (512 + 4));
  EXPECT_EQ(live_bytes("snapkv:budget=600+kivi:bits=2", 4096, 0),
            static_cast<std::size_t>(kivi_formula(600, 2, 32, 128, 128)) + 600U * 4);
}

// 5.5, 6: as SnapKV's rows, and 4 bytes per row for the running sum where there is one.
TEST(ByteAccounts, Section55And6) {
  EXPECT_EQ(live_bytes("h2o:budget=2000", 8000, 0), 2000U * (512 + 8));
  EXPECT_EQ(live_bytes("h2o:budget=2000", 8000, 512), 2000U * (512 + 8));
  EXPECT_EQ(live_bytes("h2o:budget=0.25", 500, 3), 125U * (512 + 8));
  EXPECT_EQ(live_bytes("h2o:budget=2000", 100, 50), 150U * (512 + 8));
  EXPECT_EQ(live_bytes("tova:budget=2000", 8000, 512), 2000U * (512 + 4));
  EXPECT_EQ(live_bytes("h2o:budget=2000+q8_0", 8000, 1), 2000U * (272 + 8));
  EXPECT_EQ(live_bytes("adakv:budget=2000", 8000, 512), 2512U * (512 + 4));
  EXPECT_EQ(live_bytes("pyramidkv:budget=2000", 8000, 512), 2512U * (512 + 4));
  EXPECT_EQ(live_bytes("cam:target=1024", 8000, 99), 1024U * (512 + 8));
  // Between passes rows run from the target to target + interval - 1.
  EXPECT_EQ(live_bytes("cam:target=1024,interval=100", 8000, 99), 1123U * (512 + 8));
  EXPECT_EQ(live_bytes("cam:target=1024,interval=100", 8000, 100), 1024U * (512 + 8));
  EXPECT_EQ(live_bytes("cam:target=1024,interval=100", 8000, 201), 1025U * (512 + 8));
  EXPECT_EQ(live_bytes("cam:target=1024,interval=100", 1000, 101), 1101U * (512 + 8));
}

// 6.4: over all layers exactly as many rows as SnapKV keeps.
TEST(ByteAccounts, Section64Total) {
  const ModelShape shape = small_shape(7);
  EXPECT_EQ(predict_bytes(spec_of("pyramidkv:budget=100"), shape, 3000, 5)->live,
            predict_bytes(spec_of("snapkv:budget=100"), shape, 3000, 5)->live);
}

TEST(ByteAccounts, PredictRefusesSenselessCounts) {
  EXPECT_EQ(predict_bytes(spec_of("full"), one_head(64), -1, 0).status().code(), Code::kUsage);
  EXPECT_EQ(predict_bytes(spec_of("full"), one_head(64), 0, 2'000'000'000).status().code(), Code::kUsage);
  EXPECT_EQ(predict_bytes(spec_of("kivi:group=128"), one_head(64), 1, 1).status().code(), Code::kUsage);
}

// T7: allocator count, cache's own accounts, listed state and the prediction are one number, after every length and step
// that the catalogue names; and padding stays within one f16 tile of 128 rows per side, layer and head.
TEST(ByteAccounts, T7CountsAgreeEverywhere) {
  constexpr int kResidual = 128;
  constexpr int kCapacity = 256;
  const std::vector<std::string> specs = {"full",
                                          "f32",
                                          "q8_0",
                                          "kivi:bits=4",
                                          "kivi:bits=2,group=64",
                                          "kivi:bits=4,residual=32",
                                          "kivi:bits=8,residual=32",
                                          "kivi:bits=8/2,group=32/64,residual=192",
                                          "full/kivi",
                                          "kivi:bits=3,residual=32",
                                          "q4_0",
                                          "q8_0/q4_1:rotate=hadamard,center=mean",
                                          "q5_0:keep=1",
                                          "fp8:scale=calibrated",
                                          "turboquant",
                                          "turboquant:bits=2.5,residual=64",
                                          "qjl:residual=64",
                                          "polar-angle",
                                          "turboquant:bits=3,variant=prod,rotation=dense",
                                          "kivi:center=mean",
                                          "streamingllm:window=252+turboquant:bits=3.5",
                                          "snapkv:budget=256",
                                          "snapkv",
                                          "snapkv:budget=256+kivi:bits=2",
                                          "snapkv+q8_0",
                                          "streamingllm:window=252",
                                          "streamingllm:budget=0.3",
                                          "streamingllm:window=252+q8_0",
                                          "h2o:budget=256",
                                          "h2o:budget=0.3+q8_0",
                                          "tova:budget=256",
                                          "tova:budget=0.3+q8_0/full",
                                          "pyramidkv:budget=256",
                                          "pyramidkv:budget=0.3,window=16+kivi:residual=32",
                                          "cam:target=256",
                                          "cam:target=256,interval=50",
                                          "cam:target=256,interval=7,base=h2o+q8_0/full"};
  const ModelShape shape = small_shape(2);
  for (const std::string& spec : specs) {
    for (const int prompt : {0, 1, kResidual - 1, kResidual, kResidual + 1, kCapacity, kCapacity + 1, 700, 4096}) {
      const std::shared_ptr<Arena> arena = Arena::create();
      FedCache fed = fed_cache(spec, arena, shape);
      if (prompt > 0) expect_ok(fed.prompt(prompt));
      for (const int generated : {0, 1, kResidual, 2 * kResidual + 1}) {
        expect_ok(fed.steps(prompt + generated - fed.cache.next_position()));
        SCOPED_TRACE(spec + " " + std::to_string(prompt) + "+" + std::to_string(generated));
        const ByteAccount bytes = fed.cache.bytes();
        EXPECT_EQ(bytes, *predict_bytes(spec_of(spec), shape, prompt, generated));
        EXPECT_EQ(bytes.allocated, arena->allocated_bytes());
        expect_ok(fed.cache.check_integrity());
        const std::size_t f16_tile = std::size_t{kBlockRows} * kDim * (spec == "f32" ? 4 : 2);
        const std::size_t numbers = 2 * sizeof(float) * RowPositions::kTileRows * kKvHeads * 2;
        EXPECT_LE(bytes.allocated - bytes.live, f16_tile * 2 * kKvHeads * 2 + numbers);
      }
    }
  }
}

// DESIGN 4: padding of a side is at most one f16 tile of 128 rows, at every length between steps. KIVI at 8 bits is the
// exception, by up to a fifth: its own tile of 128 rows may be nearly empty while f16 tiles are cut at both ends.
TEST(ByteAccounts, PaddingOfASideStaysWithinOneTile) {
  for (const int head_dim : {64, 128}) {
    for (const int bits : {2, 4, 8}) {
      for (const int residual : {32, 64, 96, 128, 160}) {
        const std::string spec = "kivi:bits=" + std::to_string(bits) + ",residual=" + std::to_string(residual);
        const std::shared_ptr<const LayerFormats> formats = *LayerFormats::create(spec_of(spec), {.head_dim = head_dim});
        std::size_t worst = 0;
        for (const SideFormats* side : {&formats->key, &formats->value}) {
          for (int rows = 0; rows < 1200; ++rows) {
            const ByteAccount account = side->bytes(rows, side->sealed_rows(rows));
            worst = std::max(worst, account.allocated - account.live);
          }
        }
        const double f16_tile = kBlockRows * head_dim * 2;
        EXPECT_LE(static_cast<double>(worst), f16_tile * (bits == 8 ? 1.2 : 1.0)) << spec;
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
