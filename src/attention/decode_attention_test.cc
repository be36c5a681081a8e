// Decode attention against double arithmetic on the decoded rows (T4), grouped heads (T10), thread counts (T12).
#include "attention/decode_attention.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

// Of float arithmetic with logits up to about 10; T4 allows 1e-5.
constexpr double kTolerance = 2e-6;

const FormatRequest kF32{.name = "f32"};
const FormatRequest kF16{.name = "f16"};
const FormatRequest kQ8{.name = "q8_0"};
const FormatRequest kKivi4{.name = "kivi", .bits = 4, .group = 32};

struct Outcome {
  std::vector<float> out;
  std::vector<float> weights;
};

// Runs `queries` queries over each head, in one call.
Outcome attend(DecodeAttention* attention, std::span<const EncodedHead* const> heads, int queries, const std::vector<float>& q,
               int begin = 0) {
  const std::size_t head_dim = heads[0]->keys().cols;
  Outcome result;
  std::size_t weights = 0;
  for (const EncodedHead* head : heads) weights += uz(queries) * head->keys().rows;
  result.out.resize(heads.size() * uz(queries) * head_dim);
  result.weights.resize(weights);
  float* at = result.weights.data();
  std::vector<AttentionTask> tasks;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    AttentionTask task;
    task.view = heads[h]->view();
    task.view.begin = begin;
    task.q = q.data() + h * uz(queries) * head_dim;
    task.q_stride = task.out_stride = head_dim;
    task.queries = queries;
    task.head_dim = static_cast<int>(head_dim);
    task.out = result.out.data() + h * uz(queries) * head_dim;
    task.weights = {at, uz(queries), heads[h]->keys().rows};
    at += uz(queries) * heads[h]->keys().rows;
    tasks.push_back(task);
  }
  attention->run(tasks);
  return result;
}

struct Errors {
  double out = 0;
  double weights = 0;
};

Errors errors_of(const Outcome& got, const EncodedHead& head, int queries, const std::vector<float>& q) {
  const std::size_t head_dim = head.keys().cols;
  const std::size_t rows = head.keys().rows;
  RelativeError out;
  RelativeError weights;
  for (std::size_t i = 0; i < uz(queries); ++i) {
    const ReferenceAttention exact(q.data() + i * head_dim, head.keys(), head.values(), 0, rows);
    out.add(got.out.data() + i * head_dim, exact.out);
    weights.add(got.weights.data() + i * rows, exact.weights);
  }
  return {out.value(), weights.value()};
}

class DecodeAttentionOnTarget : public testing::TestWithParam<SimdTarget> {
 protected:
  ScopedSimdTarget scope_{GetParam()};
  DecodeAttention attention_{1};

  Errors errors(std::span<const Stretch> stretches, int head_dim, int queries, double q_scale = 2.0) {
    const EncodedHead head(stretches, head_dim, 5);
    const EncodedHead* const heads[] = {&head};
    const std::vector<float> q = random_rows(uz(queries * head_dim), q_scale, 6);
    return errors_of(attend(&attention_, heads, queries, q), head, queries, q);
  }
};

INSTANTIATE_TEST_SUITE_P(All, DecodeAttentionOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DecodeAttentionOnTarget, T4RowCountsAroundEveryBorder) {
  for (const int rows : {1, 2, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2500}) {
    SCOPED_TRACE(rows);
    const Stretch stretch[] = {{kF32, kF32, rows}};
    const Errors e = errors(stretch, 64, 3);
    EXPECT_LT(e.out, kTolerance);
    EXPECT_LT(e.weights, kTolerance);
  }
}

TEST_P(DecodeAttentionOnTarget, T4HeadDimensionsAndT10GroupSizes) {
  for (const int head_dim : {16, 64, 80, 96, 128}) {
    for (const int queries : {1, 2, 3, 4, 8, 16, 17, 40}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " queries " << queries);
      const Stretch stretch[] = {{kF16, kF16, 300}};
      const Errors e = errors(stretch, head_dim, queries);
      EXPECT_LT(e.out, kTolerance);
      EXPECT_LT(e.weights, kTolerance);
    }
  }
}

// Keys and values cut at different rows, as KIVI does (compression.md 2.3), beside other formats.
TEST_P(DecodeAttentionOnTarget, T4FormatsMixedInOneHead) {
  const Stretch stretches[] = {
      {kKivi4, kKivi4, 128 * 3}, {kF16, kKivi4, 100}, {kQ8, kF32, 77}, {kF16, kF16, 700}, {kF32, kQ8, 1}};
  EXPECT_LT(errors(stretches, 64, 3).out, coded_tolerance(GetParam()));
  EXPECT_LT(errors(stretches, 64, 3).weights, coded_tolerance(GetParam()));
  EXPECT_LT(errors(stretches, 64, 24, 6.0).out, coded_tolerance(GetParam()));
}

