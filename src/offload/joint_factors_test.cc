// LRQK's factors against their definition with explicit matrices (offloading.md 6).
#include "offload/joint_factors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/normals_fixture.h"

namespace kvartet {
namespace {

using Rows = std::vector<std::vector<double>>;

Rows rows_of(const std::vector<float>& x, std::size_t cols) {
  Rows rows;
  for (std::size_t i = 0; i < x.size(); i += cols)
    rows.emplace_back(x.begin() + static_cast<std::ptrdiff_t>(i), x.begin() + static_cast<std::ptrdiff_t>(i + cols));
  return rows;
}

Rows rows_of(const std::vector<double>& x, std::size_t cols) {
  Rows rows;
  for (std::size_t i = 0; i < x.size(); i += cols)
    rows.emplace_back(x.begin() + static_cast<std::ptrdiff_t>(i), x.begin() + static_cast<std::ptrdiff_t>(i + cols));
  return rows;
}

Rows transposed(const Rows& a) {
  Rows out(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[0].size(); ++j) out[j][i] = a[i][j];
  return out;
}

Rows times(const Rows& a, const Rows& b) {
  Rows out(a.size(), std::vector<double>(b[0].size(), 0.0));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < b[0].size(); ++j)
      for (std::size_t k = 0; k < b.size(); ++k) out[i][j] += a[i][k] * b[k][j];
  return out;
}

Rows plus(const Rows& a, const Rows& b, double weight) {
  Rows out = a;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[0].size(); ++j) out[i][j] += weight * b[i][j];
  return out;
}

// Gauss and Jordan, with the largest pivot.
Rows inverse(Rows a) {
  const std::size_t n = a.size();
  Rows out(n, std::vector<double>(n, 0.0));
  for (std::size_t i = 0; i < n; ++i) out[i][i] = 1;
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t best = i;
    for (std::size_t k = i; k < n; ++k)
      if (std::abs(a[k][i]) > std::abs(a[best][i])) best = k;
    std::swap(a[i], a[best]);
    std::swap(out[i], out[best]);
    const double pivot = a[i][i];
    for (std::size_t j = 0; j < n; ++j) {
      a[i][j] /= pivot;
      out[i][j] /= pivot;
    }
    for (std::size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = a[k][i];
      for (std::size_t j = 0; j < n; ++j) {
        a[k][j] -= factor * a[i][j];
        out[k][j] -= factor * out[i][j];
      }
    }
  }
  return out;
}

double square(const Rows& a) {
  double sum = 0;
  for (const std::vector<double>& row : a)
    for (const double x : row) sum += x * x;
  return sum;
}

// The method as its closed forms say it.
struct Factored {
  Rows a_q, a_k, b_q, b_k;
};

Factored by_definition(const Rows& q, const Rows& k, const std::vector<std::size_t>& columns, int sweeps, double lambda_q,
                       double lambda_k) {
  Factored f;
  const auto pick = [&](const Rows& x) {
    Rows out;
    for (const std::vector<double>& row : x) {
      out.emplace_back();
      for (const std::size_t c : columns) out.back().push_back(row[c]);
    }
    return out;
  };
  f.a_q = pick(q);
  f.a_k = pick(k);
  for (int s = 0; s < sweeps; ++s) {
    f.b_q = times(inverse(times(transposed(f.a_q), f.a_q)), times(transposed(f.a_q), q));
    f.b_k = times(inverse(times(transposed(f.a_k), f.a_k)), times(transposed(f.a_k), k));
    f.a_q = times(times(q, plus(times(transposed(k), f.a_k), transposed(f.b_q), lambda_q)),
                  inverse(plus(times(transposed(f.a_k), f.a_k), times(f.b_q, transposed(f.b_q)), lambda_q)));
    f.a_k = times(times(k, plus(times(transposed(q), f.a_q), transposed(f.b_k), lambda_k)),
                  inverse(plus(times(transposed(f.a_q), f.a_q), times(f.b_k, transposed(f.b_k)), lambda_k)));
  }
  return f;
}

