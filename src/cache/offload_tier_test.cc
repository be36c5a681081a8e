// Caches whose far rows lie in a file: the same bits as from memory, and what happens when the disk refuses
// (offloading.md 1.2, docs/methods/tiers.md).
#include <gtest/gtest.h>

#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/offload_cache.h"
#include "core/faulty_file_system.h"

namespace kvartet {
namespace {

using namespace test;

constexpr int kLayers = 2;
constexpr int kPrompt = 700;
constexpr int kSteps = 12;
constexpr std::size_t kWidth = kKvHeads * kDim;

ModelShape rotating_shape() {
  ModelShape shape = small_shape(kLayers);
  shape.rope = {.dims = kDim, .base = 10000, .scale = 1, .layout = RopeLayout::kNeighbours};
  return shape;
}

std::vector<float> normals(std::size_t count, std::uint64_t stream) {
  Rng rng(3, stream);
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

// A new folder, removed with all that is in it.
class Folder {
 public:
  Folder() {
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make " << path_;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_ = std::filesystem::temp_directory_path().string() + "/kvartet-cache-XXXXXX";
};

// One sequence that sees the same numbers whatever its spec.
class FedCache {
 public:
  FedCache(const std::string& spec, const CacheOptions& options, std::shared_ptr<Arena> arena = Arena::create())
      : cache_(SequenceCache::create(spec_of(spec), rotating_shape(), std::move(arena), options).value()) {}
  explicit FedCache(SequenceCache cache, int step) : cache_(std::move(cache)), step_(step) {}

  Status prompt(int tokens = kPrompt) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto stream = static_cast<std::uint64_t>(3 * layer);
      const std::vector<float> key = normals(static_cast<std::size_t>(tokens) * kWidth, stream);
      const std::vector<float> value = normals(key.size(), stream + 1);
      KV_TRY(cache_.seal_prompt(layer, {rows(key), rows(key), rows(value), nullptr}));
    }
    cache_.finish_prompt(tokens);
    return {};
  }

  // Every byte that attention would see in this step is appended to `seen`.
  Status step() {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto stream = static_cast<std::uint64_t>(100 + 2 * step_ + layer);
      const std::vector<float> row = normals(kWidth, stream);
      const std::vector<float> queries = normals(static_cast<std::size_t>(kHeads) * kDim, 1000 + stream);
      KV_TRY(cache_.append_row(layer, {row.data(), kKvHeads, kDim}, {row.data(), kKvHeads, kDim}));
      KV_TRY(cache_.before_attention(layer, {queries.data(), kHeads, kDim}));
      if (before_reading) before_reading();
      for (const HeadView& view : cache_.views(layer)) {
        for (const auto& pieces : {view.keys, view.values}) {
          const std::vector<float> rows = read_rows(pieces);
          seen.insert(seen.end(), rows.begin(), rows.end());
        }
      }
      KV_TRY(cache_.after_attention(layer, {}));
    }
    cache_.finish_step();
    ++step_;
    return {};
  }
  Status all_steps() {
    for (int i = 0; i < kSteps; ++i) KV_TRY(step());
    return {};
  }
  Status all() {
    KV_TRY(prompt());
    return all_steps();
  }
  SequenceCache& cache() { return cache_; }
  FedCache fork() const { return FedCache(cache_.fork(), step_); }

  std::vector<float> seen;
  std::function<void()> before_reading;  // of what was chosen

