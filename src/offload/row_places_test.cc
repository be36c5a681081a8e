// Attention over rows where they lie: every kernel, on every instruction set this CPU has, against what the codec decodes, in
// double. Odd head dimensions and row counts, 1 to 9 and 16 queries, rows at any address in guarded memory, and a mapped file
// that is cut short while it is read.
#include "offload/row_places.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/normals_fixture.h"
#include "core/rope_table.h"
#include "core/uz.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

constexpr float kGuard = -12345.0F;
constexpr int kQueryCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
constexpr int kRowCounts[] = {1, 2, 3, 17, 31, 33, 127, 128};

// A row that ends where memory ends: a page behind it may not be touched. Rows begin at even addresses, in no other way aligned.
class GuardedRow {
 public:
  explicit GuardedRow(std::size_t bytes) : bytes_(bytes), page_(uz(static_cast<int>(::sysconf(_SC_PAGESIZE)))) {
    mapped_ = (bytes + page_ - 1) / page_ * page_ + page_;
    base_ = static_cast<std::byte*>(::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(::mprotect(base_ + mapped_ - page_, page_, PROT_NONE), 0);
  }
  GuardedRow(const GuardedRow&) = delete;
  GuardedRow& operator=(const GuardedRow&) = delete;
  ~GuardedRow() { ::munmap(base_, mapped_); }
  std::byte* data() { return base_ + mapped_ - page_ - bytes_; }

 private:
  std::size_t bytes_;
  std::size_t page_;
  std::size_t mapped_ = 0;
  std::byte* base_ = nullptr;
};

// Rows of one head, keys and values behind each other as a layer's codec writes them.
struct Rows {
  Rows(RowFormat keys, RowFormat values, int dim, int rows)
      : key(RowCodec::create(keys, dim).value()), value(RowCodec::create(values, dim).value()), head_dim(dim), count(rows) {
    const std::size_t bytes = key.row_bytes() + value.row_bytes();
    const std::vector<float> numbers = normals(2 * uz(rows) * uz(dim), 5);
    for (int r = 0; r < rows; ++r) {
      held.push_back(std::make_unique<GuardedRow>(bytes));
      key.encode(numbers.data() + 2 * uz(r) * uz(dim), held.back()->data());
      value.encode(numbers.data() + (2 * uz(r) + 1) * uz(dim), held.back()->data() + key.row_bytes());
      places.rows[r] = held.back()->data();
      places.positions[r] = 17 * r + 3;
    }
    places.count = rows;
  }
  RowSide side(Side which, bool unrotated) const {
    return {.format = which == Side::kKey ? key.format() : value.format(),
            .head_dim = head_dim,
            .at = which == Side::kKey ? 0 : key.row_bytes(),
            .row_bytes = key.row_bytes() + value.row_bytes(),
            .unrotated = unrotated};
  }
  const std::byte* tile() const { return reinterpret_cast<const std::byte*>(&places); }