double objective(const Rows& q, const Rows& k, const Factored& f) {
  const Rows logits = plus(times(q, transposed(k)), times(f.a_q, transposed(f.a_k)), -1);
  return square(logits) + square(plus(q, times(f.a_q, f.b_q), -1)) + square(plus(k, times(f.a_k, f.b_k), -1));
}

constexpr std::size_t kDim = 8;

void expect_near(const Rows& a, const Rows& b, double relative) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_LT(std::sqrt(square(plus(a, b, -1))), relative * std::sqrt(square(b)));
}

TEST(JointFactors, EqualTheClosedForms) {
  // Columns 1, 4 and 6 are the largest by far, so that the start is known.
  std::vector<float> keys = normals(60 * kDim, 1);
  const std::vector<float> queries = normals(14 * kDim, 2);
  for (std::size_t t = 0; t < 60; ++t)
    for (const std::size_t c : {1U, 4U, 6U}) keys[t * kDim + c] *= 5;
  const Rows q = rows_of(queries, kDim);
  const Rows k = rows_of(keys, kDim);
  for (const auto& [lambda_q, lambda_k] : {std::pair{1.0, 1.0}, {0.3, 4.0}}) {
    for (const int sweeps : {1, 2, 5}) {
      const JointFactors fitted =
          fit_joint_factors({keys.data(), 60, kDim}, {queries.data(), 14, kDim},
                            {.factors = 3, .sweeps = sweeps, .query_weight = lambda_q, .key_weight = lambda_k});
      const Factored expected = by_definition(q, k, {1, 4, 6}, sweeps, lambda_q, lambda_k);
      expect_near(times(q, rows_of(fitted.m_q, 3)), expected.a_q, 1e-6);
      expect_near(times(k, rows_of(fitted.m_k, 3)), expected.a_k, 1e-6);
      expect_near(rows_of(fitted.b_q, kDim), expected.b_q, 1e-6);
      expect_near(rows_of(fitted.b_k, kDim), expected.b_k, 1e-6);
      // A new query: the row of A_Q that minimizes the objective given all keys.
      const Rows fresh = rows_of(normals(kDim, 3), kDim);
      const Rows solved = times(
          times(fresh, plus(times(transposed(k), expected.a_k), transposed(expected.b_q), lambda_q)),
          inverse(plus(times(transposed(expected.a_k), expected.a_k), times(expected.b_q, transposed(expected.b_q)), lambda_q)));
      expect_near(times(fresh, rows_of(fitted.new_query, 3)), solved, 1e-6);
    }
  }
}

TEST(JointFactors, EverySweepLowersTheObjective) {
  const std::vector<float> keys = normals(50 * kDim, 5);
  const std::vector<float> queries = normals(20 * kDim, 6);
  const Rows q = rows_of(queries, kDim);
  const Rows k = rows_of(keys, kDim);
  double last = 1e300;
  for (int sweeps = 1; sweeps <= 8; ++sweeps) {
    const JointFactors fitted =
        fit_joint_factors({keys.data(), 50, kDim}, {queries.data(), 20, kDim}, {.factors = 4, .sweeps = sweeps});
    const Factored now = {times(q, rows_of(fitted.m_q, 4)), times(k, rows_of(fitted.m_k, 4)), rows_of(fitted.b_q, kDim),
                          rows_of(fitted.b_k, kDim)};
    const double value = objective(q, k, now);
    EXPECT_LE(value, last * (1 + 1e-9)) << sweeps;
    last = value;
  }
}

// One channel: A_Q = Q and A_K = K stay as they are whatever the weights, since B = 1.
TEST(JointFactors, ScalarCase) {
  const std::vector<float> keys = {2, -3, 0.5F};
  const std::vector<float> queries = {4, 1};
  const JointFactors fitted =
      fit_joint_factors({keys.data(), 3, 1}, {queries.data(), 2, 1}, {.factors = 1, .sweeps = 3, .query_weight = 7});
  EXPECT_NEAR(fitted.m_q[0], 1, 1e-8);
  EXPECT_NEAR(fitted.m_k[0], 1, 1e-8);
  EXPECT_NEAR(fitted.b_q[0], 1, 1e-8);
  EXPECT_NEAR(fitted.new_query[0], 1, 1e-8);
}

