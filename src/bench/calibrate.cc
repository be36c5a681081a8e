#include "bench/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>

#include "bench/disk_rates.h"
#include "bench/shape_meter.h"
#include "bench/speed.h"
#include "cache/offload_layer.h"
#include "core/clock.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "model/model_facts.h"

namespace kvartet {
namespace {

constexpr int kRounds = 3;

class Calibrator {
 public:
  explicit Calibrator(const CalibrateOptions& options) : options_(options) {}

  Result<CalibrateReport> run() {
    begin_ = Clock::real().seconds();
    Calibration& c = report_.calibration;
    c.machine = this_machine();
    c.threads = options_.threads;
    c.version = kvartet_version();
    c.measured = utc_timestamp();
    KV_TRY(measure_reading());
    KV_TRY(measure_tier());
    std::vector<LayerShape> shapes;
    if (!options_.model_path.empty()) {
      KV_ASSIGN(facts_, read_model_facts(options_.model_path));
      shapes.push_back(facts_.shape.layers.front());
    }
    for (const int head_dim : {64, 128})
      for (const int group : {1, 4}) shapes.push_back({.heads = 4 * group, .kv_heads = 4, .head_dim = head_dim, .window = 0});
    // The model's own shape and the model first: the budget cuts from the end.
    KV_TRY(measure_shape(shapes.front()));
    if (!options_.model_path.empty()) KV_TRY(measure_model());
    for (std::size_t i = 1; i < shapes.size(); ++i) KV_TRY(measure_shape(shapes[i]));
    report_.seconds = Clock::real().seconds() - begin_;
    return std::move(report_);
  }

 private:
  Status say(const std::string& what) const {
    if (options_.progress) options_.progress(what);
    if (options_.cancel != nullptr && options_.cancel->load())
      return cancelled("interrupted before the calibration was complete; nothing was stored");
    return {};
  }

  void add(std::string_view what, std::string_view subject, const Spread& s) {
    report_.calibration.rates.push_back({.what = std::string(what),
                                         .subject = std::string(subject),
                                         .head_dim = 0,
                                         .group = 0,
                                         .depth = 0,
                                         .value = s.median,
                                         .spread = s.relative});
  }

  Status measure_reading() {
    KV_TRY(say("read bandwidth"));
    std::vector<double> reads;
    for (int round = 0; round < 5; ++round) reads.push_back(1e9 * read_bandwidth(options_.threads));
    add(rate::kRead, "", spread_of(reads));
    return {};
  }

  // A machine whose disk cannot be measured is calibrated all the same, and told why.
  Status measure_tier() {
    KV_TRY(say("the disk"));
    DiskRequest request;
    request.directory = options_.tier_directory;
    request.cancel = options_.cancel;
    const Result<DiskRates> rates = measure_disk(request);
    if (!rates.ok() && rates.status().code() == Code::kCancelled) return say("the disk");
    if (!rates.ok()) {
      report_.disk = "not measured: " + rates.status().message();
      return {};
    }
    report_.disk = fmt::format("{}, by {}", rates->directory, rates->medium);
    const std::string_view subject = rates->direct ? rate::kDirect : rate::kPageCache;
    add(rate::kDiskOps, subject, {rates->reads_per_s.value, rates->reads_per_s.spread});
    add(rate::kDiskRead, subject, {rates->bytes_per_s.value, rates->bytes_per_s.spread});
    return {};
  }

  bool spent() const { return Clock::real().seconds() - begin_ > options_.budget_s; }

  Status measure_shape(const LayerShape& layer) {
    if (spent()) {
      report_.left_out += 1 + static_cast<int>(options_.formats.size());
      return {};
    }
    ShapeMeter meter(layer, options_.threads);
    KV_TRY(say(fmt::format("prefill attention, head_dim {}, {} queries per KV head", layer.head_dim, layer.group())));
    for (const Precision precision : {Precision::kNative, Precision::kExact})
      report_.calibration.rates.push_back(meter.prefill(precision));
    ModelShape shape;
    shape.context = 1 << 20;
    shape.layers = {layer};
    std::vector<CacheSpec> formats;
    for (const CacheSpec& spec : options_.formats)
      if (check_spec(spec, shape).ok()) formats.push_back(spec);  // the others do not exist at this head size
    KV_TRY(say(fmt::format("formats, head_dim {}, {} queries per KV head", layer.head_dim, layer.group())));
    return meter.measure(formats, &report_.calibration.rates);
  }

