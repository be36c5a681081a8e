// Layers with a sliding window (DESIGN 4; docs/decisions/0004-sliding-windows.md): the last W rows as a cache without a
// window holds them, nothing else kept or counted, and no method at work but the format.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/layer_cache.h"

namespace kvartet {
namespace {

using namespace test;

ModelShape windowed_shape(int window, int layers = 1) {
  ModelShape shape = small_shape(layers);
  for (LayerShape& layer : shape.layers) layer.window = window;
  return shape;
}

// The rows of a head as attention sees them, [rows, kDim], and those of `full` without all but the last `window`.
void expect_tail(const SequenceCache& windowed, const SequenceCache& full, int window) {
  for (std::size_t h = 0; h < kKvHeads; ++h) {
    const HeadView& view = windowed.views(0)[h];
    const HeadView& whole = full.views(0)[h];
    ASSERT_EQ(view.rows, whole.rows);
    ASSERT_EQ(view.begin, std::max(0, whole.rows - window));
    const auto skipped = static_cast<std::ptrdiff_t>(view.begin) * kDim;
    for (const auto side : {&HeadView::keys, &HeadView::values}) {
      const std::vector<float> all = read_rows(whole.*side);
      EXPECT_EQ(read_rows(view.*side), std::vector<float>(all.begin() + skipped, all.end()));
    }
    const std::vector<std::int32_t> positions = windowed.positions(0, static_cast<int>(h));
    ASSERT_EQ(static_cast<int>(positions.size()), view.rows - view.begin);
    for (std::size_t i = 0; i < positions.size(); ++i) ASSERT_EQ(positions[i], view.begin + static_cast<int>(i));
  }
  EXPECT_EQ(windowed.rows(0, 0), std::min(window, full.rows(0, 0)));
  expect_ok(windowed.check_integrity());
}

struct WindowCase {
  std::string spec;
  int window;
};

const std::vector<WindowCase>& cases() {
  static const std::vector<WindowCase> kCases = {{"full", 100},
                                                 {"full", 1},
                                                 {"f32", 128},
                                                 {"q8_0", 70},
                                                 {"kivi:residual=32", 33},
                                                 {"kivi:residual=32", 100},
                                                 {"kivi:bits=2,group=64,residual=64", 300},
                                                 {"full/kivi:residual=32", 50}};
  return kCases;
}

TEST(SlidingWindow, HoldsTheLastRowsOfACacheWithoutOne) {
  for (const WindowCase& c : cases()) {
    for (const int prompt : {1, 40, 101, 128, 500}) {
      SCOPED_TRACE(c.spec + " window " + std::to_string(c.window) + " prompt " + std::to_string(prompt));
      FedCache windowed = fed_cache(c.spec, Arena::create(), windowed_shape(c.window));
      FedCache full = fed_cache(c.spec);
      for (FedCache* fed : {&windowed, &full}) expect_ok(fed->prompt(prompt));
      expect_tail(windowed.cache, full.cache, c.window);
      for (int step = 0; step < 140; ++step) {
        for (FedCache* fed : {&windowed, &full}) expect_ok(fed->steps(1));
        if (step % 13 == 0 || step > 130) expect_tail(windowed.cache, full.cache, c.window);
      }
      // A second prompt, shorter and longer than the window; then one step more.
      for (const int more : {20, 350}) {
        for (FedCache* fed : {&windowed, &full}) expect_ok(fed->prompt(more));
        expect_tail(windowed.cache, full.cache, c.window);
        for (FedCache* fed : {&windowed, &full}) expect_ok(fed->steps(1));
        expect_tail(windowed.cache, full.cache, c.window);
      }
    }
  }
}

// The step's own query sees W rows, its own included, while KIVI has not sealed yet.
TEST(SlidingWindow, AttentionOfAStepSeesTheWindow) {
  FedCache fed = fed_cache("kivi:residual=32", Arena::create(), windowed_shape(50));
  expect_ok(fed.prompt(127));
  expect_ok(fed.append(0));
  EXPECT_EQ(fed.cache.views(0)[0].begin, 78);
  EXPECT_EQ(fed.cache.views(0)[0].rows, 128);
  expect_ok(fed.cache.check_integrity());
  expect_ok(fed.cache.after_attention(0, {}));
  expect_ok(fed.cache.check_integrity());
}

TEST(SlidingWindow, ForksGoTheirOwnWays) {
  for (const WindowCase& c : cases()) {
    SCOPED_TRACE(c.spec + " window " + std::to_string(c.window));
    FedCache windowed = fed_cache(c.spec, Arena::create(), windowed_shape(c.window));
    FedCache full = fed_cache(c.spec);
    for (FedCache* fed : {&windowed, &full}) expect_ok(fed->prompt(200));
    FedCache fork = windowed.fork();
    expect_ok(fork.prompt(300));
    expect_tail(windowed.cache, full.cache, c.window);
    for (FedCache* fed : {&windowed, &full}) expect_ok(fed->steps(150));
    expect_tail(windowed.cache, full.cache, c.window);
    expect_ok(fork.cache.check_integrity());
    EXPECT_EQ(fork.cache.views(0)[0].rows, 500);
  }
}

// T7 for windows: live bytes are those of min(W, tokens) rows, with KIVI's key groups whole; the counts agree everywhere;
// padding is at most two tiles per side and head, one at each end of the rows in each format.
TEST(SlidingWindow, Bytes) {
  for (const WindowCase& c : cases()) {
    const ModelShape shape = windowed_shape(c.window, 2);
    const std::shared_ptr<Arena> arena = Arena::create();
    FedCache fed = fed_cache(c.spec, arena, shape);
    expect_ok(fed.prompt(60));
    for (const int tokens : {60, 61, 99, 128, 190, 320, 700}) {
      SCOPED_TRACE(c.spec + " window " + std::to_string(c.window) + " tokens " + std::to_string(tokens));
      expect_ok(fed.steps(tokens - fed.cache.next_position()));
      const ByteAccount bytes = fed.cache.bytes();
      EXPECT_EQ(bytes, *predict_bytes(spec_of(c.spec), shape, 60, tokens - 60));
      EXPECT_EQ(bytes.allocated, arena->allocated_bytes());
      const std::size_t rows = static_cast<std::size_t>(std::min(tokens, c.window)) * kKvHeads * 2 * 2;  // sides, layers
      if (c.spec == "full") {
        EXPECT_EQ(bytes.live, rows * kDim * 2);
      } else if (c.spec == "q8_0") {
        EXPECT_EQ(bytes.live, rows * (kDim + kDim / 32 * 2));
      }
      const std::size_t f16_tile = std::size_t{64} * kDim * (c.spec == "f32" ? 4 : 2);
      EXPECT_LE(bytes.allocated - bytes.live, f16_tile * 3 * 2 * kKvHeads * 2);
    }
  }
}

// What would be evicted elsewhere stays inside a window, and a window not longer than KIVI's residual stays f16.
TEST(SlidingWindow, MethodsDoNotActInsideIt) {
  for (const std::string spec : {"snapkv:budget=40", "streamingllm:window=8", "kivi:residual=128", "snapkv:budget=40+kivi"}) {
    SCOPED_TRACE(spec);
    FedCache windowed = fed_cache(spec, Arena::create(), windowed_shape(100));
    FedCache full = fed_cache("full");
    for (FedCache* fed : {&windowed, &full}) {
      expect_ok(fed->prompt(300));
      expect_ok(fed->steps(30));
    }
    expect_tail(windowed.cache, full.cache, 100);
    EXPECT_FALSE(windowed.cache.acted());
    EXPECT_EQ(windowed.cache.bytes(), *predict_bytes(spec_of(spec), windowed.shape, 300, 30));
  }
}

// Gemma 3's mix: the rule acts where there is no window, and the window is enforced where there is one.
TEST(SlidingWindow, MixesWithLayersThatHaveNone) {
  ModelShape shape = small_shape(2);
  shape.layers[0].window = 100;
  FedCache fed = fed_cache("snapkv:budget=64", Arena::create(), shape);
  expect_ok(fed.prompt(300));
  expect_ok(fed.steps(10));
  EXPECT_EQ(fed.cache.rows(0, 0), 100);
  EXPECT_EQ(fed.cache.rows(1, 0), 74);
  EXPECT_TRUE(fed.cache.acted());
  EXPECT_EQ(fed.cache.mean_rows(), 87);
  EXPECT_EQ(fed.cache.bytes(), *predict_bytes(spec_of("snapkv:budget=64"), shape, 300, 10));
  expect_ok(fed.cache.check_integrity());
}

// Running out of memory anywhere leaves the layer as it was.
TEST(SlidingWindow, FailedAllocationsChangeNothing) {
  for (const std::string spec : {"full", "kivi:residual=32"}) {
    const std::shared_ptr<Arena> arena = Arena::create();
    FedCache fed = fed_cache(spec, arena, windowed_shape(100));
    expect_ok(fed.prompt(150));
    const std::size_t before = arena->allocated_bytes();
    FedCache fork = fed.fork();
    int refused = 0;
    for (int failing = 1; failing < 200; ++failing) {
      FedCache victim = fed.fork();
      arena->fail_nth_allocation(failing);
      const Status status = victim.prompt(120);
      arena->fail_nth_allocation(0);
      if (status.ok()) break;
      ++refused;
      EXPECT_EQ(status.code(), Code::kExhausted);
      expect_same_views(victim.cache, fork.cache);
      expect_ok(victim.cache.check_integrity());
    }
    EXPECT_GT(refused, 3);
    EXPECT_EQ(arena->allocated_bytes(), before);
  }
}

}  // namespace
}  // namespace kvartet
