// Every kernel of every format, on every instruction set this CPU has, against the obvious reference: decode to float,
// then double arithmetic (compression.md T4, relative 1e-5). Odd row ranges, 1 to 7 and 12 queries, unaligned memory, and
// guarded borders: a kernel writes what it promises and nothing else. Keys are judged by whole rows and raw queries, with
// prepare_queries in between (so scores of rotated and sketched rows are those of 3.8, test 8, and every width of codes has
// kernels of its own, test 11); values of rotated formats by their rotated rows, since finish_output comes once at the end
// (turboquant_format_test.cc checks it).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/normals_fixture.h"
#include "quantize/rotated_format.h"
#include "quantize/tile_format.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

constexpr float kGuard = -12345.0F;
constexpr int kQueryCounts[] = {1, 2, 3, 4, 5, 6, 7, 12};
constexpr int kHeadDims[] = {8, 24, 32, 64, 80, 96, 128, 256};

struct Case {
  SimdTarget target;
  FormatRequest request;
};

std::vector<int> legal_head_dims(const FormatRequest& request, Side side) {
  std::vector<int> dims;
  for (const int head_dim : kHeadDims) {
    if (make_tile_format(request, side, head_dim).ok()) dims.push_back(head_dim);
  }
  return dims;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = c.target.name + "_" + c.request.name;
  if (c.request.bits != 0) name += std::to_string(c.request.bits);
  if (c.request.group != 0) name.append("g").append(std::to_string(c.request.group));
  if (c.request.quarters != 0) name.append("and").append(std::to_string(c.request.quarters)).append("quarters");
  if (c.request.residual_signs) name += "prod";
  if (c.request.rotation == Rotation::kHadamard) name += "hadamard";
  if (c.request.rotation == Rotation::kDense) name += "dense";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<Case> all_cases() {
  std::vector<FormatRequest> requests;
  for (const std::string& name : format_names()) {
    if (name != "kivi" && name != "turboquant") requests.push_back({name});
  }
  for (const char* name : {"q8_0", "q4_1", "polar-angle"}) requests.push_back({.name = name, .rotation = Rotation::kHadamard});
  for (int bits = 1; bits <= 8; ++bits) {
    requests.push_back({.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .seed = 1});
  }
  requests.push_back({.name = "turboquant", .bits = 4, .rotation = Rotation::kDense, .seed = 1});
  for (const auto& [bits, quarters] : {std::pair{2, 2}, {3, 1}, {4, 2}}) {
    requests.push_back({.name = "turboquant", .bits = bits, .quarters = quarters, .rotation = Rotation::kHadamard, .seed = 1});
  }
  for (const int bits : {1, 3}) {
    requests.push_back({.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .residual_signs = true, .seed = 1});
  }
  for (const int bits : {2, 3, 4, 8}) {
    for (const int group : {32, 64, 128}) requests.push_back({"kivi", bits, group});
  }
  std::vector<Case> cases;
  for (const SimdTarget& target : simd_targets()) {
    for (const FormatRequest& request : requests) cases.push_back({target, request});
  }
  return cases;
}

// A tile that begins 4 bytes past any alignment the kernels might hope for, filled with normal rows.
class FilledTile {
 public:
  FilledTile(const FormatRequest& request, Side side, int head_dim)
      : format_(make_tile_format(request, side, head_dim).value()), bytes_(format_.tile_bytes + 128) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    tile_ = bytes_.data() + (64 - address % 64) + 4;
    const std::size_t dim = static_cast<std::size_t>(head_dim);
    const std::vector<float> rows = normals(static_cast<std::size_t>(format_.tile_rows) * dim, 7);
    const Status s = format_.kernels.encode(format_, tile_, 0, {rows.data(), static_cast<std::size_t>(format_.tile_rows), dim});
    EXPECT_TRUE(s.ok()) << s.message();
    const auto untouched = [](std::byte b) { return b == std::byte{0}; };
    EXPECT_TRUE(std::all_of(bytes_.data(), tile_, untouched)) << "encode wrote before the tile";
    EXPECT_TRUE(std::all_of(tile_ + format_.tile_bytes, bytes_.data() + bytes_.size(), untouched))
        << "encode wrote after the tile";
    decoded_.resize(rows.size());
    const bool turned = side == Side::kValue && format_.rotated != nullptr;
    const auto decode = turned ? format_.rotated->plain.decode : format_.kernels.decode;
    decode(format_, tile_, 0, format_.tile_rows, {decoded_.data(), static_cast<std::size_t>(format_.tile_rows), dim});
  }
  const TileFormat& format() const { return format_; }
  const std::byte* tile() const { return tile_; }
  float decoded(int row, int channel) const { return decoded_[static_cast<std::size_t>(row * format_.head_dim + channel)]; }

 private:
  TileFormat format_;
  std::vector<std::byte> bytes_;
  std::byte* tile_ = nullptr;
  std::vector<float> decoded_;
};