  // Weights in a decode step, matrix products of a prefill, and what evictors add to one.
  Status measure_model() {
    KV_TRY(say("the model's weights"));
    EngineOptions open;
    open.model_path = options_.model_path;
    open.threads = options_.threads;
    open.cancel = options_.cancel;
    KV_ASSIGN(engine_, Engine::open(open));
    KV_TRY(measure_decode(*engine_));
    KV_TRY(measure_prefill(*engine_));
    KV_TRY(measure_selection(*engine_));
    few_rows_.clear();
    engine_.reset();
    return {};
  }

  std::vector<Token> some_tokens(int count) const {
    const Rng rng(9);
    std::vector<Token> tokens;
    for (int i = 0; i < count; ++i)
      tokens.push_back(static_cast<Token>(300 + rng.at(static_cast<std::uint64_t>(i)) %
                                                    static_cast<std::uint64_t>(std::max(facts_.shape.vocab - 300, 1))));
    return tokens;
  }

  std::string weight_type() const { return facts_.weight_types.empty() ? "" : facts_.weight_types.front().first; }

  double weight_bytes() const {
    const double table = static_cast<double>(facts_.shape.vocab) * facts_.shape.hidden;
    const double share = facts_.tied_embeddings ? 1 : 1 - table / static_cast<double>(facts_.parameters);
    return static_cast<double>(facts_.file_bytes) * share;
  }

  double kv_heads() const {
    double heads = 0;
    for (const LayerShape& l : facts_.shape.layers) heads += l.kv_heads;
    return heads;
  }

  // Seconds of one decode step behind a sealed prompt.
  Result<double> step_seconds(Engine& engine, const Sequence& sealed, int tokens) {
    GenerateOptions generate;
    generate.max_tokens = tokens + 1;
    generate.ignore_end = true;
    Sequence fork = sealed.fork();
    Sequence* list[] = {&fork};
    KV_ASSIGN(const std::vector<Completion> done, engine.generate(list, generate));
    if (done[0].finish_reason == FinishReason::kCancelled) KV_TRY(say(""));
    return done[0].decode_s / tokens;
  }

  Status measure_decode(Engine& engine) {
    constexpr int kPrompt = 32;  // so few rows that a step is all weights
    constexpr int kTokens = 32;
    KV_ASSIGN(const CacheSpec full, parse_spec("full"));
    KV_ASSIGN(few_rows_, engine.prefill(some_tokens(kPrompt), std::span(&full, 1)));
    std::vector<double> runs;
    for (int round = 0; round < kRounds + 2; ++round) {
      KV_ASSIGN(const double seconds, step_seconds(engine, few_rows_[0], kTokens));
      runs.push_back(weight_bytes() / seconds);
    }
    add(rate::kWeights, weight_type(), spread_of(runs));
    return {};
  }

