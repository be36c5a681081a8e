#include "bench/fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/runner/measure_sample.h"
#include "core/counted.h"
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

// A prefix of one token, the compared ones, and the target of the last.
constexpr int kShortestContext = 3;

// Where a free run starts: the tokens that were read before it.
std::int64_t tokens_before_start(const FidelityRequest& request, int start) {
  const std::int64_t starts = std::min(request.free_starts, request.tokens);
  return request.context - std::int64_t{request.tokens} - 1 + start * std::int64_t{request.tokens} / starts;
}

Status no_prefix(const FidelityRequest& request) {
  const std::string fewer = request.tokens > 1 && request.context >= kShortestContext
                                ? fmt::format(" or --tokens {} at most", request.context - 2)
                                : "";
  return usage_error(fmt::format("A context of {} leaves no prefix before {}; give --context {} at least{}.",
                                 counted(request.context, "token"), counted(request.tokens, "compared one"),
                                 std::int64_t{request.tokens} + 2, fewer));
}

Status check_free_runs(const FidelityRequest& request, const ModelShape& shape) {
  if (request.free_starts < 1) return {};
  const int room = free_room(request, shape);
  if (request.free_tokens <= room) return {};
  return exhausted(
      fmt::format("Free runs of {} do not fit: behind the last of their starts the model's context of {} has room for {}; give "
                  "--free {} at most, or a smaller --context.",
                  counted(request.free_tokens, "token"), shape.context, room, room));
}

// Does one window fit the model?
Status check_window(const FidelityRequest& request, const ModelShape& shape) {
  if (request.tokens < 1 || request.context < std::int64_t{request.tokens} + 2) return no_prefix(request);
  if (request.context > shape.context) {
    return exhausted(
        fmt::format("A context of {} tokens was asked for, but the model was trained for {}; give a smaller --context.",
                    request.context, shape.context));
  }
  return check_free_runs(request, shape);
}

Status check_windows(const FidelityRequest& request, std::size_t text_tokens) {
  if (request.windows < 1)
    return usage_error(fmt::format("{} windows make no sense; give at least --windows 1.", request.windows));
  if (text_tokens / static_cast<std::size_t>(request.windows) >= static_cast<std::size_t>(request.context)) return {};
  if (request.windows == 1) {
    return bad_input(fmt::format("The text has {}, fewer than the context of {}; give a longer text or a smaller --context.",
                                 counted(text_tokens, "token"), request.context));
  }
  return bad_input(
      fmt::format("The text has {}, fewer than {} windows of {}; give a longer text, a smaller --context or fewer --windows.",
                  counted(text_tokens, "token"), request.windows, request.context));
}

// Window `index` of the text, which begins at a multiple of the text's share of one.
std::vector<Token> window_of(std::span<const Token> text, const FidelityRequest& request, int index,
                             const Vocabulary& vocabulary) {
  const auto context = static_cast<std::size_t>(request.context);
  const std::size_t begin = static_cast<std::size_t>(index) * (text.size() / static_cast<std::size_t>(request.windows));
  const std::span<const Token> window = text.subspan(begin, context);
  std::vector<Token> tokens;
  if (begin > 0 && vocabulary.adds_bos() && vocabulary.bos() >= 0) tokens.push_back(vocabulary.bos());
  tokens.insert(tokens.end(), window.begin(), window.end());
  tokens.resize(context);  // where a BOS came in front, the last token has no room
  return tokens;
}

// As if this text were asked for alone.
FidelityRequest request_of(const ComparedText& text, FidelityRequest request) {
  request.context = static_cast<int>(text.tokens.size());
  request.tokens = text.compared;
  request.windows = 1;
  return request;
}

// What all windows together say of one cache.
struct Gathered {
  LogitComparison logits;
  Divergence divergence;
  LayerErrors layers;
  double ratio = 0;
  bool acted = false;
};

std::vector<Sequence> forks_of(std::span<const Sequence> sequences) {
  std::vector<Sequence> forks;
  for (const Sequence& sequence : sequences) forks.push_back(sequence.fork());
  return forks;
}

// One window through all caches; [0] of specs and gathered is the reference.
class WindowComparison {
 public:
  WindowComparison(Engine& engine, const FidelityRequest& request, std::span<const CacheSpec> specs, std::span<Gathered> gathered,
                   const std::function<void(double share)>& progress)
      : engine_(engine), request_(request), specs_(specs), gathered_(gathered), progress_(progress) {}

