#include "bench/self_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "bench/fidelity.h"
#include "cache/spec_list.h"
#include "engine/prompt.h"
#include "model/key_bias.h"
#include "model/model_facts.h"

namespace kvartet {
namespace {

constexpr int kContext = 425;  // 384 in front, three times KIVI's usual residual window; 40 compared
constexpr int kCompared = 40;
constexpr int kShortestContext = 48;
constexpr double kLargeKeyBias = 100;                // Qwen2.5-7B: 605 and 921 where 3-bit keys collapse, 22 where they do not
constexpr std::uint64_t kTinyModel = 1'000'000'000;  // parameters
constexpr int kShortHead = 64;

// ---- the parts of a canonical spec

struct Stages {
  std::string evict;  // without the '+' behind it
  std::string quantize;
};

Stages stages_of(const CacheSpec& spec) {
  if (spec.evict == Evict::kNone) return {"", spec.canonical};
  const std::size_t plus = spec.canonical.find('+');
  if (plus == std::string::npos) return {spec.canonical, ""};
  return {spec.canonical.substr(0, plus), spec.canonical.substr(plus + 1)};
}

bool is_exact(const FormatRequest& side) { return side.name == "f16" || side.name == "f32"; }
bool quantizes(const CacheSpec& spec) { return !spec.offload && !(is_exact(spec.key) && is_exact(spec.value)); }

// Bits of a code of the keys; 16 and more where they are exact.
int key_bits(const CacheSpec& spec, const ModelShape& shape) {
  const Result<TileFormat> format = make_tile_format(spec.key, Side::kKey, shape.layers.front().head_dim);
  return format.ok() ? format->bits : 16;
}

// A scale, or a rotation, that channels of one row share: one large channel spoils the others.
bool shares_scale_in_row(const FormatRequest& key) { return !is_exact(key) && key.name != "kivi"; }

// `stage` with `factor` times as many rows, by the first of its settings that counts rows; empty: it has none.
std::string with_more_rows(const std::string& stage, double factor) {
  for (const std::string_view name : {"budget=", "target=", "window="}) {
    const std::size_t at = stage.find(name);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + name.size();
    const std::size_t end = std::min(stage.find(',', begin), stage.size());
    double value = 0;
    if (std::from_chars(stage.data() + begin, stage.data() + end, value).ec != std::errc()) return "";
    const double more = value < 1 ? std::min(0.9, value * factor) : std::round(value * factor);
    if (more <= value) return "";
    return stage.substr(0, begin) + fmt::format("{:g}", more) + stage.substr(end);
  }
  return "";
}

std::vector<std::string> safer_texts(const CacheSpec& spec, int bits, bool biased) {
  std::vector<std::string> texts;
  if (!quantizes(spec)) {
    const std::string& stage = spec.canonical;
    for (const double factor : {2.0, 4.0}) texts.push_back(with_more_rows(stage, factor));
    return texts;
  }
  const Stages stages = stages_of(spec);
  const std::string evict = stages.evict.empty() ? "" : stages.evict + "+";
  if (biased && !spec.center_keys && shares_scale_in_row(spec.key)) {
    const bool has_settings = stages.quantize.find(':') != std::string::npos;
    texts.push_back(evict + stages.quantize + (has_settings ? "," : ":") + "center=mean");
  }
  if (bits < 4 || spec.key.name != "kivi") texts.push_back(evict + "kivi:bits=4");
  texts.push_back(evict + "kivi:bits=8");
  texts.push_back(evict + "q8_0");
  texts.push_back(evict + "q8_0/full");  // cam adds to its values: they stay exact
  return texts;
}

const FidelityRow* row_of(const FidelityReport& report, const std::string& spec) {
  for (const FidelityRow& row : report.rows) {
    if (row.spec == spec) return &row;
  }
  return nullptr;
}

// The text and the numbers, for a model of this context.
struct Probe {
  std::vector<Token> text;
  FidelityRequest request;
};

Result<Probe> make_probe(const Engine& engine) {
  Probe probe;
  KV_ASSIGN(probe.text, build_prompt(engine.vocabulary(), PromptForm::kRaw, {std::string(self_check_text()), ""}));
  probe.request.context = std::min({kContext, static_cast<int>(probe.text.size()), engine.shape().context});
  probe.request.tokens = std::min(kCompared, probe.request.context / 4);
  if (probe.request.context >= kShortestContext) return probe;
  return bad_input(
      fmt::format("a context of {} tokens is too short for any self-check, which needs {}; leave it out with --no-self-check",
                  probe.request.context, kShortestContext));
}

}  // namespace

SelfCheckVerdict verdict_of(const SelfCheck& check) {
  if (!check.acted) return SelfCheckVerdict::kIdle;
  const Result<CacheSpec> spec = parse_spec(check.spec);
  const bool fewer_rows = spec.ok() && (spec->evict != Evict::kNone || spec->offload.has_value());
  return check.top1_agreement < (fewer_rows ? kPoorAgreementOfFewerRows : kPoorAgreement) ? SelfCheckVerdict::kPoor
                                                                                          : SelfCheckVerdict::kGood;
}

std::string self_check_probe() { return fmt::format("1:{}:{}", kContext, kCompared); }

bool needs_self_check(const CacheSpec& spec) { return spec.canonical != "full" && spec.canonical != "f32"; }

Result<ModelSuspects> model_suspects(const std::string& model_path) {
  ModelSuspects suspects;
  KV_ASSIGN(const ModelFacts facts, read_model_facts(model_path));
  suspects.parameters = facts.parameters;
  KV_ASSIGN(std::vector<double> norms, key_bias_norms(model_path));
  if (norms.empty()) return suspects;
  const auto largest = std::max_element(norms.begin(), norms.end());
  suspects.key_bias_norm = *largest;
  suspects.key_bias_layer = static_cast<int>(largest - norms.begin());
  std::nth_element(norms.begin(), norms.begin() + std::ssize(norms) / 2, norms.end());
  suspects.usual_key_bias = norms[norms.size() / 2];
  return suspects;
}

std::string usual_cause(const CacheSpec& spec, const ModelShape& shape, const ModelSuspects& suspects) {
  if (!quantizes(spec)) return "";
  const int bits = key_bits(spec, shape);
  if (suspects.key_bias_norm >= kLargeKeyBias && shares_scale_in_row(spec.key) && !spec.center_keys) {
    return fmt::format(
        "the keys of this model have large biases (norm {:.0f} in layer {}, median {:.0f}), and {} shares its codes between "
        "large "
        "and small channels of a key",
        suspects.key_bias_norm, suspects.key_bias_layer, suspects.usual_key_bias, spec.key.name);
  }
  const int head_dim = shape.layers.front().head_dim;
  if (head_dim < kShortHead && bits <= 4) {
    return fmt::format(
        "heads of {} channels are short for {} of few bits: errors average out over fewer channels than in heads of "
        "64 and more",
        head_dim, spec.key.name);
  }
  if (suspects.parameters < kTinyModel && bits <= 3) {
    return fmt::format("small models lose first when keys have {} bits, and this one has {} million parameters", bits,
                       (suspects.parameters + 500'000) / 1'000'000);
  }
  return "";
}

std::vector<CacheSpec> safer_specs(const CacheSpec& spec, const ModelShape& shape, const ModelSuspects& suspects) {
  std::vector<CacheSpec> safer;
  for (const std::string& text : safer_texts(spec, key_bits(spec, shape), suspects.key_bias_norm >= kLargeKeyBias)) {
    if (text.empty()) continue;
    Result<CacheSpec> candidate = parse_spec(text);
    if (!candidate.ok() || !check_spec(*candidate, shape).ok() || candidate->canonical == spec.canonical) continue;
    add_once(&safer, std::move(*candidate));
  }
  return safer;
}

Result<std::vector<SelfCheck>> self_check(Engine& engine, std::span<const CacheSpec> specs, const ModelSuspects& suspects,
                                          const Engine::Progress& progress) {
  std::vector<SelfCheck> checks;
  if (specs.empty()) return checks;
  KV_ASSIGN(const Probe probe, make_probe(engine));
  KV_ASSIGN(const FidelityReport report, measure_fidelity(engine, probe.text, probe.request, specs, progress));
  std::vector<std::vector<CacheSpec>> safer(specs.size());
  std::vector<CacheSpec> second_round;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const FidelityRow& row = *row_of(report, specs[i].canonical);
    checks.push_back({.spec = row.spec,
                      .seen = probe.request.context,
                      .tokens = row.tokens,
                      .top1_agreement = row.top1_agreement,
                      .kl_mean = row.kl_mean,
                      .acted = row.acted,
                      .cause = "",
                      .safe_spec = "",
                      .safe_agreement = 0});
    if (verdict_of(checks[i]) != SelfCheckVerdict::kPoor) continue;
    checks[i].cause = usual_cause(specs[i], engine.shape(), suspects);
    safer[i] = safer_specs(specs[i], engine.shape(), suspects);
    for (const CacheSpec& s : safer[i]) add_once(&second_round, s);
  }
  if (second_round.empty()) return checks;
  KV_ASSIGN(const FidelityReport second, measure_fidelity(engine, probe.text, probe.request, second_round, progress));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (const CacheSpec& s : safer[i]) {
      const FidelityRow& row = *row_of(second, s.canonical);
      if (!row.acted || row.top1_agreement < kPoorAgreement) continue;
      checks[i].safe_spec = s.canonical;
      checks[i].safe_agreement = row.top1_agreement;
      break;
    }
  }
  return checks;
}

std::string self_check_sentence(const SelfCheck& check) {
  switch (verdict_of(check)) {
    case SelfCheckVerdict::kGood: return "";
    case SelfCheckVerdict::kIdle:
      return fmt::format(
          "{} was not checked: on the {} tokens of the self-check it dropped nothing and wrote nothing in fewer bits; 'kvartet "
          "fidelity' with a longer text tells",
          check.spec, check.seen);
    case SelfCheckVerdict::kPoor: break;
  }
  std::string sentence =
      fmt::format("{} does not go with this model: the most likely token is full's at only {:.0f} % of {} positions", check.spec,
                  100 * check.top1_agreement, check.tokens);
  if (!check.cause.empty()) sentence += "; " + check.cause;
  if (check.safe_spec.empty()) return sentence + "; use full";
  return sentence + fmt::format("; {} is at {:.0f} % there", check.safe_spec, 100 * check.safe_agreement);
}

}  // namespace kvartet
