#include "plan/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cache/sealed_prompt.h"
#include "cache/sequence_cache.h"
#include "core/bytes_text.h"
#include "offload/file_tier.h"

namespace kvartet {
namespace {

// Where nothing was measured: a processor core of the last ten years with 256-bit vectors, and how far it may be off.
constexpr double kAssumedReadPerThread = 6e9;         // bytes/s
constexpr double kMostAssumedRead = 60e9;             // bytes/s, however many threads
constexpr double kAssumedWeightShare = 0.5;           // of the read bandwidth, for low-bit weights
constexpr double kAssumedFlopsPerThread = 40e9;       // of long matrix products
constexpr double kAssumedDecodeFlopsPerThread = 8e9;  // attention on cached rows
constexpr double kAssumedEncodePerThread = 0.5e9;     // f32 elements/s
constexpr double kAssumedDisk = 1e9;                  // bytes/s of scattered rows
constexpr double kAssumedError = 2.0;                 // times within a third and three times
constexpr double kMeasuredError = 0.15;
constexpr double kDerivedError = 0.3;  // from neighbouring measurements
constexpr double kDiskError = 0.5;     // how many rows are still there from the step before is not known

const char* row_word(double rows) { return std::lround(rows) == 1 ? "row" : "rows"; }  // as many as "{:.0f}" shows

// Linear through the two points nearest to x. One point: proportional to it.
double line_at(const std::map<double, double>& points, double x) {
  KV_CHECK(!points.empty());
  if (points.size() == 1) return points.begin()->second * x / points.begin()->first;
  auto right = points.lower_bound(x);
  if (right == points.begin()) ++right;
  if (right == points.end()) --right;
  const auto left = std::prev(right);
  const double slope = (right->second - left->second) / (right->first - left->first);
  const double y = left->second + slope * (x - left->first);
  // Noise must not make a short cache free.
  return std::max(y, 0.25 * points.begin()->second * std::min(1.0, x / points.begin()->first));
}

struct Accumulated {
  double seconds = 0;
  double error_seconds = 0;
  void add(std::vector<CostTerm>* terms, std::string name, double value, double error, std::string detail) {
    seconds += value;
    error_seconds += value * error;
    terms->push_back({std::move(name), value, std::move(detail)});
  }
  double error() const { return seconds > 0 ? error_seconds / seconds : 0; }
};

}  // namespace

double sum(const std::vector<CostTerm>& terms) {
  double total = 0;
  for (const CostTerm& t : terms) total += t.value;
  return total;
}

double ModelCost::read_bytes_per_token() const {
  const double table = static_cast<double>(shape.vocab) * shape.hidden;
  const double all = static_cast<double>(parameters);
  const double share = tied_embeddings || all <= table ? 1 : (all - table) / all;
  return static_cast<double>(file_bytes) * share;
}

double ModelCost::multiplied_parameters() const {
  const double table = static_cast<double>(shape.vocab) * shape.hidden;
  return std::max(static_cast<double>(parameters) - (tied_embeddings ? 1 : 2) * table, 0.0);
}

CostModel::CostModel(const ModelCost& model, const Calibration* calibration, int threads)
    : model_(model), calibration_(calibration), threads_(std::max(threads, 1)) {
  for (const LayerShape& layer : model.shape.layers) {
    const auto same = std::find_if(layers_.begin(), layers_.end(), [&](const EqualLayers& e) { return e.shape == layer; });
    if (same == layers_.end())
      layers_.push_back({layer, 1});
    else
      ++same->count;
  }
  if (calibration == nullptr) return;
  for (const Rate& r : calibration->rates)
    if (r.value > 0) rates_[{r.what, r.subject}].push_back(&r);
}

std::span<const Rate* const> CostModel::rates_of(std::string_view what, std::string_view subject) const {
  const auto found = rates_.find({what, subject});
  return found == rates_.end() ? std::span<const Rate* const>() : found->second;
}

const Rate* CostModel::find(std::string_view what, std::string_view subject, int head_dim, int group) const {
  const Rate* best = nullptr;
  double best_distance = 0;
  for (const Rate* r : rates_of(what, subject)) {
    const double distance = std::abs(r->head_dim - head_dim) + std::abs(r->group - group);
    if (best == nullptr || distance < best_distance) {
      best = r;
      best_distance = distance;
    }
  }
  return best;
}

CostModel::Figure CostModel::rate_of(std::string_view what, std::string_view subject, double assumed) const {
  if (const Rate* r = find(what, subject, 0, 0)) return {r->value, std::max(kMeasuredError, r->spread), "calibrated"};
  // Another weight type's rate is nearer to the truth than a guess about the processor.
  if (calibration_ != nullptr && !subject.empty()) {
    for (const Rate& r : calibration_->rates)
      if (r.what == what && r.value > 0) return {r.value, 1.0, fmt::format("calibrated for {}", r.subject)};
  }
  return {assumed, kAssumedError, "assumed"};
}

// Interpolates in rows and in query heads per KV head among the measurements of one pair of formats.
bool CostModel::attend_points(const std::string& formats, const LayerShape& layer, double rows, double* seconds) const {
  const Rate* nearest = find(rate::kAttend, formats, layer.head_dim, layer.group());
  if (nearest == nullptr) return false;
  std::map<int, std::map<double, double>> by_group;
  for (const Rate* r : rates_of(rate::kAttend, formats)) {
    if (r->head_dim == nearest->head_dim && r->depth > 0) by_group[r->group][r->depth] = r->value;
  }
  std::map<double, double> at_rows;
  for (const auto& [group, points] : by_group) at_rows[group] = line_at(points, rows);
  const double at_group = at_rows.size() == 1 ? at_rows.begin()->second : line_at(at_rows, layer.group());
  *seconds = at_group * layer.head_dim / nearest->head_dim;
  return true;
}

// One side of a row: half of what both take; of a format that no cache has on both sides (qjl writes keys alone) what a pair with
// another takes, less the other's half.
std::optional<double> CostModel::half_seconds(std::string_view what, const std::string& format, const PairSeconds& points) const {
  constexpr double kLeastShare = 0.1;  // of the pair: noise must not make a side free
  double both = 0;
  if (points(format + "/" + format, &both)) return 0.5 * both;
  for (const auto& [key, rates] : rates_) {
    if (key.first != what) continue;
    const std::string pair(key.second);
    const std::size_t slash = pair.find('/');
    const std::string left = pair.substr(0, slash);
    const std::string right = pair.substr(slash + 1);
    if (left != format && right != format) continue;
    const std::string& other = left == format ? right : left;
    double of_pair = 0;
    double of_other = 0;
    if (!points(pair, &of_pair) || !points(other + "/" + other, &of_other)) continue;
    return std::max(of_pair - 0.5 * of_other, kLeastShare * of_pair);
  }
  return std::nullopt;
}

std::optional<CostModel::Figure> CostModel::pair_seconds(std::string_view what, const SpecFacts& facts,
                                                         const PairSeconds& points) const {
  double seconds = 0;
  if (points(facts.formats(), &seconds)) return Figure{seconds, kMeasuredError, "calibrated"};
  const std::optional<double> key = half_seconds(what, facts.key_format, points);
  const std::optional<double> value = half_seconds(what, facts.value_format, points);
  if (!key || !value) return std::nullopt;
  return Figure{*key + *value, kDerivedError,
                fmt::format("half of {} and of {}, calibrated", facts.key_format, facts.value_format)};
}

CostModel::Figure CostModel::attend_seconds(const SpecFacts& facts, const LayerShape& layer, double rows) const {
  const auto points = [&](const std::string& formats, double* seconds) { return attend_points(formats, layer, rows, seconds); };
  if (const std::optional<Figure> known = pair_seconds(rate::kAttend, facts, points)) return *known;
  const double bytes = rows * layer.head_dim * (facts.key_bits + facts.value_bits) / 8;
  const double flops = 4.0 * rows * layer.head_dim * layer.group();
  const double read = std::min(kAssumedReadPerThread * threads_, kMostAssumedRead);
  return {bytes / read + flops / (kAssumedDecodeFlopsPerThread * threads_), kAssumedError, "assumed"};
}

CostModel::Figure CostModel::encode_seconds(std::string_view what, const SpecFacts& facts, const LayerShape& layer) const {
  const auto points = [&](const std::string& formats, double* seconds) {
    const Rate* r = find(what, formats, layer.head_dim, 0);
    if (r != nullptr) *seconds = r->value * layer.head_dim / std::max(r->head_dim, 1);
    return r != nullptr;
  };
  if (const std::optional<Figure> known = pair_seconds(what, facts, points)) return *known;
  return {2.0 * layer.head_dim / (kAssumedEncodePerThread * threads_), kAssumedError, "assumed"};
}

std::optional<CostModel::Figure> CostModel::per_row(std::string_view what, const SpecFacts& facts) const {
  double seconds = 0;
  double error = 0;
  for (const auto& [layer, count] : layers_) {
    const Rate* r = find(what, facts.evict_method, layer.head_dim, layer.group());
    if (r == nullptr) return std::nullopt;
    seconds += 1.0 * count * layer.kv_heads * r->value * layer.head_dim / std::max(r->head_dim, 1);
    error = std::max({error, kMeasuredError, r->spread});
  }
  return Figure{seconds, error, "calibrated"};
}

// To choose and write a prompt's far rows takes a constant, of a factorization, and a share for every token.
std::optional<CostModel::Figure> CostModel::seal_seconds(const SpecFacts& facts, int tokens) const {
  Figure sum{0, 0, "calibrated"};
  for (const auto& [layer, count] : layers_) {
    const Rate* nearest = find(rate::kSeal, facts.evict_method, layer.head_dim, layer.group());
    if (nearest == nullptr) return std::nullopt;
    std::map<double, double> points;
    for (const Rate* r : rates_of(rate::kSeal, facts.evict_method)) {
      if (r->head_dim != nearest->head_dim || r->group != nearest->group) continue;
      points[r->depth] = r->value;
      sum.error = std::max({sum.error, kMeasuredError, r->spread});
    }
    sum.value += 1.0 * count * layer.kv_heads * line_at(points, tokens) * layer.head_dim / std::max(nearest->head_dim, 1);
  }
  return sum;
}

bool CostModel::knows_selection(const SpecFacts& facts) const {
  return facts.selects() && per_row(rate::kScore, facts) && per_row(rate::kChosen, facts);
}

// Rows chosen for one step, from where they lie. Those that are still there from the step before are not read again, which
// nobody can know beforehand: an upper bound.
CostModel::Figure CostModel::fetch_seconds(const SelectOptions& options, double chosen) const {
  if (options.place == Place::kNear) return {0, 0, "nothing: all rows are near"};
  const Figure ops = rate_of(rate::kDiskOps, rate::kDirect, 0);
  if (options.tier != Tier::kDisk || ops.value <= 0) {
    const double read = std::min(kAssumedReadPerThread * threads_, kMostAssumedRead);
    const double rate = options.tier == Tier::kRam ? read / 4 : kAssumedDisk;
    return {static_cast<double>(model_.shape.f16_bytes_per_token()) * chosen / rate, kAssumedError,
            fmt::format("{:.0f} {} per head at {:.1f} GB/s (assumed)", chosen, row_word(chosen), rate * 1e-9)};
  }
  const Figure bandwidth = rate_of(rate::kDiskRead, rate::kDirect, kAssumedDisk);
  double reads = 0;
  double bytes = 0;
  for (std::size_t l = static_cast<std::size_t>(options.dense_layers); l < model_.shape.layers.size(); ++l) {
    const LayerShape& layer = model_.shape.layers[l];
    const std::size_t row = SealedPrompt::row_bytes(options, layer);  // joint rows: heads may all want others
    const double page = static_cast<double>(page_bytes_for(row));
    const int together = options.index.chunk * options.run;  // neighbours
    const double pages_of_run = std::ceil(static_cast<double>(together) / rows_per_page(row));
    const double heads = options.share == Share::kGroup ? layer.kv_heads : layer.heads;
    const double pages = heads * chosen / together * pages_of_run;
    reads += pages;
    bytes += pages * page;
  }
  // Whichever the drive runs out of first.
  const double seconds = std::max(reads / ops.value, bytes / bandwidth.value);
  return {seconds, std::max(kDiskError, ops.error),
          fmt::format("{:.0f} {} per head in {:.0f} reads, {} at {:.0f} k reads/s and {:.1f} GB/s ({})", chosen, row_word(chosen),
                      reads, bytes_text(bytes), ops.value * 1e-3, bandwidth.value * 1e-9, ops.source)};
}

// What one decode step of a selecting cache takes beside weights and attention to the answer's own rows.
std::vector<CostModel::DoubtedTerm> CostModel::selection_terms(const SpecFacts& facts, int prompt_tokens,
                                                               int far_generated) const {
  const SelectOptions& options = *facts.spec.offload;
  const double chosen = chosen_rows(facts, prompt_tokens);
  const int scored = prompt_tokens + far_generated;
  const Figure fetch = fetch_seconds(options, chosen);
  if (!knows_selection(facts)) {
    // An eighth of the bytes of all keys.
    const double read = std::min(kAssumedReadPerThread * threads_, kMostAssumedRead);
    const double f16 = static_cast<double>(model_.shape.f16_bytes_per_token());
    return {{{"select", f16 / 16 * scored / read, fmt::format("scores an index of {} {} (assumed)", scored, row_word(scored))},
             kAssumedError},
            {{"fetch", fetch.value, fetch.source}, fetch.error}};
  }
  const Figure score = *per_row(rate::kScore, facts);
  const Figure row = *per_row(rate::kChosen, facts);
  std::vector<DoubtedTerm> terms = {
      {{"select", score.value * scored, fmt::format("scores an index of {} {} ({})", scored, row_word(scored), score.source)},
       score.error},
      {{"chosen rows", row.value * chosen,
        fmt::format("{:.0f} {} per head, from RAM ({})", chosen, row_word(chosen), row.source)},
       row.error}};
  if (options.place == Place::kFar && options.tier != Tier::kRam)
    terms.push_back({{"fetch", fetch.value, fetch.source}, fetch.error});
  return terms;
}

std::vector<CostTerm> CostModel::step_terms(const SpecFacts& facts, int prompt_tokens, int depth) const {
  double ignored = 0;
  return step_terms_with_error(facts, prompt_tokens, depth, &ignored);
}

std::vector<CostTerm> CostModel::step_terms_with_error(const SpecFacts& facts, int prompt_tokens, int depth,
                                                       double* error) const {
  std::vector<CostTerm> terms;
  Accumulated total;
  const double read = std::min(kAssumedReadPerThread * threads_, kMostAssumedRead);
  const Figure weights = rate_of(rate::kWeights, model_.weight_type, read * kAssumedWeightShare);
  const double weight_bytes = model_.read_bytes_per_token();
  const double weight_s = weight_bytes / weights.value;
  total.add(&terms, "weights", weight_s, weights.error,
            fmt::format("{} at {:.1f} GB/s ({})", bytes_text(weight_bytes), weights.value * 1e-9, weights.source));

  const int generated = std::max(depth - prompt_tokens, 0);
  // What selection costs was calibrated with the rows of the prompt that are always near.
  const bool selects = selects_from(facts, prompt_tokens);
  const double rows = selects && knows_selection(facts) ? near_generated(facts, prompt_tokens, generated)
                                                        : kept_rows(facts, prompt_tokens, generated);
  Figure attention;
  Figure encode;
  for (const auto& [layer, count] : layers_) {
    const double heads = 1.0 * count * layer.kv_heads;
    const Figure one = attend_seconds(facts, layer, rows);
    attention = {attention.value + heads * one.value, one.error, one.source};
    const Figure append = encode_seconds(rate::kAppend, facts, layer);
    encode = {encode.value + heads * append.value, append.error, append.source};
  }
  total.add(&terms, "attention", attention.value, attention.error,
            fmt::format("{:.0f} of {} {} as {} ({})", rows, depth, row_word(depth), facts.formats_text(), attention.source));
  if (facts.spec.drops_after_steps() && rows < depth) {  // until rows leave the sums are nearly free
    if (const std::optional<Figure> depart = per_row(rate::kDepart, facts)) {
      total.add(
          &terms, "choose rows", depart->value * rows, depart->error,
          fmt::format("{} ranks {:.0f} {} by the step's weights ({})", facts.evict_method, rows, row_word(rows), depart->source));
    }
  }
  if (selects) {
    const int far = generated - static_cast<int>(near_generated(facts, prompt_tokens, generated));
    for (DoubtedTerm& t : selection_terms(facts, prompt_tokens, far)) {
      total.add(&terms, std::move(t.term.name), t.term.value, t.error, std::move(t.term.detail));
    }
  }
  total.add(&terms, "append", encode.value, encode.error, fmt::format("writes one row per head ({})", encode.source));
  *error = total.error();
  return terms;
}

std::vector<CostTerm> CostModel::ttft_terms(const SpecFacts& facts, const Workload& w, double kept, double* error) const {
  std::vector<CostTerm> terms;
  Accumulated total;
  const double tokens = w.prompt_tokens;
  const Figure linear = rate_of(rate::kLinear, model_.weight_type, kAssumedFlopsPerThread * threads_);
  const double linear_flops = 2 * model_.multiplied_parameters() * tokens;
  total.add(&terms, "prefill, linear layers", linear_flops / linear.value, linear.error,
            fmt::format("{:.0f} GFLOP at {:.0f} GFLOP/s ({})", linear_flops * 1e-9, linear.value * 1e-9, linear.source));

  Figure attend;
  double attend_flops = 0;
  double seconds = 0;
  Figure encode;
  double heads = 0;
  for (const auto& [layer, count] : layers_) {
    const Rate* r = find(rate::kPrefill, rate::precision(model_.native_attention), layer.head_dim, layer.group());
    attend = r == nullptr ? Figure{kAssumedFlopsPerThread * threads_, kAssumedError, "assumed"}
                          : Figure{r->value, kMeasuredError, "calibrated"};
    const double flops = 2.0 * count * layer.heads * layer.head_dim * tokens * tokens;  // causal: half of all pairs, twice
    attend_flops += flops;
    seconds += flops / attend.value;
    const Figure one = encode_seconds(rate::kEncode, facts, layer);
    encode = {encode.value + kept * count * layer.kv_heads * one.value, one.error, one.source};
    heads += count * layer.kv_heads;
  }
  total.add(&terms, "prefill, attention", seconds, attend.error,
            fmt::format("{:.0f} GFLOP at {:.0f} GFLOP/s ({})", attend_flops * 1e-9, attend.value * 1e-9, attend.source));
  const bool selects = selects_from(facts, w.prompt_tokens);
  const std::optional<Figure> seal = selects ? seal_seconds(facts, w.prompt_tokens) : std::nullopt;
  if (seal) {
    total.add(&terms, "build the index", seal->value, seal->error,
              fmt::format("of {:.0f} {}, and write them ({})", tokens, row_word(tokens), seal->source));
  } else if (selects || (facts.evicts() && !facts.selects())) {
    const Rate* r = find(rate::kEvict, facts.evict_method, 0, 0);
    const double each = r != nullptr ? r->value : 50e-9 / threads_;
    total.add(&terms, "choose rows", each * tokens * heads, r != nullptr ? kMeasuredError : kAssumedError,
              fmt::format("{} keeps {:.0f} of {:.0f} {} ({})", facts.evict_method, kept, tokens, row_word(tokens),
                          r != nullptr ? "calibrated" : "assumed"));
  }
  if (!seal)
    total.add(&terms, "write the cache", encode.value, encode.error,
              fmt::format("{:.0f} {} as {} ({})", kept, row_word(kept), facts.formats_text(), encode.source));
  *error = total.error();
  return terms;
}

Result<CostPrediction> CostModel::predict(const SpecFacts& facts, const Workload& w) const {
  CostPrediction out;
  const int answer = w.answer_tokens();
  const int moments[] = {0, answer};
  KV_ASSIGN(const std::vector<ByteAccount> bytes, predict_bytes(facts.spec, model_.shape, w.prompt_tokens, moments));
  out.after_prompt = bytes.front();
  out.at_end = bytes.back();
  out.fast = std::max(out.after_prompt.fast_allocated(), out.at_end.fast_allocated());

  // What selection does not see is written all the same.
  const double kept = facts.selects() ? w.prompt_tokens : kept_rows(facts, w.prompt_tokens, 0);
  double ttft_error = 0;
  double step_error = 0;
  out.ttft = ttft_terms(facts, w, kept, &ttft_error);
  out.step = step_terms_with_error(facts, w.prompt_tokens, w.prompt_tokens + answer / 2, &step_error);
  out.ttft_s = sum(out.ttft);
  out.step_s = sum(out.step);
  out.total_s = out.ttft_s + out.step_s * (1.0 * answer * w.questions - 1);
  out.time_error = std::max(ttft_error, step_error);

  const LayerShape& layer = model_.shape.layers.front();
  const double exact = 8.0 * w.prompt_tokens * layer.kv_heads * layer.head_dim;
  out.peak = {{"weights", static_cast<double>(model_.file_bytes), "the model file, mapped"},
              {"cache", static_cast<double>(out.after_prompt.allocated), "after the prompt"},
              {"one exact layer", 2 * exact, "keys and values in f32, and their packed copy"},
              {"hidden rows", 4.0 * w.prompt_tokens * model_.shape.hidden, "f32"}};
  if (facts.spec.observes_window()) {
    out.peak.push_back(
        {"scores", 4.0 * facts.spec.window * w.prompt_tokens * layer.heads, "of the observation window, one layer"});
  }
  return out;
}

}  // namespace kvartet