  Status run(const ComparedText& text) {
    const std::span<const Token> window = text.tokens;
    const auto tokens = static_cast<std::size_t>(request_.tokens);
    // Compared position i is predicted after window[prefix + i]; the last target is the last token of the window.
    const std::size_t prefix = text.prefix().size();
    KV_ASSIGN(std::vector<Sequence> sequences, engine_.prefill(text.prefix(), specs_, [&](double share) { show(0.5 * share); }));
    KV_TRY(compare_layers(sequences, window.subspan(prefix)));
    std::vector<Sequence*> batch;
    for (Sequence& s : sequences) batch.push_back(&s);
    for (std::size_t i = 0; i < tokens; ++i) {
      if (starts_free_run(i)) KV_TRY(run_free(sequences));
      const std::vector<Token> forced(specs_.size(), window[prefix + i]);
      KV_TRY(engine_.decode(batch, forced));
      for (std::size_t c = 0; c < specs_.size(); ++c)
        gathered_[c].logits.add(sequences[0].logits, sequences[c].logits, window[prefix + i + 1]);
      show(0.5 + 0.5 * static_cast<double>(i + 1) / static_cast<double>(tokens));
    }
    for (std::size_t c = 0; c < specs_.size(); ++c) {
      const SequenceCache& cache = sequences[c].cache;
      const double allocated = static_cast<double>(cache.bytes().allocated);
      gathered_[c].ratio = allocated > 0 ? static_cast<double>(f16_bytes(engine_.shape(), cache.next_position())) / allocated : 0;
      gathered_[c].acted = gathered_[c].acted || cache.acted();
    }
    return {};
  }

 private:
  void show(double share) const {
    if (progress_) progress_(share);
  }
  // Evenly spread over the compared positions, the first among them.
  bool starts_free_run(std::size_t position) const {
    const auto starts = static_cast<std::size_t>(std::min(request_.free_starts, request_.tokens));
    const auto tokens = static_cast<std::size_t>(request_.tokens);
    for (std::size_t s = 0; s < starts; ++s) {
      if (position == s * tokens / starts) return true;
    }
    return false;
  }
  Status run_free(std::span<const Sequence> sequences) {
    const int limit = request_.free_tokens;
    std::vector<Sequence> forks = forks_of(sequences);
    KV_ASSIGN(const std::vector<int> same, tokens_until_divergence(engine_, forks, limit));
    for (std::size_t c = 1; c < specs_.size(); ++c) gathered_[c].divergence.add(same[c], limit);
    return {};
  }
  Status compare_layers(std::span<const Sequence> sequences, std::span<const Token> text) {
    const auto steps = static_cast<std::size_t>(std::min(request_.layer_steps, request_.tokens));
    if (steps == 0) return {};
    std::vector<Sequence> forks = forks_of(sequences);
    std::vector<LayerErrors> errors;
    for (std::size_t c = 1; c < specs_.size(); ++c) errors.push_back(std::move(gathered_[c].layers));
    const Status status = add_layer_errors(engine_, forks, text.first(steps), errors);
    for (std::size_t c = 1; c < specs_.size(); ++c) gathered_[c].layers = std::move(errors[c - 1]);
    return status;
  }

  Engine& engine_;
  FidelityRequest request_;
  std::span<const CacheSpec> specs_;
  std::span<Gathered> gathered_;
  const std::function<void(double share)>& progress_;
};

Result<FidelityRow> row_of(const CacheSpec& spec, Gathered gathered) {
  const LogitComparison& logits = gathered.logits;
  if (!std::isfinite(logits.perplexity()) || !std::isfinite(logits.reference_perplexity())) {
    return bad_input(fmt::format("the perplexity is {} through {} and {} through full, not a number; check the model file",
                                 logits.perplexity(), spec.canonical, logits.reference_perplexity()));
  }
  return FidelityRow{.spec = spec.canonical,
                     .tokens = logits.tokens(),
                     .kl_mean = logits.kl_mean(),
                     .kl_sd = logits.kl_sd(),
                     .kl_p95 = logits.kl_quantile(0.95),
                     .kl_p99 = logits.kl_quantile(0.99),
                     .kl_max = logits.kl_quantile(1),
                     .top1_agreement = logits.top1_agreement(),
                     .perplexity = logits.perplexity(),
                     .compression_ratio = gathered.ratio,
                     .acted = gathered.acted,
                     .divergence = gathered.divergence,
                     .layers = std::move(gathered.layers)};
}