 private:
  static HeadRows<const float> rows(const std::vector<float>& data) {
    return {data.data(), data.size() / kWidth, kKvHeads, kDim, kWidth};
  }
  SequenceCache cache_;
  int step_ = 0;
};

const char* const kFileTiers[] = {"mmap", "disk"};
const char* const kSpecs[] = {"yakv:budget=40,local=16", "select:keys=f32,values=f32,index=higgs4,budget=24,share=head",
                              "shadowkv:rank=16,sinks=16,budget=64", "yakv:run=8,budget=40,local=16"};

std::string in_tier(const std::string& spec, const std::string& tier, const std::string& more = "") {
  return spec + ",tier=" + tier + more;
}

TEST(OffloadTier, EveryTierGivesTheSameBits) {
  const Folder folder;
  for (const std::string spec : kSpecs) {
    FedCache ram(in_tier(spec, "ram"), {});
    expect_ok(ram.all());
    ASSERT_TRUE(ram.cache().acted());
    for (const std::string tier : {"ram", "mmap", "disk"}) {
      for (const std::string more : {"", ",cache=0.125", ",cache=1"}) {
        for (const int threads : {1, 3}) {
          FedCache far(in_tier(spec, tier, more), {.threads = threads, .tier_directory = folder.path()});
          expect_ok(far.all());
          EXPECT_TRUE(far.seen == ram.seen) << spec << " " << tier << more << " on " << threads;
          expect_ok(far.cache().check_integrity());
          const RowTraffic traffic = far.cache().traffic();
          EXPECT_EQ(traffic.rows_fetched + traffic.rows_hit, ram.cache().traffic().rows_fetched + ram.cache().traffic().rows_hit);
          if (more == ",cache=1") {
            EXPECT_LT(traffic.rows_fetched, ram.cache().traffic().rows_fetched);
          }
        }
      }
    }
  }
  EXPECT_TRUE(folder.empty());  // files without a name: nothing is left even by a killed process
}

// Rows of the answer that go far, too: the bits of memory, and the predicted bytes.
TEST(OffloadTier, GeneratedRowsGoToEveryTier) {
  const Folder folder;
  const std::string spec = "yakv:budget=40,local=16,generated=64";
  const auto run = [&](FedCache& fed) -> Status {
    KV_TRY(fed.prompt());
    for (int i = 0; i < 150; ++i) KV_TRY(fed.step());
    return {};
  };
  FedCache ram(in_tier(spec, "ram"), {});
  expect_ok(run(ram));
  for (const std::string tier : kFileTiers) {
    FedCache far(in_tier(spec, tier), {.tier_directory = folder.path()});
    expect_ok(run(far));
    EXPECT_TRUE(far.seen == ram.seen) << tier;
    expect_ok(far.cache().check_integrity());
    if (!far.cache().slow_medium().starts_with("pread")) {  // other read buffers
      EXPECT_EQ(far.cache().bytes(), *predict_bytes(spec_of(in_tier(spec, tier)), rotating_shape(), kPrompt, 150)) << tier;
    }
    FaultyFileSystem counted(FileSystem::real());
    FedCache counting(in_tier(spec, tier), {.tier_directory = folder.path(), .files = &counted});
    expect_ok(counting.prompt());
    counted.arm({});
    for (int i = 0; i < 150; ++i) expect_ok(counting.step());
    const long operations = counted.operations();
    for (long nth = 1; nth <= operations; nth += std::max(1L, operations / 15)) {
      FaultyFileSystem files(FileSystem::real());
      FedCache hurt(in_tier(spec, tier), {.tier_directory = folder.path(), .files = &files});
      expect_ok(hurt.prompt());
      files.arm({.nth = nth, .lasting = true, .code = Code::kIo});
      Status status;
      for (int i = 0; i < 150 && status.ok(); ++i) status = hurt.step();
      EXPECT_TRUE(std::equal(hurt.seen.begin(), hurt.seen.end(), ram.seen.begin())) << tier << " " << nth;
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), Code::kIo) << status.message();
      EXPECT_NE(status.message().find(folder.path()), std::string::npos) << status.message();
      EXPECT_FALSE(hurt.step().ok());
    }
  }
  EXPECT_TRUE(folder.empty());
}

// T-MEM for file tiers: after the prompt, and without a row cache after every step, the bytes are the predicted ones.
TEST(OffloadTier, PredictedBytesEqualHeldOnes) {
  const Folder folder;
  for (const std::string spec : kSpecs) {
    for (const std::string tier : kFileTiers) {
      for (const int tokens : {1, 15, kPrompt}) {
        const std::string text = in_tier(spec, tier);
        const auto arena = Arena::create();
        FedCache run(text, {.tier_directory = folder.path()}, arena);
        expect_ok(run.prompt(tokens));
        const auto held = run.cache().bytes();
        if (run.cache().slow_medium().starts_with("pread")) GTEST_SKIP() << "io_uring is refused here: other read buffers";
        EXPECT_EQ(held, *predict_bytes(spec_of(text), rotating_shape(), tokens, 0)) << text << " " << tokens;
        EXPECT_EQ(held.fast_allocated(), arena->allocated_bytes()) << text << " " << tokens;
        expect_ok(run.step());
        EXPECT_EQ(run.cache().bytes(), *predict_bytes(spec_of(text), rotating_shape(), tokens, 1)) << text << " " << tokens;
        EXPECT_EQ(run.cache().fork().bytes(), run.cache().bytes()) << text;
      }
    }
  }
}