// A view of a sliding window begins anywhere: in the middle of a block, a tile, a group.
TEST_P(DecodeAttentionOnTarget, ViewsThatBeginInTheMiddle) {
  const Stretch stretches[] = {{kKivi4, kKivi4, 128 * 9}, {kF16, kKivi4, 100}, {kQ8, kF32, 77}, {kF16, kF16, 300}};
  const EncodedHead head(stretches, 64, 5);
  const EncodedHead* const heads[] = {&head};
  const std::vector<float> q = random_rows(3 * 64, 2.0, 6);
  const std::size_t rows = head.keys().rows;
  for (const int begin : {1, 31, 128, 129, 1000, 1024, 1151, 1252, 1300, 1628}) {
    SCOPED_TRACE(begin);
    const Outcome got = attend(&attention_, heads, 3, q, begin);
    RelativeError out;
    RelativeError weights;
    for (std::size_t i = 0; i < 3; ++i) {
      const ReferenceAttention exact(q.data() + i * 64, head.keys(), head.values(), uz(begin), rows);
      out.add(got.out.data() + i * 64, exact.out);
      weights.add(got.weights.data() + i * rows + begin, exact.weights);
      for (std::size_t row = 0; row < uz(begin); ++row) ASSERT_EQ(got.weights[i * rows + row], 0);
    }
    EXPECT_LT(out.value(), coded_tolerance(GetParam()));
    EXPECT_LT(weights.value(), coded_tolerance(GetParam()));
    DecodeAttention many(7);
    EXPECT_EQ(attend(&many, heads, 3, q, begin).out, got.out);
  }
}

// Rotated rows, and queries that get longer when they are prepared (a sketch beside the rotated query), in several chunks.
TEST_P(DecodeAttentionOnTarget, T4QuantizedFormatsBesideF16) {
  const FormatRequest turbo{.name = "turboquant", .bits = 4, .rotation = Rotation::kHadamard, .seed = 1};
  FormatRequest prod = turbo;
  prod.residual_signs = true;
  const FormatRequest qjl{.name = "qjl", .seed = 1};
  const FormatRequest q4{.name = "q4_0", .rotation = Rotation::kHadamard};
  const FormatRequest polar{.name = "polar-angle", .rotation = Rotation::kDense, .seed = 3};
  const Stretch stretches[] = {
      {prod, turbo, 300}, {qjl, q4, 150}, {kF16, kF16, 100}, {turbo, polar, 600}, {polar, {.name = "fp8"}, 200}};
  for (const int queries : {3, 24, 40}) {
    EXPECT_LT(errors(stretches, 64, queries).out, coded_tolerance(GetParam())) << queries;
    EXPECT_LT(errors(stretches, 64, queries).weights, coded_tolerance(GetParam())) << queries;
  }
}

// Flat attention, whose output averages to almost nothing, and peaked attention, where a logit's error is a weight's.
TEST_P(DecodeAttentionOnTarget, CodedRowsAreNearExact) {
  const auto turboquant = [](int bits) {
    return FormatRequest{.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .seed = 1};
  };
  for (const FormatRequest& request : std::vector<FormatRequest>{kQ8,
                                                                 kKivi4,
                                                                 {"kivi", 2, 32},
                                                                 {"kivi", 3, 64},
                                                                 {"kivi", 8, 32},
                                                                 {"q5_0"},
                                                                 {"q4_1"},
                                                                 turboquant(4),
                                                                 turboquant(3),
                                                                 turboquant(2),
                                                                 turboquant(1)}) {
    for (const double logit : {1.0, 4.0}) {
      for (const auto& [head_dim, queries] : {std::pair{64, 3}, {64, 4}, {128, 4}, {128, 1}}) {
        const Stretch stretch[] = {{request, request, 128 * 19 + 64}};
        const Errors e = errors(stretch, head_dim, queries, logit);
        EXPECT_LT(e.out, coded_tolerance(GetParam()))
            << request.name << request.bits << " logits " << logit << " head_dim " << head_dim;
      }
    }
  }
}