nlohmann::json layers_json(const LayerErrors& layers) {
  nlohmann::json out = {{"key_error", nlohmann::json::array()},
                        {"value_error", nlohmann::json::array()},
                        {"output_error", nlohmann::json::array()}};
  for (const LayerError& layer : layers) {
    out["key_error"].push_back(layer.has_rows ? nlohmann::json(layer.keys.value()) : nlohmann::json());
    out["value_error"].push_back(layer.has_rows ? nlohmann::json(layer.values.value()) : nlohmann::json());
    out["output_error"].push_back(layer.outputs.value());
  }
  return out;
}

}  // namespace

int free_room(const FidelityRequest& request, const ModelShape& shape) {
  const int starts = std::min(request.free_starts, request.tokens);
  if (starts < 1) return shape.context;
  const std::int64_t room = shape.context - tokens_before_start(request, starts - 1);
  return static_cast<int>(std::clamp<std::int64_t>(room, 0, shape.context));
}

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

double LogitComparison::kl_sd() const {
  if (kl_.size() < 2) return 0;
  const double mean = kl_mean();
  double squares = 0;
  for (double x : kl_) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / static_cast<double>(kl_.size() - 1));
}

double LogitComparison::kl_quantile(double share) const {
  if (kl_.empty()) return 0;
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  const double exact = share * static_cast<double>(sorted.size());
  const auto rank = static_cast<std::size_t>(std::ceil(exact - 1e-9 * exact));  // 0.95 * 200 is 190, not a little more
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

double LogitComparison::top1_agreement() const {
  return kl_.empty() ? 0 : static_cast<double>(agreements_) / static_cast<double>(kl_.size());
}
double LogitComparison::perplexity() const {
  return kl_.empty() ? 0 : std::exp(-log_likelihood_ / static_cast<double>(kl_.size()));
}
double LogitComparison::reference_perplexity() const {
  return kl_.empty() ? 0 : std::exp(-reference_log_likelihood_ / static_cast<double>(kl_.size()));
}

Result<std::vector<ComparedText>> windows_of(const Engine& engine, std::span<const Token> text, const FidelityRequest& request) {
  KV_TRY(check_window(request, engine.shape()));
  KV_TRY(check_windows(request, text.size()));
  std::vector<ComparedText> windows;
  for (int w = 0; w < request.windows; ++w)
    windows.push_back({.tokens = window_of(text, request, w, engine.vocabulary()), .compared = request.tokens});
  return windows;
}

Result<FidelityReport> compare_texts(Engine& engine, std::span<const ComparedText> texts, const FidelityRequest& request,
                                     std::span<const CacheSpec> specs, const std::function<void(double share)>& progress) {
  KV_CHECK(!texts.empty());
  KV_ASSIGN(const CacheSpec reference, parse_spec("full"));
  std::vector<CacheSpec> all = {reference};
  for (const CacheSpec& spec : specs) {
    if (spec.canonical != reference.canonical) all.push_back(spec);
  }
  for (const ComparedText& text : texts) KV_TRY(check_window(request_of(text, request), engine.shape()));
  std::vector<Gathered> gathered(all.size());  // the reference with itself gives its perplexity and costs little
  std::size_t longest = 0;
  for (std::size_t t = 0; t < texts.size(); ++t) {
    const std::function<void(double share)> of_text = [&](double share) {
      if (progress) progress((static_cast<double>(t) + share) / static_cast<double>(texts.size()));
    };
    WindowComparison comparison(engine, request_of(texts[t], request), all, gathered, of_text);
    KV_TRY(comparison.run(texts[t]));
    longest = std::max(longest, texts[t].prefix().size());
  }
  FidelityReport report = {.reference_spec = reference.canonical,
                           .windows = static_cast<int>(texts.size()),
                           .prefix_tokens = static_cast<int>(longest),
                           .tokens = gathered[0].logits.tokens(),
                           .free_tokens = request.free_starts > 0 ? request.free_tokens : 0,
                           .reference_perplexity = gathered[0].logits.perplexity(),
                           .rows = {}};
  for (std::size_t c = 1; c < all.size(); ++c) {
    KV_ASSIGN(FidelityRow row, row_of(all[c], std::move(gathered[c])));
    report.rows.push_back(std::move(row));
  }
  return report;
}

Result<FidelityReport> measure_fidelity(Engine& engine, std::span<const Token> text, const FidelityRequest& request,
                                        std::span<const CacheSpec> specs, const std::function<void(double share)>& progress) {
  KV_ASSIGN(const std::vector<ComparedText> windows, windows_of(engine, text, request));
  return compare_texts(engine, windows, request, specs, progress);
}

nlohmann::json fidelity_json(const FidelityReport& report) {
  nlohmann::json out;
  out["reference"] = {{"spec", report.reference_spec},
                      {"tokens", report.tokens},
                      {"windows", report.windows},
                      {"prefix_tokens", report.prefix_tokens},
                      {"perplexity", report.reference_perplexity}};
  if (report.free_tokens > 0) out["reference"]["free_tokens"] = report.free_tokens;
  out["rows"] = nlohmann::json::array();
  for (const FidelityRow& r : report.rows) {
    nlohmann::json row = {{"spec", r.spec},
                          {"tokens", r.tokens},
                          {"kl_mean", r.kl_mean},
                          {"kl_sd", r.kl_sd},
                          {"kl_p95", r.kl_p95},
                          {"kl_p99", r.kl_p99},
                          {"kl_max", r.kl_max},
                          {"top1_agreement", r.top1_agreement},
                          {"perplexity", r.perplexity},
                          {"compression_ratio", r.compression_ratio},
                          {"acted", r.acted}};
    if (r.divergence.runs > 0) {
      row["first_divergence"] = {
          {"mean_tokens", r.divergence.mean()}, {"runs", r.divergence.runs}, {"diverged", r.divergence.diverged}};
    }
    if (!r.layers.empty()) row["layers"] = layers_json(r.layers);
    out["rows"].push_back(std::move(row));
  }
  return out;
}

std::string fidelity_table(const FidelityReport& report) {
  std::size_t width = report.reference_spec.size();
  bool free = false;
  bool layers = false;
  for (const FidelityRow& r : report.rows) {
    width = std::max(width, r.spec.size());
    free = free || r.divergence.runs > 0;
    layers = layers || !r.layers.empty();
  }
  std::string out =
      fmt::format("{} after a prefix of {}{}; KL in nats, from {}\n", counted(report.tokens, "token"), report.prefix_tokens,
                  report.windows > 1 ? fmt::format(" in each of {} windows", report.windows) : "", report.reference_spec);
  if (free) {
    out += fmt::format("same: tokens of greedy text until it differs from {}'s, mean of {} of at most {}\n",
                       report.reference_spec, counted(report.rows.front().divergence.runs, "run"), report.free_tokens);
  }
  if (layers) out += "output: relative error of a layer's attention output, mean over layers (per layer with --json)\n";
  out += fmt::format("\n{:<{}} {:>9} {:>9} {:>9} {:>9} {:>7} {:>10}{}{} {:>6}\n", "cache", width, "KL mean", "KL p95", "KL p99",
                     "KL max", "top-1", "perplexity", free ? fmt::format(" {:>7}", "same") : "",
                     layers ? fmt::format(" {:>7}", "output") : "", "ratio");
  out += fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>9} {:>7} {:>10.3f}{}{} {:>6}\n", report.reference_spec, width, "-", "-", "-",
                     "-", "-", report.reference_perplexity, free ? fmt::format(" {:>7}", "-") : "",
                     layers ? fmt::format(" {:>7}", "-") : "", "-");
  for (const FidelityRow& r : report.rows) {
    // A run that never differed is known to the limit only: the mean is then a lower bound.
    const char* const bound = r.divergence.diverged < r.divergence.runs ? ">" : "";
    out += fmt::format("{:<{}} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>6.1f}% {:>10.3f}{}{} {:>6.2f}{}\n", r.spec, width,
                       r.kl_mean, r.kl_p95, r.kl_p99, r.kl_max, 100 * r.top1_agreement, r.perplexity,
                       free ? fmt::format(" {:>7}", fmt::format("{}{:.1f}", bound, r.divergence.mean())) : "",
                       layers ? fmt::format(" {:>7.4f}", mean_output_error(r.layers)) : "", r.compression_ratio,
                       r.acted ? "" : "  (did not act)");
  }
  return out;
}

}  // namespace kvartet