// A row cache is predicted as full: no step may hold more.
TEST(OffloadTier, ARowCacheHoldsAtMostWhatWasPredicted) {
  const std::string spec = "yakv:budget=40,local=16,cache=0.25";
  FedCache run(spec, {});
  expect_ok(run.prompt());
  EXPECT_EQ(run.cache().bytes(), *predict_bytes(spec_of(spec), rotating_shape(), kPrompt, 0));
  for (int i = 1; i <= kSteps; ++i) {
    expect_ok(run.step());
    const ByteAccount most = *predict_bytes(spec_of(spec), rotating_shape(), kPrompt, i);
    EXPECT_LE(run.cache().bytes().allocated, most.allocated);
    EXPECT_LE(run.cache().bytes().live, most.live);
  }
}

TEST(OffloadTier, AShortPromptMakesNoFile) {
  FedCache run("yakv:tier=disk,min=1000", {.tier_directory = "/there/is/no/such/folder"});
  expect_ok(run.prompt(600));
  expect_ok(run.step());
  EXPECT_EQ(run.cache().slow_medium(), "");
}

TEST(OffloadTier, ForksReadTheSameFileAndGoTheirOwnWays) {
  const Folder folder;
  for (const std::string tier : kFileTiers) {
    auto parent = std::make_unique<FedCache>(in_tier(kSpecs[0], tier), CacheOptions{.tier_directory = folder.path()});
    expect_ok(parent->prompt());
    FedCache one = parent->fork();
    FedCache two = parent->fork();
    expect_ok(one.all_steps());
    parent.reset();
    expect_ok(two.all_steps());
    EXPECT_TRUE(one.seen == two.seen) << tier;
    FedCache ram(in_tier(kSpecs[0], "ram"), {});
    expect_ok(ram.all());
    EXPECT_TRUE(one.seen == ram.seen) << tier;
  }
}

// Every file operation fails in turn, once and from then on: one sentence with the file, no wrong bit, and a second sequence
// in the same folder goes on.
TEST(OffloadTier, EveryFailingFileOperationEndsThisSequenceOnly) {
  const Folder folder;
  FedCache ram(in_tier(kSpecs[0], "ram"), {});
  expect_ok(ram.all());
  for (const std::string tier : kFileTiers) {
    FaultyFileSystem counted(FileSystem::real());
    counted.arm({});
    expect_ok(FedCache(in_tier(kSpecs[0], tier), {.tier_directory = folder.path(), .files = &counted}).all());
    const long operations = counted.operations();
    ASSERT_GT(operations, 10);
    const long stride = std::max(1L, operations / 60);
    for (long nth = 1; nth <= operations; nth += nth < 20 ? 1 : stride) {
      FaultyFileSystem files(FileSystem::real());
      const bool two = nth % 7 == 1;
      FedCache other(in_tier(kSpecs[0], tier), {.tier_directory = folder.path()});
      if (two) expect_ok(other.prompt());
      FedCache hurt(in_tier(kSpecs[0], tier), {.tier_directory = folder.path(), .files = &files});
      files.arm({.nth = nth, .lasting = nth % 2 == 0, .code = nth % 3 == 0 ? Code::kExhausted : Code::kIo});
      const Status status = hurt.all();
      if (status.ok()) {
        EXPECT_TRUE(hurt.seen == ram.seen) << tier << " " << nth;  // a hint to the system failed, or a read was repeated
      } else {
        EXPECT_TRUE(status.code() == Code::kIo || status.code() == Code::kExhausted) << status.message();
        EXPECT_NE(status.message().find(folder.path()), std::string::npos) << status.message();
        EXPECT_TRUE(std::equal(hurt.seen.begin(), hurt.seen.end(), ram.seen.begin())) << tier << " " << nth;
        EXPECT_FALSE(hurt.step().ok());  // the cache says that it is broken
      }
      if (!two) continue;
      expect_ok(other.all_steps());
      EXPECT_TRUE(other.seen == ram.seen) << tier << " " << nth;
    }
  }
  EXPECT_TRUE(folder.empty());
}

