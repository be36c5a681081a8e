#include "bench/fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/runner/measure_sample.h"
#include "engine/log_softmax.h"

namespace kvartet {
namespace {

std::size_t most_likely(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const double p_norm = log_sum_exp(p_logits);
  const double q_norm = log_sum_exp(q_logits);
  double sum = 0;
  for (std::size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = p_logits[i] - p_norm;
    sum += std::exp(log_p) * (log_p - (q_logits[i] - q_norm));
  }
  return std::max(0.0, sum);  // rounding can leave -1e-17
}

Status check_request(const FidelityRequest& request, std::size_t text_tokens, const ModelShape& shape) {
  if (request.tokens < 1 || request.context < request.tokens + 2) {
    return usage_error(fmt::format("A context of {} tokens leaves no prefix before {} compared ones; give a larger --context or fewer --tokens.",
                                   request.context, request.tokens));
  }
  if (request.context > shape.context) {
    return exhausted(fmt::format("A context of {} tokens was asked for, but the model was trained for {}; give a smaller --context.",
                                 request.context, shape.context));
  }
  if (text_tokens < static_cast<std::size_t>(request.context)) {
    return bad_input(fmt::format("The text has {} tokens, fewer than the context of {}; give a longer text or a smaller --context.",
                                 text_tokens, request.context));
  }
  return {};
}

}  // namespace

void LogitComparison::add(std::span<const float> reference, std::span<const float> logits, int target) {
  KV_CHECK(reference.size() == logits.size() && target >= 0 && static_cast<std::size_t>(target) < logits.size());
  kl_.push_back(kl_divergence(reference, logits));
  agreements_ += most_likely(reference) == most_likely(logits) ? 1 : 0;
  log_likelihood_ += log_probability(logits, target);
  reference_log_likelihood_ += log_probability(reference, target);
}

double LogitComparison::kl_mean() const {
  double sum = 0;
  for (double x : kl_) sum += x;
  return kl_.empty() ? 0 : sum / static_cast<double>(kl_.size());
}

double LogitComparison::kl_p99() const {
  if (kl_.empty()) return 0;
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t rank = (99 * sorted.size() + 99) / 100;  // ceil(0.99 n), at least 1
  return sorted[rank - 1];
}

double LogitComparison::top1_agreement() const { return kl_.empty() ? 0 : static_cast<double>(agreements_) / static_cast<double>(kl_.size()); }
double LogitComparison::perplexity() const { return kl_.empty() ? 0 : std::exp(-log_likelihood_ / static_cast<double>(kl_.size())); }
double LogitComparison::reference_perplexity() const {
  return kl_.empty() ? 0 : std::exp(-reference_log_likelihood_ / static_cast<double>(kl_.size()));
}

Result<FidelityReport> measure_fidelity(Engine& engine, std::span<const Token> text, const FidelityRequest& request,
                                        std::span<const CacheSpec> specs, const std::function<void(double share)>& progress) {
  KV_TRY(check_request(request, text.size(), engine.shape()));
  KV_ASSIGN(const CacheSpec reference, parse_spec("full"));
  std::vector<CacheSpec> all = {reference};
  for (const CacheSpec& spec : specs) {
    if (spec.canonical != reference.canonical) all.push_back(spec);
  }

  const std::size_t tokens = static_cast<std::size_t>(request.tokens);
  // Compared position i is predicted after text[prefix + i]; the last target is the last token of the context.
  const std::size_t prefix = static_cast<std::size_t>(request.context) - tokens - 1;
  KV_ASSIGN(std::vector<Sequence> sequences, engine.prefill(text.first(prefix), all, [&](double share) {
    if (progress) progress(0.5 * share);
  }));
  std::vector<Sequence*> batch;
  for (Sequence& s : sequences) batch.push_back(&s);
  // Comparison 0 is the reference with itself, which gives its perplexity and costs little.
  std::vector<LogitComparison> comparisons(all.size());
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::vector<Token> forced(all.size(), text[prefix + i]);
    KV_TRY(engine.decode(batch, forced));
    for (std::size_t c = 0; c < all.size(); ++c) comparisons[c].add(sequences[0].logits, sequences[c].logits, text[prefix + i + 1]);
    if (progress) progress(0.5 + 0.5 * static_cast<double>(i + 1) / static_cast<double>(tokens));
  }

  FidelityReport report = {.reference_spec = reference.canonical,
                           .prefix_tokens = static_cast<int>(prefix),
                           .tokens = request.tokens,
                           .reference_perplexity = comparisons[0].perplexity(),
                           .rows = {}};
  for (std::size_t c = 1; c < all.size(); ++c) {
    const LogitComparison& comparison = comparisons[c];
    if (!std::isfinite(comparison.perplexity()) || !std::isfinite(comparison.reference_perplexity())) {
      return bad_input(fmt::format("the perplexity is {} through {} and {} through {}, not a number; check the model file", comparison.perplexity(),
                                   all[c].canonical, comparison.reference_perplexity(), reference.canonical));
    }
    const SequenceCache& cache = sequences[c].cache;
    const double allocated = static_cast<double>(cache.bytes().allocated);
    const double f16 = static_cast<double>(f16_bytes(engine.shape(), cache.next_position()));
    report.rows.push_back({.spec = all[c].canonical,
                           .tokens = comparison.tokens(),
                           .kl_mean = comparison.kl_mean(),
                           .kl_p99 = comparison.kl_p99(),
                           .top1_agreement = comparison.top1_agreement(),
                           .perplexity = comparison.perplexity(),
                           .compression_ratio = allocated > 0 ? f16 / allocated : 0,
                           .acted = cache.acted()});
  }
  return report;
}

nlohmann::json fidelity_json(const FidelityReport& report) {
  nlohmann::json out;
  out["reference"] = {{"spec", report.reference_spec},
                      {"tokens", report.tokens},
                      {"prefix_tokens", report.prefix_tokens},
                      {"perplexity", report.reference_perplexity}};
  out["rows"] = nlohmann::json::array();
  for (const FidelityRow& r : report.rows) {
    out["rows"].push_back({{"spec", r.spec},
                           {"tokens", r.tokens},
                           {"kl_mean", r.kl_mean},
                           {"kl_p99", r.kl_p99},
                           {"top1_agreement", r.top1_agreement},
                           {"perplexity", r.perplexity},
                           {"compression_ratio", r.compression_ratio},
                           {"acted", r.acted}});
  }
  return out;
}

std::string fidelity_table(const FidelityReport& report) {
  std::size_t width = report.reference_spec.size();
  for (const FidelityRow& r : report.rows) width = std::max(width, r.spec.size());
  std::string out = fmt::format("{} tokens after a prefix of {}; KL in nats, from {}\n\n", report.tokens, report.prefix_tokens,
                                report.reference_spec);
  out += fmt::format("{:<{}} {:>9} {:>9} {:>7} {:>10} {:>6}\n", "cache", width, "KL mean", "KL p99", "top-1", "perplexity", "ratio");
  out += fmt::format("{:<{}} {:>9} {:>9} {:>7} {:>10.3f} {:>6}\n", report.reference_spec, width, "-", "-", "-", report.reference_perplexity, "-");
  for (const FidelityRow& r : report.rows) {
    out += fmt::format("{:<{}} {:>9.2e} {:>9.2e} {:>6.1f}% {:>10.3f} {:>6.2f}\n", r.spec, width, r.kl_mean, r.kl_p99, 100 * r.top1_agreement,
                       r.perplexity, r.compression_ratio);
  }
  return out;
}

}  // namespace kvartet