// The queries as attention hands them to score; they begin 4 bytes past any alignment.
std::vector<float> prepared(const TileFormat& format, const std::vector<float>& q, int queries) {
  std::vector<float> storage(static_cast<std::size_t>(queries * std::max(format.head_dim, format.prepared_floats())) + 1);
  std::copy_n(q.begin(), queries * format.head_dim, storage.begin() + 1);
  if (format.kernels.prepare_queries != nullptr) format.kernels.prepare_queries(format, storage.data() + 1, queries);
  return storage;
}

std::vector<std::pair<int, int>> row_ranges(int tile_rows) {
  std::vector<std::pair<int, int>> ranges = {{0, tile_rows}, {0, 1}, {3, 5}, {7, 8}, {1, 33}, {tile_rows - 1, tile_rows}};
  ranges.insert(ranges.end(), {{5, tile_rows - 3}, {17, 50}, {8, 48}});
  return ranges;
}

constexpr int kMostQueries = 12;

// What the products of one query and the rows of a tile should be, once for all row ranges and numbers of queries.
struct Expected {
  double sum = 0;
  double squares = 0;  // of the terms: what an error is measured by where they cancel
  void add(double term) {
    sum += term;
    squares += term * term;
  }
};

std::vector<Expected> expected_logits(const FilledTile& keys, const std::vector<float>& q) {
  const int head_dim = keys.format().head_dim;
  std::vector<Expected> logits;  // [kMostQueries, tile_rows]
  for (int k = 0; k < kMostQueries; ++k) {
    for (int row = 0; row < keys.format().tile_rows; ++row) {
      Expected& logit = logits.emplace_back();
      for (int c = 0; c < head_dim; ++c) {
        logit.add(static_cast<double>(q[static_cast<std::size_t>(k * head_dim + c)]) * static_cast<double>(keys.decoded(row, c)));
      }
    }
  }
  return logits;
}

// T4, of the largest product. Kernels in integers (quantize/integer_products_avx512.h) round every coefficient once, to
// 2^-16 of the largest of its run: near-exact, and no test of single sums can ask them for what floats give. What attention
// makes of it is tested where attention is: at most 1e-3 (attention/decode_attention_test.cc).
double tolerance(const Case& c) {
  const std::string& name = c.request.name;
  const bool one_byte = name == "q8_0" || name == "q5_0" || name == "q4_1" || name == "q4_0" || name == "q3_0" ||
                        name == "kivi" || name == "qjl" ||
                        (name == "turboquant" && c.request.bits * 4 + c.request.quarters <= 16);
  return one_byte && c.target.extension >= SimdExtension::kVnni ? 2e-4 : 1e-5;
}

void check_score(const FormatRequest& request, int head_dim, double allowed) {
  const FilledTile keys(request, Side::kKey, head_dim);
  const int tile_rows = keys.format().tile_rows;
  const std::vector<float> q = normals(static_cast<std::size_t>(kMostQueries * head_dim), 11);
  const std::vector<Expected> expected = expected_logits(keys, q);
  for (const int queries : kQueryCounts) {
    const std::vector<float> storage = prepared(keys.format(), q, queries);
    const float* const ready = storage.data() + 1;
    for (const auto& [begin, end] : row_ranges(tile_rows)) {
      const int count = end - begin;
      const std::size_t stride = static_cast<std::size_t>(count) + 3;
      std::vector<float> logits(stride * static_cast<std::size_t>(queries) + 1, kGuard);
      keys.format().kernels.score(keys.format(), {keys.tile(), begin, end, ready, queries, logits.data() + 1, stride,
                                                  begin % 2 == 0 ? keys.tile() : nullptr});
      double largest = 0.0;
      double worst = 0.0;
      for (int k = 0; k < queries; ++k) {
        for (int row = begin; row < end; ++row) {
          const Expected& logit = expected[static_cast<std::size_t>(k * tile_rows + row)];
          const double got = logits[1 + static_cast<std::size_t>(k) * stride + static_cast<std::size_t>(row - begin)];
          worst = std::max(worst, std::abs(got - logit.sum));
          largest = std::max({largest, std::abs(logit.sum), std::sqrt(logit.squares)});
        }
        for (std::size_t i = 0; i < 3; ++i) {
          ASSERT_EQ(logits[1 + static_cast<std::size_t>(k) * stride + static_cast<std::size_t>(count) + i], kGuard);
        }
      }
      ASSERT_EQ(logits[0], kGuard);
      ASSERT_LE(worst, allowed * largest) << queries << " queries, rows " << begin << " to " << end;
    }
  }
}

