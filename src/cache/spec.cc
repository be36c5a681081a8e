#include "cache/spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include <fmt/format.h>

#include "cache/offload_cache.h"
#include "cache/spec_grammar.h"
#include "cache/spec_method.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 2> kPlanned = {"nvfp4", "higgs"};

bool is_evictor(const SpecStage& stage) { return find_method(evictor_methods(), stage.name.key) != nullptr; }

std::vector<std::string_view> names_of(std::initializer_list<std::span<const SpecMethod>> tables) {
  std::vector<std::string_view> names;
  for (const std::span<const SpecMethod> table : tables)
    for (const SpecMethod& method : table) names.emplace_back(method.info.name);
  return names;
}

std::vector<std::string_view> built_names() { return names_of({quantizer_methods(), evictor_methods(), offload_methods()}); }

// ---- names and their order

Status check_name(std::string_view name) {
  const std::vector<std::string_view> built = built_names();
  if (contains(built, name)) return {};
  if (contains(kPlanned, name)) {
    return usage_error(fmt::format("{} is not built yet; 'kvartet methods' lists what is", quoted(name)));
  }
  std::vector<std::string_view> all = built;
  all.insert(all.end(), kPlanned.begin(), kPlanned.end());
  const std::optional<std::string_view> likely = likely_name(name, all);
  if (!likely)
    return usage_error(
        fmt::format("unknown cache method {}; 'full' is the plain one, 'kvartet methods' lists all", quoted(name)));
  return usage_error(fmt::format("unknown cache method {}; the nearest is '{}'{}; 'kvartet methods' lists all", quoted(name),
                                 *likely, contains(built, *likely) ? "" : ", which is not built yet"));
}

Status check_names(const SpecStage& stage) {
  KV_TRY(check_name(stage.name.key));
  KV_TRY(check_name(stage.name.value));
  if (!stage.name.paired()) return {};
  for (const std::string& name : {stage.name.key, stage.name.value}) {
    if (find_method(quantizer_methods(), name) != nullptr) continue;
    return usage_error(
        fmt::format("'{}' decides for keys and values together and cannot be half of the pair {}; pairs are made of {}", name,
                    quoted(stage_name(stage)), list_names(names_of({quantizer_methods()}))));
  }
  return {};
}

std::string print_stage(const SpecStage& stage) {
  std::string text = stage_name(stage);
  for (const SpecSetting& setting : stage.settings) {
    text += fmt::format("{}{}={}", &setting == stage.settings.data() ? ':' : ',', setting.name, print_sided(setting.value));
  }
  return text;
}

// Allowed: one evict stage, one quantize stage, or evict+quantize.
Status check_order(const std::vector<SpecStage>& stages) {
  for (const SpecStage& stage : stages) {
    if (stages.size() == 1 || find_method(offload_methods(), stage.name.key) == nullptr) continue;
    return usage_error(
        fmt::format("'{0}' decides how rows are kept, written and found, and does not combine with other stages; write {0} alone",
                    stage_name(stage)));
  }
  const SpecStage* evict = nullptr;
  const SpecStage* quantize = nullptr;
  for (const SpecStage& stage : stages) {
    const SpecStage*& slot = is_evictor(stage) ? evict : quantize;
    if (slot != nullptr) {
      return usage_error(fmt::format("'{}' and '{}' both {}; keep one, in the order evict+quantize, such as snapkv+kivi",
                                     stage_name(*slot), stage_name(stage), is_evictor(stage) ? "evict" : "quantize"));
    }
    slot = &stage;
  }
  if (evict == nullptr || quantize == nullptr) return {};
  if (is_evictor(stages.back())) {
    // The other order is the advice, unless that is refused too.
    KV_TRY(parse_spec(print_stage(*evict) + "+" + print_stage(*quantize)).status());
    return usage_error(fmt::format("'{0}+{1}' quantizes before it evicts, but rows are chosen by exact scores; write {1}+{0}",
                                   stage_name(*quantize), stage_name(*evict)));
  }
  if (quantize->name.key == "full" && !quantize->name.paired()) {
    return usage_error(
        fmt::format("'+full' adds nothing: {0} keeps its rows in f16 anyway; write {0} alone", stage_name(*evict)));
  }
  if (evict->name.key == "streamingllm" && (quantize->name.key == "kivi" || quantize->name.value == "kivi")) {
    return usage_error(
        "'streamingllm+kivi' cannot work: streamingllm drops single rows at every step, and KIVI's key groups hold several rows "
        "that share one scale; write streamingllm+q8_0 or snapkv+kivi");
  }
  return {};
}