// compression.md 12.4: keys without their mean give the same attention, and a partial result whose maximum has the missing
// q . mean back, so that it merges with rows that have theirs.
TEST_P(DecodeAttentionOnTarget, Section124KeyMeanReturnsInPartials) {
  const Stretch stretch[] = {{kF32, kF32, 1500}};
  const EncodedHead head(stretch, 64, 5);
  const std::vector<float> mean = random_rows(64, 3.0, 8);
  const std::vector<float> q = random_rows(3 * 64, 1.0, 6);
  std::vector<float> max(6);
  std::vector<float> sum(6);
  std::vector<float> acc(6 * 64);
  std::vector<AttentionTask> tasks(2);
  for (std::size_t i = 0; i < 2; ++i) {
    tasks[i].view = head.view();
    tasks[i].q = q.data();
    tasks[i].q_stride = 64;
    tasks[i].queries = 3;
    tasks[i].head_dim = 64;
    tasks[i].partial = {max.data() + 3 * i, sum.data() + 3 * i, acc.data() + 192 * i, 3, 64};
  }
  tasks[1].view.key_mean = mean.data();
  attention_.run(tasks);
  for (std::size_t k = 0; k < 3; ++k) {
    double missing = 0;
    for (std::size_t c = 0; c < 64; ++c) missing += static_cast<double>(q[k * 64 + c]) * static_cast<double>(mean[c]) / 8;
    EXPECT_NEAR(max[3 + k] - max[k], missing, 1e-4);
    EXPECT_EQ(sum[3 + k], sum[k]);
    for (std::size_t c = 0; c < 64; ++c) ASSERT_EQ(acc[192 + k * 64 + c], acc[k * 64 + c]);
  }
}

TEST_P(DecodeAttentionOnTarget, VeryUnequalLogits) {
  const Stretch stretch[] = {{kF32, kF32, 1500}};
  // Logits of several hundred: their own rounding, 2^-24 of that, is the weights' relative error.
  EXPECT_LT(errors(stretch, 64, 4, 100.0).out, 5e-5);
}

// A format whose keys and values are stored negated in every second channel: both sides must be undone by
// prepare_queries and finish_output, each exactly once, and only for the rows of this format.
void flip(float* rows, int count, int head_dim) {
  for (int i = 0; i < count * head_dim; i += 2) rows[i] = -rows[i];
}
void prepare_flipped(const TileFormat& format, float* q, int queries) { flip(q, queries, format.head_dim); }
void finish_flipped(const TileFormat& format, float* out, int queries) { flip(out, queries, format.head_dim); }
Status encode_flipped(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  std::vector<float> copy(rows.data, rows.data + rows.rows * rows.cols);
  flip(copy.data(), static_cast<int>(rows.rows), format.head_dim);
  TileFormat plain = *make_tile_format(kF32, format.side, format.head_dim);
  return plain.kernels.encode(plain, tile, begin, {copy.data(), rows.rows, rows.cols});
}
void decode_flipped(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  const TileFormat plain = *make_tile_format(kF32, format.side, format.head_dim);
  plain.kernels.decode(plain, tile, begin, end, out);
  flip(out.data, end - begin, format.head_dim);
}

TileFormat flipped_format(Side side) {
  TileFormat format = *make_tile_format(kF32, side, 64);
  format.name = "flipped";
  format.kernels.encode = encode_flipped;
  format.kernels.decode = decode_flipped;
  if (side == Side::kKey) format.kernels.prepare_queries = prepare_flipped;
  if (side == Side::kValue) format.kernels.finish_output = finish_flipped;
  return format;
}

TEST_P(DecodeAttentionOnTarget, RotatedFormatsArePreparedAndFinished) {
  const EncodedHead flipped(flipped_format(Side::kKey), flipped_format(Side::kValue), 1300, 5);
  const EncodedHead plain(std::vector<Stretch>{{kF32, kF32, 1300}}, 64, 5);
  ASSERT_EQ(flipped.keys().row(7)[3], plain.keys().row(7)[3]);
  for (const int queries : {3, 20}) {
    const std::vector<float> q = random_rows(uz(queries) * 64, 2.0, 6);
    const EncodedHead* const heads[] = {&flipped};
    const Outcome got = attend(&attention_, heads, queries, q);
    EXPECT_LT(errors_of(got, plain, queries, q).out, kTolerance);
  }
}

TEST_P(DecodeAttentionOnTarget, T10EqualQueryHeadsGiveEqualResults) {
  const Stretch stretch[] = {{kF16, kF16, 1100}};
  const EncodedHead head(stretch, 64, 5);
  const EncodedHead* const heads[] = {&head};
  const std::vector<float> one = random_rows(64, 2.0, 6);
  const std::vector<float> alone = attend(&attention_, heads, 1, one).out;
  for (const int group : {2, 3, 4, 8, 20}) {
    std::vector<float> q;
    for (int i = 0; i < group; ++i) q.insert(q.end(), one.begin(), one.end());
    const std::vector<float> together = attend(&attention_, heads, group, q).out;
    for (std::size_t i = 0; i < together.size(); ++i) ASSERT_EQ(together[i], alone[i % 64]) << "group " << group;
  }
}