// Running sums over the rows, so that a range of rows is a difference: [kMostQueries, head_dim, tile_rows + 1].
std::vector<Expected> running_sums(const FilledTile& values, const std::vector<float>& weights) {
  const int tile_rows = values.format().tile_rows;
  std::vector<Expected> sums;
  for (int k = 0; k < kMostQueries; ++k) {
    for (int c = 0; c < values.format().head_dim; ++c) {
      Expected sum;
      sums.push_back(sum);
      for (int row = 0; row < tile_rows; ++row) {
        sum.add(static_cast<double>(weights[static_cast<std::size_t>(k * tile_rows + row)]) *
                static_cast<double>(values.decoded(row, c)));
        sums.push_back(sum);
      }
    }
  }
  return sums;
}

void check_accumulate(const FormatRequest& request, int head_dim, double allowed) {
  const std::size_t dim = static_cast<std::size_t>(head_dim);
  const FilledTile values(request, Side::kValue, head_dim);
  const std::size_t tile_rows = static_cast<std::size_t>(values.format().tile_rows);
  std::vector<float> weights = normals(kMostQueries * tile_rows, 13);
  for (float& w : weights) w = std::exp(w);
  const std::vector<Expected> sums = running_sums(values, weights);
  for (const int queries : kQueryCounts) {
    for (const auto& [begin, end] : row_ranges(values.format().tile_rows)) {
      const std::size_t first = static_cast<std::size_t>(begin);
      const std::size_t last = static_cast<std::size_t>(end);
      const std::size_t stride = last - first + 1;
      // Nothing may be read past the last weight of the last query.
      std::vector<float> tight(stride * static_cast<std::size_t>(queries) - 1, kGuard);
      for (std::size_t k = 0; k < static_cast<std::size_t>(queries); ++k) {
        std::copy_n(weights.data() + k * tile_rows + first, last - first, tight.data() + k * stride);
      }
      const std::vector<float> before = normals(dim * static_cast<std::size_t>(queries), 17);
      std::vector<float> out(before.size() + 2, kGuard);
      std::copy(before.begin(), before.end(), out.begin() + 1);
      values.format().kernels.accumulate(values.format(), {values.tile(), begin, end, tight.data(), stride, queries,
                                                           out.data() + 1, begin % 2 == 0 ? values.tile() : nullptr});
      double largest = 0.0;
      double worst = 0.0;
      for (std::size_t at = 0; at < before.size(); ++at) {
        const Expected& to = sums[at * (tile_rows + 1) + last];
        const Expected& from = sums[at * (tile_rows + 1) + first];
        const double start = before[at];
        const double expected = start + to.sum - from.sum;
        worst = std::max(worst, std::abs(static_cast<double>(out[1 + at]) - expected));
        largest = std::max({largest, std::abs(expected), std::sqrt(start * start + to.squares - from.squares)});
      }
      ASSERT_EQ(out.front(), kGuard);
      ASSERT_EQ(out.back(), kGuard);
      ASSERT_LE(worst, allowed * largest) << queries << " queries, rows " << begin << " to " << end;
    }
  }
}

void check_logits_per_row(const FormatRequest& request, int head_dim) {
  const FilledTile keys(request, Side::kKey, head_dim);
  const int rows = keys.format().tile_rows;
  const std::vector<float> storage = prepared(keys.format(), normals(static_cast<std::size_t>(7 * head_dim), 19), 7);
  const float* const q = storage.data() + 1;
  std::vector<float> whole(static_cast<std::size_t>(7 * rows));
  keys.format().kernels.score(keys.format(), {keys.tile(), 0, rows, q, 7, whole.data(), static_cast<std::size_t>(rows)});
  for (int k = 0; k < 7; ++k) {
    float one = 0.0F;
    for (int row = 0; row < rows; row += 5) {
      keys.format().kernels.score(keys.format(),
                                  {keys.tile(), row, row + 1, q + k * keys.format().prepared_floats(), 1, &one, 1});
      ASSERT_EQ(one, whole[static_cast<std::size_t>(k * rows + row)]);
    }
  }
}