// What evicting row by row asks of the formats (section 8).
Status check_row_formats(const CacheSpec& spec, std::string_view evictor) {
  if (!spec.drops_after_steps()) return {};
  const bool groups = spec.key.name == "kivi" || spec.value.name == "kivi";
  if (spec.key.name == "qjl" && (groups || spec.residual > 0)) {
    return usage_error(fmt::format(
        "'{0}' drops single rows after every step, and those that qjl has moved into its coded part cannot leave it; write "
        "{0}+qjl/full:residual=0",
        evictor));
  }
  if (groups || spec.residual > 0) {
    return usage_error(fmt::format(
        "'{0}' cannot be combined with {1}: {0} drops single rows after every step, and {2}; write {0}+q8_0{3} or snapkv+kivi",
        evictor, groups ? "kivi" : "a residual window",
        groups ? "KIVI's key groups hold several rows that share one scale"
               : "rows that moved into the coded part cannot leave it",
        spec.evict == Evict::kCam ? "/full" : ""));
  }
  if (spec.evict != Evict::kCam) return {};
  const auto exact = [](const FormatRequest& request) { return request.name == "f16" || request.name == "f32"; };
  if (!exact(spec.value)) {
    return usage_error(
        fmt::format("'cam' adds to values it has kept, and adding to {} values would round them again at every merge; keep the "
                    "values exact, such as cam+q8_0/full",
                    spec.value.name));
  }
  if (spec.interval > 1 && !exact(spec.key) && spec.key.name != "q8_0") {
    return usage_error(fmt::format(
        "'cam' with interval={} moves rows, and moving {} keys would round them again; write interval=1 or cam+q8_0/full",
        spec.interval, spec.key.name));
  }
  return {};
}

Result<std::string> read_stage(const SpecStage& stage, CacheSpec* spec) {
  const SpecMethod* offload = find_method(offload_methods(), stage.name.key);
  if (offload != nullptr) return offload->read(stage, spec);
  const SpecMethod* evictor = find_method(evictor_methods(), stage.name.key);
  return evictor != nullptr ? evictor->read(stage, spec) : read_quantizer(stage, spec);
}

}  // namespace

int Budget::rows(int tokens, int least) const {
  if (value >= 1) return static_cast<int>(value);
  // The slack keeps 0.07 * 100 at 7, where the product in floating point is a little more.
  const double exact = value * tokens;
  return std::max(least, static_cast<int>(std::ceil(exact - 1e-9 * (1 + exact))));
}

CacheSpec CacheSpec::for_layer(int layer) const {
  const auto holds = [layer](const LayerRange& r) { return r.first <= layer && layer <= r.last; };
  if (std::none_of(keep.begin(), keep.end(), holds)) return *this;
  CacheSpec kept = *this;
  kept.key = FormatRequest();
  kept.value = FormatRequest();
  kept.residual = 0;
  kept.center_keys = false;
  return kept;
}

Result<CacheSpec> parse_spec(std::string_view text) {
  KV_ASSIGN(const std::vector<SpecStage> stages, parse_stages(text));
  for (const SpecStage& stage : stages) KV_TRY(check_names(stage));
  KV_TRY(check_order(stages));
  CacheSpec spec;
  for (const SpecStage& stage : stages) {
    KV_ASSIGN(const std::string canonical, read_stage(stage, &spec));
    spec.canonical += (spec.canonical.empty() ? "" : "+") + canonical;
  }
  for (const SpecStage& stage : stages) {
    if (is_evictor(stage)) KV_TRY(check_row_formats(spec, stage.name.key));
  }
  return spec;
}

Status check_spec(const CacheSpec& spec, const ModelShape& shape) {
  if (!spec.keep.empty() && spec.keep.back().last >= shape.layer_count()) {
    return usage_error(
        fmt::format("keep names layer {}, but this model has layers 0 to {}", spec.keep.back().last, shape.layer_count() - 1));
  }
  int checked = 0;  // head_dim: making formats to see whether they fit is not cheap, and most models have one size
  for (const LayerShape& layer : shape.layers) {
    if (layer.head_dim == checked) continue;
    KV_TRY(check_formats(spec, layer));
    checked = layer.head_dim;
  }
  if (spec.rerotate && shape.rope.dims == 0) {
    return usage_error(
        "rope=rerotate turns stored keys, but this model's rotation is not one table of angles (YaRN, or other angles in layers "
        "with windows); use rope=absolute");
  }
  if (spec.offload) return OffloadCache::check(*spec.offload, shape);
  return {};
}

const std::vector<MethodInfo>& methods() {
  static const std::vector<MethodInfo> kMethods = [] {
    std::vector<MethodInfo> all;
    for (const std::span<const SpecMethod> table : {quantizer_methods(), evictor_methods(), offload_methods()})
      for (const SpecMethod& method : table) all.push_back(method.info);
    return all;
  }();
  return kMethods;
}

}  // namespace kvartet