// Rows are chosen, and gone when attention reads them.
TEST(OffloadTier, AMapThatIsCutShortUnderAttentionEndsThisSequenceOnly) {
  const Folder folder;
  FedCache ram(in_tier(kSpecs[0], "ram"), {});
  expect_ok(ram.all());
  FedCache other(in_tier(kSpecs[0], "mmap"), {.tier_directory = folder.path()});
  expect_ok(other.prompt());
  const Folder hurt_folder;
  FedCache hurt(in_tier(kSpecs[0], "mmap"), {.tier_directory = hurt_folder.path()});
  expect_ok(hurt.prompt());
  expect_ok(hurt.step());
  hurt.before_reading = [&] {
    for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string file = std::filesystem::read_symlink(open.path(), gone).string();
      if (!file.starts_with(hurt_folder.path())) continue;
      EXPECT_EQ(::truncate(open.path().c_str(), 4096), 0);
    }
  };
  const Status status = hurt.step();
  EXPECT_EQ(status.code(), Code::kIo) << status.message();
  EXPECT_NE(status.message().find("cut short"), std::string::npos) << status.message();
  EXPECT_FALSE(hurt.step().ok());
  expect_ok(other.all_steps());
  EXPECT_TRUE(other.seen == ram.seen);
}

// Two sequences of 40 MB each: the second finds the file system full and ends, the first gives every row, and when the second is
// gone there is room for a third.
TEST(OffloadTier, TwoSequencesOnAFileSystemOf64MegabytesThatFills) {
  const Folder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs root: " << std::strerror(errno);
  }
  constexpr int kTokens = static_cast<int>((std::size_t{40} << 20) / (2 * sizeof(float) * kWidth * kLayers));
  const std::string spec = "select:keys=f32,values=f32,index=fp8,budget=24";
  FedCache ram(in_tier(spec, "ram"), {});
  expect_ok(ram.prompt(kTokens));
  expect_ok(ram.all_steps());
  for (const std::string tier : kFileTiers) {
    const CacheOptions options{.tier_directory = folder.path()};
    FedCache first(in_tier(spec, tier), options);
    expect_ok(first.prompt(kTokens));
    expect_ok(first.step());
    {
      FedCache second(in_tier(spec, tier), options);
      const Status status = second.prompt(kTokens);
      EXPECT_EQ(status.code(), Code::kIo) << status.message();
      EXPECT_NE(status.message().find(folder.path()), std::string::npos) << status.message();
      EXPECT_FALSE(second.step().ok());
    }
    for (int i = 1; i < kSteps; ++i) expect_ok(first.step());
    EXPECT_TRUE(first.seen == ram.seen) << tier;
    first = FedCache(in_tier(spec, tier), options);
    expect_ok(first.prompt(kTokens));
    expect_ok(first.all_steps());
    EXPECT_TRUE(first.seen == ram.seen) << tier;
  }
  EXPECT_EQ(::umount(folder.path().c_str()), 0) << std::strerror(errno);
}

TEST(OffloadTier, EveryFailedAllocationIsReported) {
  const Folder folder;
  for (const std::string tier : kFileTiers) {
    long n = 1;
    for (bool failed = true; failed; n += 3) {
      const auto arena = Arena::create();
      FedCache run(in_tier(kSpecs[0], tier, ",cache=0.25"), {.tier_directory = folder.path()}, arena);
      arena->fail_nth_allocation(n);
      const Status status = run.all();
      failed = !status.ok();
      if (failed) {
        EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
      }
    }
    EXPECT_GT(n, 30);
  }
}

TEST(OffloadTier, AFolderThatIsNotThereIsNamed) {
  FedCache run("yakv:tier=disk", {.tier_directory = "/there/is/no/such/folder"});
  const Status status = run.prompt();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/there/is/no/such/folder"), std::string::npos) << status.message();
}

TEST(OffloadTier, KeysOfTheSpec) {
  EXPECT_EQ(spec_of("yakv:tier=disk,cache=0.125").offload->cache_share, 0.125);
  EXPECT_EQ(spec_of(spec_of("select:tier=mmap,cache=0.25").canonical), spec_of("select:tier=mmap,cache=0.25"));
  for (const std::string text : {"yakv:cache=2", "yakv:cache=-0.5", "yakv:cache=much", "yakv:cache=nan", "yakv:tier=tape"}) {
    const Result<CacheSpec> spec = parse_spec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_EQ(spec.status().code(), Code::kUsage);
  }
}

}  // namespace
}  // namespace kvartet