void check_encoding(const Case& c, int head_dim) {
  const std::size_t dim = static_cast<std::size_t>(head_dim);
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (!make_tile_format(c.request, side, head_dim).ok()) continue;
    const TileFormat plain = make_tile_format(c.request, side, head_dim).value();
    const std::size_t rows = static_cast<std::size_t>(plain.tile_rows);
    std::vector<float> x = normals(rows * dim, 23);
    for (std::size_t i = 0; i < x.size(); i += 17) x[i] *= 1e-7F;  // subnormal f16
    for (std::size_t i = 0; i < x.size(); i += 101) x[i] *= 1e3F;
    std::fill_n(x.begin(), dim, 0.0F);
    std::vector<std::byte> expected(plain.tile_bytes);
    ASSERT_TRUE(plain.kernels.encode(plain, expected.data(), 0, {x.data(), rows, dim}).ok());

    const ScopedSimdTarget scope(c.target);
    const TileFormat format = make_tile_format(c.request, side, head_dim).value();
    std::vector<std::byte> tile(format.tile_bytes);
    const std::size_t step = static_cast<std::size_t>(format.row_step);
    for (std::size_t row = 0; row < rows;) {
      const std::size_t count = std::min(rows - row, step * (1 + row % 3));
      ASSERT_TRUE(format.kernels.encode(format, tile.data(), static_cast<int>(row), {x.data() + row * dim, count, dim}).ok());
      row += count;
    }
    EXPECT_EQ(std::memcmp(tile.data(), expected.data(), tile.size()), 0);
  }
}

class TileKernels : public testing::TestWithParam<Case> {};

TEST_P(TileKernels, ScoreMatchesReferenceT4) {
  const ScopedSimdTarget scope(GetParam().target);
  for (const int head_dim : legal_head_dims(GetParam().request, Side::kKey)) {
    SCOPED_TRACE(head_dim);
    check_score(GetParam().request, head_dim, tolerance(GetParam()));
  }
}

TEST_P(TileKernels, AccumulateMatchesReferenceT4) {
  const ScopedSimdTarget scope(GetParam().target);
  for (const int head_dim : legal_head_dims(GetParam().request, Side::kValue)) {
    SCOPED_TRACE(head_dim);
    check_accumulate(GetParam().request, head_dim, tolerance(GetParam()));
  }
}

// A row's logit is the same to the bit whatever range or number of queries it is computed with.
TEST_P(TileKernels, LogitsDoNotDependOnTheRange) {
  const ScopedSimdTarget scope(GetParam().target);
  for (const int head_dim : legal_head_dims(GetParam().request, Side::kKey)) {
    SCOPED_TRACE(head_dim);
    check_logits_per_row(GetParam().request, head_dim);
  }
}

// Whole numbers know no NaN: one in a query must reach its logits, and no other query's, all the same.
TEST_P(TileKernels, ANaNInAQueryReachesItsLogits) {
  const ScopedSimdTarget scope(GetParam().target);
  if (!make_tile_format(GetParam().request, Side::kKey, 64).ok()) return;
  const FilledTile keys(GetParam().request, Side::kKey, 64);
  const int rows = keys.format().tile_rows;
  std::vector<float> q = normals(3 * 64, 11);
  q[64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> storage = prepared(keys.format(), q, 3);
  std::vector<float> logits(static_cast<std::size_t>(3 * rows));
  keys.format().kernels.score(keys.format(),
                              {keys.tile(), 0, rows, storage.data() + 1, 3, logits.data(), static_cast<std::size_t>(rows)});
  for (int row = 0; row < rows; ++row) {
    ASSERT_FALSE(std::isnan(logits[static_cast<std::size_t>(row)]));
    ASSERT_TRUE(std::isnan(logits[static_cast<std::size_t>(rows + row)]));
    ASSERT_FALSE(std::isnan(logits[static_cast<std::size_t>(2 * rows + row)]));
  }
}

// T8: rows one by one, in pieces or at once give the same tile. And every instruction set gives the same tile.
TEST_P(TileKernels, EncodingDoesNotDependOnPiecesOrTarget) {
  for (const int head_dim : legal_head_dims(GetParam().request, Side::kKey)) {
    SCOPED_TRACE(head_dim);
    check_encoding(GetParam(), head_dim);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TileKernels, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace kvartet