// As many factors as channels: nothing is lost, logits are exact, also of queries that were not seen.
TEST(JointFactors, AllFactorsGiveExactLogits) {
  const std::vector<float> keys = normals(40 * kDim, 7);
  const std::vector<float> queries = normals(30 * kDim, 8);
  const KeyProjection made =
      joint_factors({keys.data(), 40, kDim}, {queries.data(), 30, kDim}, {.factors = static_cast<int>(kDim)});
  const std::vector<float> fresh = normals(kDim, 9);
  for (std::size_t t = 0; t < 40; ++t) {
    double exact = 0;
    for (std::size_t c = 0; c < kDim; ++c) exact += static_cast<double>(fresh[c]) * keys[t * kDim + c];
    double scored = 0;
    for (std::size_t i = 0; i < kDim; ++i) {
      double feature = 0;
      for (std::size_t c = 0; c < kDim; ++c) feature += static_cast<double>(made.query[i * kDim + c]) * fresh[c];
      scored += feature * made.keys[t * kDim + i];
    }
    EXPECT_NEAR(scored, exact, 1e-4);
  }
}

TEST(JointFactors, FewerQueriesThanFactorsAndEqualKeysStayFinite) {
  const std::vector<float> one = normals(kDim, 10);
  std::vector<float> keys;
  for (int i = 0; i < 9; ++i) keys.insert(keys.end(), one.begin(), one.end());
  for (const std::size_t queries : {1U, 2U, 5U}) {
    const std::vector<float> q = normals(queries * kDim, 11);
    for (const std::vector<float>& k : {keys, std::vector<float>(9 * kDim, 0.0F)}) {
      const KeyProjection made = joint_factors({k.data(), 9, kDim}, {q.data(), queries, kDim}, {.factors = 6});
      for (const float x : made.keys) EXPECT_TRUE(std::isfinite(x));
      for (const float x : made.query) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// As many factors as channels give the logits of a query that was seen exactly, also where the matrices have no inverse: few
// keys, one query, all alike, zeros.
TEST(JointFactors, MatricesWithoutAnInverse) {
  constexpr std::size_t kDim = 32;
  for (const std::size_t keys : {std::size_t{1}, std::size_t{2}, std::size_t{5}, std::size_t{200}}) {
    for (const std::size_t queries : {std::size_t{1}, std::size_t{5}, std::size_t{40}}) {
      for (const char* kind : {"normal", "alike", "zero"}) {
        std::vector<float> k = normals(keys * kDim, 1);
        std::vector<float> q = normals(queries * kDim, 2);
        if (kind == std::string("alike")) {
          for (std::size_t i = 0; i < k.size(); ++i) k[i] = k[i % kDim];
          for (std::size_t i = 0; i < q.size(); ++i) q[i] = q[i % kDim];
        }
        if (kind == std::string("zero")) std::fill(k.begin(), k.end(), 0.0F);
        const KeyProjection made = joint_factors({k.data(), keys, kDim}, {q.data(), queries, kDim}, {.factors = kDim});
        for (std::size_t t = 0; t < keys; ++t) {
          double logit = 0;
          double exact = 0;
          for (std::size_t i = 0; i < kDim; ++i) {
            double feature = 0;
            for (std::size_t c = 0; c < kDim; ++c) feature += static_cast<double>(made.query[i * kDim + c]) * q[c];
            logit += feature * made.keys[t * kDim + i];
            exact += static_cast<double>(q[i]) * k[t * kDim + i];
          }
          EXPECT_NEAR(logit, exact, 2e-3) << kind << ": " << keys << " keys, " << queries << " queries";
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvartet
