#include "bench/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/clock.h"
#include "core/counted.h"
#include "core/parallel_for.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "model/peer_llama.h"
#include "results/machine.h"
#include "results/paired.h"
#include "simd/compute_rate.h"

namespace kvartet {
namespace {

// Any ordinary tokens do: the work does not depend on them. Both engines get the same.
std::vector<Token> some_tokens(int count, const Vocabulary& vocabulary) {
  Rng rng(7);
  std::vector<Token> tokens;
  while (static_cast<int>(tokens.size()) < count) {
    const auto token = static_cast<Token>(rng.below(static_cast<std::uint64_t>(vocabulary.size())));
    if (!vocabulary.is_end(token) && !vocabulary.piece(token).empty()) tokens.push_back(token);
  }
  return tokens;
}

// Seconds per step between two readings.
DecodeTimes per_step(const DecodeTimes& before, const DecodeTimes& after) {
  const double steps = std::max(1, after.steps - before.steps);
  return {(after.linear - before.linear) / steps, (after.attention - before.attention) / steps,
          (after.cache - before.cache) / steps, (after.head - before.head) / steps, 1};
}

// Each part's own median: a round that something else held up does not show in any of them.
DecodeTimes median_times(std::span<const DecodeTimes> rounds) {
  const auto part = [&](double DecodeTimes::* seconds) {
    std::vector<double> all;
    for (const DecodeTimes& times : rounds) all.push_back(times.*seconds);
    return median(std::move(all));
  };
  return {part(&DecodeTimes::linear), part(&DecodeTimes::attention), part(&DecodeTimes::cache), part(&DecodeTimes::head), 1};
}

// What attention reads: all that a cache holds, or the rows that its last step chose and those that are always near.
std::int64_t attended_bytes(const SequenceCache& cache, int layers) {
  if (!cache.selects()) return static_cast<std::int64_t>(cache.bytes().live);
  std::size_t bytes = 0;
  for (int layer = 0; layer < layers; ++layer) {
    for (const HeadView& view : cache.views(layer)) {
      for (const std::span<const TilePiece> side : {view.keys, view.values})
        for (const TilePiece& piece : side) bytes += piece.format->live_bytes(piece.end - piece.begin);
    }
  }
  return static_cast<std::int64_t>(bytes);
}

void add_traffic(const RowTraffic& more, RowTraffic* sum) {
  sum->bytes_fetched += more.bytes_fetched;
  sum->rows_fetched += more.rows_fetched;
  sum->rows_hit += more.rows_hit;
  sum->medium.reads += more.medium.reads;
  sum->medium.bytes_read += more.medium.bytes_read;
}

// The peer at one depth: one session per cache type and flash attention setting, filled once and rewound after each run.
struct PeerRun {
  PeerSessionOptions options;
  std::unique_ptr<PeerSession> session;
  std::vector<double> prefill_runs;
  std::vector<double> decode_runs;
};

class SpeedMeter {
 public:
  explicit SpeedMeter(const SpeedOptions& options) : options_(options) {}
  Result<SpeedReport> run();

 private:
  Status open();
  Status measure_depth(int depth);
  Status measure_tier();
  Status open_peer_sessions(int depth);
  Status prefill_round(std::span<const Token> tokens);
  Status prefill_rounds(std::span<const Token> tokens, int depth);
  Status fill_directly(int depth);
  Status read_weights();
  Status fill_for_decode(std::span<const Token> tokens);
  Status decode_round(int depth);
  void collect(int depth);
  void note_probes() {
    report_.read_runs.push_back(read_bandwidth(options_.threads));
    report_.compute_runs.push_back(compute_rate(options_.threads));
  }
  Status say(const std::string& what) const;

  const SpeedOptions& options_;
  SpeedReport report_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PeerLlama> peer_;
  // Of the depth being measured:
  std::vector<Sequence> sealed_;
  std::vector<std::vector<double>> prefill_runs_, decode_runs_;  // per spec
  std::vector<StepBreakdown> breakdowns_;                        // per spec; traffic is the sum over rounds
  std::vector<std::vector<DecodeTimes>> round_times_;            // per spec and round: of a step
  std::vector<PeerRun> peers_;
};

Status SpeedMeter::say(const std::string& what) const {
  if (options_.progress) options_.progress(what);
  if (options_.cancel != nullptr && options_.cancel->load()) return cancelled("interrupted before the measurement was complete");
  return {};
}

Status SpeedMeter::open() {
  EngineOptions engine;
  engine.model_path = options_.model_path;
  engine.threads = options_.threads;
  engine.fast_tier_bytes = options_.fast_tier_bytes;
  engine.tier_directory = options_.tier_directory;
  engine.cancel = options_.cancel;
  KV_ASSIGN(engine_, Engine::open(engine));
  for (const CacheSpec& spec : options_.specs) KV_TRY(check_spec(spec, engine_->shape()));
  for (int depth : options_.depths) {
    if (std::int64_t{depth} + options_.gen + 1 > engine_->shape().context) {
      return exhausted(fmt::format("depth {} plus {} exceeds the model's context of {}; choose a smaller --depth or --gen", depth,
                                   counted(options_.gen, "generated token"), engine_->shape().context));
    }
  }
  if (!options_.peer) return {};
  PeerOptions peer;
  peer.threads = options_.threads;
  peer.cancel = options_.cancel;
  KV_ASSIGN(peer_, PeerLlama::open(options_.model_path, peer));
  return {};
}

// What the disk gives at most, to compare with what the steps ask of it.
Status SpeedMeter::measure_tier() {
  const auto on_disk = [](const CacheSpec& spec) { return spec.offload && spec.offload->tier == Tier::kDisk; };
  if (std::none_of(options_.specs.begin(), options_.specs.end(), on_disk)) return {};
  KV_TRY(say("random reads from the disk"));
  DiskRequest request;
  request.directory = options_.tier_directory;
  request.cancel = options_.cancel;
  KV_ASSIGN(report_.disk, measure_disk(request));
  return {};
}

Status SpeedMeter::open_peer_sessions(int depth) {
  peers_.clear();
  if (!peer_) return {};
  const std::pair<PeerCache, FlashAttention> kinds[] = {{PeerCache::kF16, FlashAttention::kOff},
                                                        {PeerCache::kF16, FlashAttention::kOn},
                                                        {PeerCache::kQ8_0, FlashAttention::kOn},
                                                        {PeerCache::kQ4_0, FlashAttention::kOn}};
  for (const auto& [cache, flash] : kinds) {
    PeerRun run;
    run.options.cache = cache;
    run.options.flash = flash;
    run.options.context = depth + options_.gen + 8;
    KV_ASSIGN(run.session, peer_->session(run.options));
    peers_.push_back(std::move(run));
  }
  return {};
}

// One prefill by us (shared by all caches: each adds its own sealing) and one by the peer for each f16 setting.
Status SpeedMeter::prefill_round(std::span<const Token> tokens) {
  note_probes();
  sealed_.clear();
  KV_ASSIGN(sealed_, engine_->prefill(tokens, options_.specs));
  for (std::size_t i = 0; i < sealed_.size(); ++i) {
    prefill_runs_[i].push_back(static_cast<double>(tokens.size()) / (sealed_[i].prefill_s + sealed_[i].compress_s));
  }
  for (PeerRun& run : peers_) {
    if (run.options.cache != PeerCache::kF16) continue;
    KV_TRY(say(fmt::format("llama.cpp prefill {}", tokens.size())));
    KV_TRY(run.session->rewind(0));
    KV_ASSIGN(double seconds, time_prefill(*run.session, tokens));
    run.prefill_runs.push_back(static_cast<double>(tokens.size()) / seconds);
  }
  return {};
}

Status SpeedMeter::fill_directly(int depth) {
  sealed_.clear();
  for (const CacheSpec& spec : options_.specs) {
    KV_TRY(say(fmt::format("direct fill {} {}", depth, spec.canonical)));
    KV_ASSIGN(Sequence sequence, engine_->fill(spec, depth));
    sealed_.push_back(std::move(sequence));
  }
  return read_weights();
}

// No prompt has read the weights of a model that was filled directly: the first cache's first step would wait for the disk.
Status SpeedMeter::read_weights() {
  Sequence fork = sealed_.front().fork();
  Sequence* list[] = {&fork};
  GenerateOptions generate;
  generate.max_tokens = 2;
  generate.ignore_end = true;
  return engine_->generate(list, generate).status();
}

Status SpeedMeter::fill_for_decode(std::span<const Token> tokens) {
  for (PeerRun& run : peers_) {
    if (run.session->depth() > 0) continue;
    KV_TRY(say(fmt::format("llama.cpp fill {} {}", peer_cache_name(run.options.cache), tokens.size())));
    KV_TRY(run.session->prefill(tokens));
  }
  return {};
}

Status SpeedMeter::decode_round(int depth) {
  note_probes();
  GenerateOptions generate;
  generate.max_tokens = options_.gen + 1;  // the first token is already predicted by the prefill
  generate.ignore_end = true;
  for (std::size_t i = 0; i < sealed_.size(); ++i) {
    KV_TRY(say(fmt::format("decode at {} {}", depth, options_.specs[i].canonical)));
    Sequence fork = sealed_[i].fork();
    Sequence* list[] = {&fork};
    const DecodeTimes before = engine_->decode_times();
    KV_ASSIGN(std::vector<Completion> done, engine_->generate(list, generate));
    StepBreakdown& breakdown = breakdowns_[i];
    round_times_[i].push_back(per_step(before, engine_->decode_times()));
    if (done[0].finish_reason == FinishReason::kCancelled) return cancelled("interrupted before the measurement was complete");
    decode_runs_[i].push_back(options_.gen / done[0].decode_s);
    breakdown.held = fork.cache.bytes();
    breakdown.cache_bytes = attended_bytes(fork.cache, engine_->shape().layer_count());
    breakdown.slow_medium = fork.cache.slow_medium();
    breakdown.steps += options_.gen;
    add_traffic(fork.cache.traffic(), &breakdown.traffic);  // a fork counts from zero
    report_.resident_bytes = resident_bytes();
  }
  for (PeerRun& run : peers_) {
    KV_TRY(say(fmt::format("llama.cpp decode at {} {}", depth, peer_cache_name(run.options.cache))));
    KV_ASSIGN(double seconds, time_decode(*run.session, depth, options_.gen));
    run.decode_runs.push_back(options_.gen / seconds);
  }
  return {};
}

SpeedRow make_row(std::string engine, std::string spec, std::string phase, int depth, const std::vector<double>& runs) {
  return {std::move(engine), std::move(spec), std::move(phase), depth, median(runs), runs, std::nullopt};
}

void SpeedMeter::collect(int depth) {
  for (std::size_t i = 0; i < options_.specs.size(); ++i) {
    const std::string& spec = options_.specs[i].canonical;
    if (!prefill_runs_[i].empty()) report_.rows.push_back(make_row(kOwnEngine, spec, "prefill", depth, prefill_runs_[i]));
    SpeedRow row = make_row(kOwnEngine, spec, "decode", depth, decode_runs_[i]);
    const WeightReads reads = engine_->weight_reads();
    row.breakdown = breakdowns_[i];
    row.breakdown->times = median_times(round_times_[i]);
    row.breakdown->layer_bytes = static_cast<std::int64_t>(reads.layers);
    row.breakdown->head_bytes = static_cast<std::int64_t>(reads.head);
    report_.rows.push_back(std::move(row));
  }
  // The better of flash attention on and off, for the peer's one cache type that has both.
  auto add_best = [&](PeerCache cache, const char* phase, std::vector<double> PeerRun::* runs) {
    const PeerRun* best = nullptr;
    for (const PeerRun& run : peers_) {
      if (run.options.cache != cache || (run.*runs).empty()) continue;
      if (best == nullptr || median(run.*runs) > median(best->*runs)) best = &run;
    }
    if (best == nullptr) return;
    const char* flash = best->options.flash == FlashAttention::kOn ? "on" : "off";
    report_.rows.push_back(
        make_row("llama.cpp", fmt::format("{} (flash attention {})", peer_cache_name(cache), flash), phase, depth, best->*runs));
  };
  add_best(PeerCache::kF16, "prefill", &PeerRun::prefill_runs);
  for (PeerCache cache : {PeerCache::kF16, PeerCache::kQ8_0, PeerCache::kQ4_0}) add_best(cache, "decode", &PeerRun::decode_runs);
}

Status SpeedMeter::prefill_rounds(std::span<const Token> tokens, int depth) {
  const int rounds = depth == 0 ? 1 : options_.prefill_rounds;
  for (int round = 0; round < rounds; ++round) {
    KV_TRY(say(fmt::format("prefill {} round {} of {}", depth, round + 1, rounds)));
    KV_TRY(prefill_round(tokens));
  }
  if (depth > 0) return {};
  for (auto& runs : prefill_runs_) runs.clear();
  for (PeerRun& run : peers_) run.prefill_runs.clear();
  return {};
}

Status SpeedMeter::measure_depth(int depth) {
  prefill_runs_.assign(options_.specs.size(), {});
  decode_runs_.assign(options_.specs.size(), {});
  breakdowns_.assign(options_.specs.size(), {});
  round_times_.assign(options_.specs.size(), {});
  KV_TRY(open_peer_sessions(depth));
  // Decode at depth 0 needs a first token all the same; a prefill of so few tokens says nothing and is not reported.
  const std::vector<Token> tokens = some_tokens(std::max(depth, 1), engine_->vocabulary());
  if (options_.fill == Fill::kDirect) {
    KV_TRY(fill_directly(std::max(depth, 1)));
  } else {
    KV_TRY(prefill_rounds(tokens, depth));
  }
  KV_TRY(fill_for_decode(tokens));
  for (int round = 0; round < options_.decode_rounds; ++round) KV_TRY(decode_round(static_cast<int>(tokens.size())));
  collect(depth);
  return {};
}

Result<SpeedReport> SpeedMeter::run() {
  KV_TRY(open());
  KV_TRY(measure_tier());
  for (int depth : options_.depths) KV_TRY(measure_depth(depth));
  report_.read_gb_per_s = median(report_.read_runs);
  report_.compute_gflop_per_s = median(report_.compute_runs);
  return std::move(report_);
}

}  // namespace

Result<SpeedReport> measure_speed(const SpeedOptions& options) {
  KV_CHECK(!options.specs.empty() && !options.depths.empty());
  return SpeedMeter(options).run();
}

double read_bandwidth(int threads) {
  constexpr std::size_t kFloats = std::size_t{64} << 20;  // 256 MB, more than any cache
  static const std::vector<float> buffer(kFloats, 1.0F);
  constexpr int kParts = 64;
  double sums[kParts] = {};
  const double begin = Clock::real().seconds();
  parallel_for(threads, kParts, [&](int part, int) {
    const float* p = buffer.data() + static_cast<std::size_t>(part) * (kFloats / kParts);
    float lanes[64] = {};
    for (std::size_t i = 0; i < kFloats / kParts; i += 64) {
      for (std::size_t l = 0; l < 64; ++l) lanes[l] += p[i + l];
    }
    for (float lane : lanes) sums[part] += static_cast<double>(lane);
  });
  const double seconds = Clock::real().seconds() - begin;
  double sum = 0;
  for (double s : sums) sum += s;
  KV_CHECK(sum > 0);
  return static_cast<double>(kFloats * sizeof(float)) / seconds * 1e-9;
}

}  // namespace kvartet