  Status measure_prefill(Engine& engine) {
    const int tokens = std::min(1024, facts_.shape.context - 1);
    std::vector<CacheSpec> specs;
    KV_ASSIGN(CacheSpec full, parse_spec("full"));
    specs.push_back(std::move(full));
    for (const CacheSpec& spec : options_.evictors)
      if (check_spec(spec, facts_.shape).ok()) specs.push_back(spec);
    const double heads = kv_heads();
    const std::string_view subject = rate::precision(facts_.native_attention);
    double attention_s = 0;
    for (const LayerShape& l : facts_.shape.layers) {
      attention_s += 2.0 * l.heads * l.head_dim * tokens * tokens / own_rate(rate::kPrefill, subject).value;
    }
    const double table = static_cast<double>(facts_.shape.vocab) * facts_.shape.hidden;
    const double multiplied = static_cast<double>(facts_.parameters) - (facts_.tied_embeddings ? 1 : 2) * table;
    std::vector<double> linear;
    std::vector<std::vector<double>> evict(specs.size());
    std::vector<std::vector<double>> depart(specs.size());
    for (int round = 0; round < kRounds; ++round) {
      KV_TRY(say(fmt::format("prefill of {} tokens", tokens)));
      KV_ASSIGN(const std::vector<Sequence> sealed, engine.prefill(some_tokens(tokens), specs));
      linear.push_back(2 * multiplied * tokens / std::max(sealed[0].prefill_s - attention_s, 0.1 * sealed[0].prefill_s));
      for (std::size_t i = 1; i < sealed.size(); ++i) {
        // Per row written as in `full`; what remains is the choosing, at least a tenth of it.
        const double written = sealed[0].compress_s * sealed[i].cache.mean_rows() / tokens;
        evict[i].push_back(std::max(sealed[i].compress_s - written, 0.1 * sealed[i].compress_s) / (heads * tokens));
        if (!specs[i].drops_after_steps()) continue;
        KV_ASSIGN(const double seconds, departure_seconds(engine, sealed[i]));
        depart[i].push_back(seconds / (heads * sealed[i].cache.mean_rows()));
      }
    }
    add(rate::kLinear, weight_type(), spread_of(linear));
    for (std::size_t i = 1; i < specs.size(); ++i) {
      const std::string name = specs[i].canonical.substr(0, specs[i].canonical.find(':'));
      add(rate::kEvict, name, spread_of(evict[i]));
      if (!depart[i].empty()) add_of_model(rate::kDepart, name, spread_of(depart[i]));
    }
    return {};
  }

  // Seconds of one decode step beside linear layers and logits, which vary more than what is looked for here.
  Result<double> seconds_beside_weights(Engine& engine, const Sequence& sealed, int tokens) {
    const DecodeTimes before = engine.decode_times();
    KV_ASSIGN(const double seconds, step_seconds(engine, sealed, tokens));
    const DecodeTimes after = engine.decode_times();
    return seconds - (after.linear - before.linear + after.head - before.head) / std::max(after.steps - before.steps, 1);
  }

  // What a step of a method by which rows leave takes beside weights and attention.
  Result<double> departure_seconds(Engine& engine, const Sequence& sealed) {
    constexpr int kSteps = 12;
    constexpr double kLeastShare = 0.05;  // noise must not make it free
    KV_ASSIGN(const double nothing, seconds_beside_weights(engine, few_rows_[0], kSteps));
    KV_ASSIGN(const double step, seconds_beside_weights(engine, sealed, kSteps));
    const auto attend = std::find_if(report_.calibration.rates.begin(), report_.calibration.rates.end(),
                                     [](const Rate& r) { return r.what == rate::kAttend && r.subject == "f16/f16"; });
    double attention = 0;  // the shallowest depth, of the model's own shape
    if (attend != report_.calibration.rates.end())
      attention = attend->value / attend->depth * sealed.cache.mean_rows() * kv_heads();
    return std::max(step - nothing - attention, kLeastShare * step);
  }