TEST(DecodeAttention, T12SameBitsForEveryThreadCount) {
  const Stretch stretches[] = {{kKivi4, kKivi4, 128 * 20}, {kF16, kF16, 500}};
  const EncodedHead long_head(stretches, 64, 5);
  const EncodedHead short_head{std::span(stretches).subspan(1), 64, 8};
  const EncodedHead* const heads[] = {&long_head, &short_head, &long_head};
  const std::vector<float> q = random_rows(3 * 3 * 64, 2.0, 6);
  DecodeAttention single(1);
  const Outcome want = attend(&single, heads, 3, q);
  for (const int threads : {2, 3, 7, 16}) {
    DecodeAttention attention(threads);
    for (int again = 0; again < 3; ++again) {
      const Outcome got = attend(&attention, heads, 3, q);
      EXPECT_EQ(want.out, got.out) << threads << " threads";
      EXPECT_EQ(want.weights, got.weights) << threads << " threads";
    }
  }
}

// A batch of sequences gives each what it gets alone.
TEST(DecodeAttention, TasksDoNotDisturbEachOther) {
  const EncodedHead a(std::vector<Stretch>{{kF16, kF16, 1500}}, 64, 1);
  const EncodedHead b(std::vector<Stretch>{{kKivi4, kKivi4, 256}}, 64, 2);
  const std::vector<float> q = random_rows(2 * 4 * 64, 2.0, 6);
  DecodeAttention attention(2);
  const EncodedHead* const both[] = {&a, &b};
  const std::vector<float> together = attend(&attention, both, 4, q).out;
  const std::vector<float> alone = attend(&attention, std::span(both).subspan(1), 4, {q.begin() + 4 * 64, q.end()}).out;
  EXPECT_EQ(std::vector<float>(together.begin() + 4 * 64, together.end()), alone);
}

TEST(DecodeAttention, EmptyViewGivesZerosOrAnEmptyPartial) {
  const std::vector<float> q = random_rows(2 * 16, 1.0, 1);
  std::vector<float> out(2 * 16, 7.0F);
  AttentionTask task;
  task.q = q.data();
  task.q_stride = task.out_stride = 16;
  task.queries = 2;
  task.head_dim = 16;
  task.out = out.data();
  DecodeAttention attention(2);
  attention.run({&task, 1});
  EXPECT_EQ(out, std::vector<float>(2 * 16, 0.0F));

  std::vector<float> max(2, 1.0F);
  std::vector<float> sum(2, 1.0F);
  std::vector<float> acc(2 * 16, 1.0F);
  task.partial = {max.data(), sum.data(), acc.data(), 2, 16};
  attention.run({&task, 1});
  EXPECT_EQ(max[1], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(sum[1], 0.0F);
  EXPECT_EQ(acc, std::vector<float>(2 * 16, 0.0F));
  attention.run({});
}

TEST(DecodeAttention, PartialsOfTwoHalvesMergeToTheWhole) {
  const EncodedHead whole(std::vector<Stretch>{{kF32, kF32, 128}, {kF32, kF32, 72}}, 32, 3);
  const std::vector<float> q = random_rows(32, 2.0, 6);
  std::vector<float> numbers(4 + 64);
  std::vector<SoftmaxPartial> parts;
  std::vector<AttentionTask> tasks(2);
  std::vector<TilePiece> pieces[2][2];
  for (std::size_t half = 0; half < 2; ++half) {
    const int begin = half == 0 ? 0 : 128;
    const int end = half == 0 ? 128 : 200;
    const auto cut = [&](std::span<const TilePiece> from, std::vector<TilePiece>* to) {
      for (TilePiece piece : from) {
        if (piece.row < begin || piece.row >= end) continue;
        piece.row -= begin;
        to->push_back(piece);
      }
    };
    cut(whole.view().keys, &pieces[half][0]);
    cut(whole.view().values, &pieces[half][1]);
    tasks[half].view = {pieces[half][0], pieces[half][1], end - begin};
    tasks[half].q = q.data();
    tasks[half].q_stride = tasks[half].out_stride = 32;
    tasks[half].queries = 1;
    tasks[half].head_dim = 32;
    tasks[half].partial = {&numbers[half], &numbers[2 + half], &numbers[4 + 32 * half], 1, 32};
  }
  DecodeAttention attention(1);
  attention.run(tasks);
  merge_partial(tasks[0].partial, tasks[1].partial);
  std::vector<float> out(32);
  finish_partial(tasks[0].partial, {out.data(), 1, 32});
  RelativeError error;
  error.add(out.data(), ReferenceAttention(q.data(), whole.keys(), whole.values(), 0, 200).out);
  EXPECT_LT(error.value(), 1e-6);
}

}  // namespace
}  // namespace kvartet