  RowCodec key;
  RowCodec value;
  int head_dim;
  int count;
  std::vector<std::unique_ptr<GuardedRow>> held;
  RowPlaces places{};
};

RopeShape rope_of(int dims, RopeLayout layout) { return {.dims = dims, .base = 10000, .scale = 1, .layout = layout}; }

void expect_scores(const Rows& rows, const TileFormat& format, const RopeTable* rope, int queries, int begin, int end) {
  const std::size_t dim = uz(rows.head_dim);
  const std::vector<float> q = normals(uz(queries) * dim, 9);
  const std::size_t stride = uz(end - begin) + 3;
  std::vector<float> logits(uz(queries) * stride, kGuard);
  format.kernels.score(format, {.tile = rows.tile(),
                                .begin = begin,
                                .end = end,
                                .q = q.data(),
                                .queries = queries,
                                .logits = logits.data(),
                                .logit_stride = stride});
  std::vector<float> key(dim);
  for (int r = begin; r < end; ++r) {
    rows.key.decode(rows.places.rows[r], key.data());
    if (rope != nullptr) rope->rotate(key.data(), rows.places.positions[r]);
    for (std::size_t query = 0; query < uz(queries); ++query) {
      double dot = 0;
      double size = 0;
      for (std::size_t c = 0; c < dim; ++c) {
        dot += static_cast<double>(q[query * dim + c]) * key[c];
        size += std::abs(static_cast<double>(q[query * dim + c]) * key[c]);
      }
      ASSERT_NEAR(logits[query * stride + uz(r - begin)], dot, 1e-6 * size) << "row " << r << " query " << query;
    }
  }
  for (std::size_t query = 0; query < uz(queries); ++query) {
    for (std::size_t i = uz(end - begin); i < stride; ++i) ASSERT_EQ(logits[query * stride + i], kGuard);
  }
}

void expect_sums(const Rows& rows, const TileFormat& format, int queries, int begin, int end) {
  const std::size_t dim = uz(rows.head_dim);
  const std::size_t stride = uz(end - begin) + 1;
  std::vector<float> weights = normals(uz(queries) * stride, 11);
  for (float& w : weights) w = std::abs(w);
  std::vector<float> out(uz(queries) * dim + 4, kGuard);
  std::fill_n(out.begin(), uz(queries) * dim, 0.0F);
  format.kernels.accumulate(format, {.tile = rows.tile(),
                                     .begin = begin,
                                     .end = end,
                                     .weights = weights.data(),
                                     .weight_stride = stride,
                                     .queries = queries,
                                     .out = out.data()});
  if (format.kernels.finish_output != nullptr) format.kernels.finish_output(format, out.data(), queries);
  std::vector<float> value(dim);
  for (std::size_t query = 0; query < uz(queries); ++query) {
    std::vector<double> sum(dim, 0.0);
    double size = 0;
    for (int r = begin; r < end; ++r) {
      rows.value.decode(rows.places.rows[r] + rows.key.row_bytes(), value.data());
      double norm = 0;
      for (std::size_t c = 0; c < dim; ++c) {
        sum[c] += static_cast<double>(weights[query * stride + uz(r - begin)]) * value[c];
        norm += static_cast<double>(value[c]) * value[c];
      }
      size += static_cast<double>(weights[query * stride + uz(r - begin)]) * std::sqrt(norm);
    }
    for (std::size_t c = 0; c < dim; ++c) ASSERT_NEAR(out[query * dim + c], sum[c], 1e-6 * size) << "query " << query;
  }
  for (std::size_t i = uz(queries) * dim; i < out.size(); ++i) ASSERT_EQ(out[i], kGuard);
}

class RowPlacesTest : public testing::TestWithParam<SimdTarget> {};

TEST_P(RowPlacesTest, KernelsAgreeWithTheCodec) {
  const ScopedSimdTarget scoped(GetParam());
  for (const RowFormat format : {RowFormat::kF16, RowFormat::kHiggs4}) {
    for (const int dim : {8, 24, 64, 80, 96, 128, 256}) {
      if (!RowCodec::create(format, dim).ok()) continue;
      for (const int count : kRowCounts) {
        const Rows rows(format, format, dim, count);
        const TileFormat key = make_places_format(rows.side(Side::kKey, false), Side::kKey);
        const TileFormat value = make_places_format(rows.side(Side::kValue, false), Side::kValue);
        for (const int queries : kQueryCounts) {
          SCOPED_TRACE(key.name + " dim " + std::to_string(dim) + " rows " + std::to_string(count) + " queries " +
                       std::to_string(queries));
          expect_scores(rows, key, nullptr, queries, count / 3, count);
          expect_sums(rows, value, queries, count / 3, count);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(RowPlacesTest, UnrotatedKeysAreTurned) {
  const ScopedSimdTarget scoped(GetParam());
  constexpr int kRows = 37;
  for (const RowFormat format : {RowFormat::kF16, RowFormat::kHiggs4}) {
    for (const RopeLayout layout : {RopeLayout::kNeighbours, RopeLayout::kHalves}) {
      for (const int dim : {8, 64, 80, 96, 128, 256}) {
        if (!RowCodec::create(format, dim).ok()) continue;
        for (const int dims : {dim, dim / 2, 4}) {  // some models turn a part of a head
          Rows rows(format, RowFormat::kF16, dim, kRows);
          const RopeTable turns = RopeTable::create(rope_of(dims, layout), 17 * kRows + 3, *Arena::create()).value();
          rows.places.rope = &turns;
          const TileFormat key = make_places_format(rows.side(Side::kKey, true), Side::kKey);
          for (const int queries : {1, 3, 4, 7, 9}) expect_scores(rows, key, &turns, queries, 2, kRows);
          std::vector<float> decoded(kRows * uz(dim));
          key.kernels.decode(key, rows.tile(), 0, kRows, {decoded.data(), kRows, uz(dim)});
          std::vector<float> expected(uz(dim));
          for (int r = 0; r < kRows; ++r) {
            rows.key.decode(rows.places.rows[r], expected.data());
            turns.rotate(expected.data(), rows.places.positions[r]);
            ASSERT_TRUE(std::equal(expected.begin(), expected.end(), decoded.begin() + r * dim)) << r;
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// The logits of a row are the same whatever range it is read in: ranges are what threads get.
TEST_P(RowPlacesTest, ARowsLogitsDoNotDependOnItsRange) {
  const ScopedSimdTarget scoped(GetParam());
  for (const int dim : {64, 128, 256}) {
    Rows rows(RowFormat::kHiggs4, RowFormat::kHiggs4, dim, 100);
    const RopeTable turns = RopeTable::create(rope_of(dim, RopeLayout::kHalves), 17 * 100 + 3, *Arena::create()).value();
    rows.places.rope = &turns;
    const TileFormat key = make_places_format(rows.side(Side::kKey, true), Side::kKey);
    const std::vector<float> q = normals(3 * uz(dim), 2);
    const auto score = [&](int begin, int end, float* logits) {
      key.kernels.score(key, {.tile = rows.tile(),
                              .begin = begin,
                              .end = end,
                              .q = q.data(),
                              .queries = 3,
                              .logits = logits + begin,
                              .logit_stride = 100});
    };
    std::vector<float> whole(3 * 100);
    score(0, 100, whole.data());
    for (const int cut : {1, 33, 64, 99}) {
      std::vector<float> parts(3 * 100);
      score(0, cut, parts.data());
      score(cut, 100, parts.data());
      EXPECT_EQ(parts, whole) << dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RowPlacesTest, testing::ValuesIn(simd_targets()),
                         [](const testing::TestParamInfo<SimdTarget>& info) { return info.param.name; });

// A file that is cut short while attention reads its map: the tile says so, and the process lives.
TEST(RowPlaces, AMapThatIsCutShortFailsTheTile) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  ASSERT_EQ(::ftruncate(::fileno(file), static_cast<off_t>(4 * page)), 0);
  void* const map = ::mmap(nullptr, 4 * page, PROT_READ, MAP_SHARED, ::fileno(file), 0);
  ASSERT_NE(map, MAP_FAILED);
  Rows rows(RowFormat::kF16, RowFormat::kF16, 64, 4);
  const auto* const base = static_cast<const std::byte*>(map);
  for (std::size_t r = 1; r < 4; ++r) rows.places.rows[r] = base + r * page;  // the first lies in memory
  rows.places.mapped = base;
  rows.places.mapped_bytes = 4 * page;
  const TileFormat key = make_places_format(rows.side(Side::kKey, false), Side::kKey);
  const TileFormat value = make_places_format(rows.side(Side::kValue, false), Side::kValue);
  expect_scores(rows, key, nullptr, 3, 0, 4);
  expect_sums(rows, value, 3, 0, 4);
  EXPECT_EQ(rows.places.failed, 0U);
  ASSERT_EQ(::ftruncate(::fileno(file), static_cast<off_t>(2 * page)), 0);
  const std::vector<float> q = normals(64, 1);
  std::vector<float> logits(4, kGuard);
  for (int round = 0; round < 3; ++round) {  // a guard that is left must be usable again
    rows.places.failed = 0;
    key.kernels.score(
        key,
        {.tile = rows.tile(), .begin = 0, .end = 4, .q = q.data(), .queries = 1, .logits = logits.data(), .logit_stride = 4});
    EXPECT_EQ(rows.places.failed, 1U);
    EXPECT_EQ(logits, std::vector<float>(4, 0.0F));
    rows.places.failed = 0;
    std::vector<float> out(64);
    value.kernels.accumulate(value, {.tile = rows.tile(),
                                     .begin = 0,
                                     .end = 4,
                                     .weights = logits.data(),
                                     .weight_stride = 4,
                                     .queries = 1,
                                     .out = out.data()});
    EXPECT_EQ(rows.places.failed, 1U);
  }
  ::munmap(map, 4 * page);
  std::fclose(file);
}

}  // namespace
}  // namespace kvartet