  // A step of a cache that selects is the weights', a share for every row that could be chosen (its index is scored) and one for
  // every row that is (fetched, decoded, attended). Two budgets on one prompt tell the last two apart.
  Status measure_selection(Engine& engine) {
    const int tokens = std::min(1536, facts_.shape.context / 2);
    constexpr int kSteps = 10;
    std::vector<const SelectorPair*> pairs;
    std::vector<CacheSpec> specs;  // few, many, few, many, ...
    for (const SelectorPair& pair : options_.selectors) {
      if (!check_spec(pair.few, facts_.shape).ok() || !check_spec(pair.many, facts_.shape).ok()) continue;
      pairs.push_back(&pair);
      specs.push_back(pair.few);
      specs.push_back(pair.many);
    }
    if (pairs.empty()) return {};
    KV_TRY(measure_sealing(engine, pairs, specs, tokens / 2));
    KV_TRY(say(fmt::format("selecting caches on {} tokens", tokens)));
    KV_ASSIGN(const std::vector<Sequence> sealed, engine.prefill(some_tokens(tokens), specs));
    std::vector<std::vector<double>> steps(specs.size());
    std::vector<double> nothing;
    for (int round = 0; round < kRounds; ++round) {
      KV_ASSIGN(const double unselected, seconds_beside_weights(engine, few_rows_[0], kSteps));
      nothing.push_back(unselected);
      for (std::size_t i = 0; i < specs.size(); ++i) {
        KV_TRY(say(pairs[i / 2]->name));
        KV_ASSIGN(const double seconds, seconds_beside_weights(engine, sealed[i], kSteps));
        steps[i].push_back(seconds);
      }
    }
    const double nothing_s = spread_of(std::move(nothing)).median;
    for (std::size_t i = 0; i < specs.size(); i += 2)
      add_selection(*pairs[i / 2], tokens, nothing_s, {sealed[i].compress_s, sealed[i + 1].compress_s}, steps[i], steps[i + 1]);
    return {};
  }

  // A second length tells what sealing takes for every token from what it takes once, as a factorization does.
  Status measure_sealing(Engine& engine, std::span<const SelectorPair* const> pairs, std::span<const CacheSpec> specs,
                         int tokens) {
    KV_TRY(say(fmt::format("selecting caches on {} tokens", tokens)));
    KV_ASSIGN(const std::vector<Sequence> sealed, engine.prefill(some_tokens(tokens), specs));
    for (std::size_t i = 0; i < specs.size(); i += 2) {
      const SelectOptions& options = *specs[i].offload;
      if (OffloadLayer::segments(options, options.dense_layers, tokens).dense) continue;  // nothing was sealed
      add_seal(pairs[i / 2]->name, tokens, {sealed[i].compress_s, sealed[i + 1].compress_s});
    }
    return {};
  }

  void add_seal(const std::string& method, int tokens, std::vector<double> seconds) {
    for (double& s : seconds) s /= kv_heads();
    add_of_model(rate::kSeal, method, spread_of(std::move(seconds)));
    report_.calibration.rates.back().depth = tokens;
  }

  void add_selection(const SelectorPair& pair, int tokens, double nothing_s, std::vector<double> seal,
                     const std::vector<double>& few_steps, const std::vector<double>& many_steps) {
    constexpr double kLeastShare = 0.02;  // noise must not make a part free
    const double heads = kv_heads();
    const Spread a = spread_of(few_steps);
    const Spread b = spread_of(many_steps);
    const double few = pair.few.offload->budget.value * tokens;
    const double rows = pair.many.offload->budget.value * tokens - few;
    const double chosen = std::max(b.median - a.median, kLeastShare * a.median) / (heads * rows);
    const double rest = a.median - nothing_s - heads * chosen * few;
    const double score = std::max(rest, kLeastShare * a.median) / (heads * tokens);
    add_seal(pair.name, tokens, std::move(seal));
    add_of_model(rate::kScore, pair.name, {score, a.relative});
    add_of_model(rate::kChosen, pair.name, {chosen, b.relative});
  }

  // Of this model's heads.
  void add_of_model(std::string_view what, std::string_view subject, const Spread& s) {
    add(what, subject, s);
    report_.calibration.rates.back().head_dim = facts_.shape.layers.front().head_dim;
    report_.calibration.rates.back().group = facts_.shape.layers.front().group();
  }

  // Of the model's own shape, which was measured first.
  const Rate& own_rate(std::string_view what, std::string_view subject) const {
    return *std::find_if(report_.calibration.rates.begin(), report_.calibration.rates.end(),
                         [&](const Rate& r) { return r.what == what && r.subject == subject; });
  }

  const CalibrateOptions& options_;
  CalibrateReport report_;
  ModelFacts facts_;
  std::unique_ptr<Engine> engine_;
  std::vector<Sequence> few_rows_;  // one, of so few rows that a step is all weights
  double begin_ = 0;
};

}  // namespace

Result<CalibrateReport> calibrate(const CalibrateOptions& options) { return Calibrator(options).run(); }

}  // namespace kvartet
