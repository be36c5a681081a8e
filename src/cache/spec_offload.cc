// The methods that leave rows in the slow tier and select some for every query, as a spec names them.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cache/spec_method.h"
#include "offload/presets.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 26> kKeys = {"budget", "chunk",   "index", "meta",   "partial",  "skew",   "factors",
                                                    "window", "keys",    "rank",  "values", "rope",     "groups", "aggregate",
                                                    "share",  "queries", "run",   "sinks",  "outliers", "local",  "segments",
                                                    "min",    "dense",   "tier",  "cache",  "generated"};
constexpr std::array<std::string_view, 4> kAggregates = {"maxsoftmax", "meanquery", "maxlogit", "sumsoftmax"};
constexpr std::array<std::string_view, 2> kShares = {"group", "head"};
constexpr std::array<std::string_view, 2> kQuerySources = {"own", "guessed"};
constexpr std::array<std::string_view, 2> kSkews = {"prompt", "none"};
constexpr std::array<std::string_view, 2> kGroups = {"head", "joint"};
constexpr std::array<std::string_view, 2> kRopes = {"pre", "post"};
constexpr std::array<std::string_view, 2> kOutliers = {"first", "cosine"};
constexpr std::array<std::string_view, 2> kSegments = {"chunks", "infix"};
constexpr std::array<std::string_view, 3> kTiers = {"ram", "mmap", "disk"};
constexpr int kLargestChunk = 256;
constexpr int kLargestRun = 64;
constexpr int kMostFactors = 1024;
constexpr std::string_view kLowRank = "svd";

std::string print_amount(const Amount& amount) {
  return amount.share ? fmt::format("{}", amount.value) : fmt::format("{}", static_cast<int>(amount.value));
}

// The index of the key's word, or of `otherwise` if the stage does not say.
Result<std::size_t> word_index(const SpecStage& stage, std::string_view key, Names words, std::size_t otherwise) {
  KV_ASSIGN(const std::string text, single_text(stage, key, words[otherwise]));
  const auto found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  return usage_error(fmt::format("{}={} is unknown; {}", key, quoted(text), choice_hint(text, words, fmt::format("{}=", key))));
}

Status read_amount(const SpecStage& stage, std::string_view key, int least, Amount* amount) {
  if (stage.find(key) == nullptr) return {};
  KV_ASSIGN(const std::string text, single_text(stage, key, ""));
  if (text.find_first_not_of("-0123456789") == std::string::npos) {
    KV_ASSIGN(const int tokens, parse_whole(key, text, least, kMostRows));
    *amount = {static_cast<double>(tokens), false};
    return {};
  }
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share, std::chars_format::general);
  if (error == std::errc() && end == text.data() + text.size() && share > 0 && share < 1) {
    *amount = {share, true};
    return {};
  }
  return usage_error(
      fmt::format("{}={} is neither a whole number of tokens nor a share of the prompt between 0 and 1; write "
                  "tokens such as 64, or a share such as 0.03125",
                  key, quoted(text)));
}

Status read_cache_share(const SpecStage& stage, double* share) {
  if (stage.find("cache") == nullptr) return {};
  KV_ASSIGN(const std::string text, single_text(stage, "cache", ""));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *share, std::chars_format::general);
  if (error == std::errc() && end == text.data() + text.size() && *share >= 0 && *share <= 1) return {};
  return usage_error(fmt::format("cache={} is not a share of the rows; write a number from 0 (no row cache) to 1", quoted(text)));
}

// Whole numbers of tokens are whole chunks (offloading.md 1.4: must divide exactly), or whole runs of them.
Status check_whole_chunks(std::string_view key, const Amount& amount, int chunk, int run) {
  const int tokens = static_cast<int>(amount.value);
  const int least = chunk * run;
  if (amount.share || tokens % least == 0) return {};
  const std::string what = run == 1 ? fmt::format("chunk={}", chunk) : fmt::format("chunk={} times run={}", chunk, run);
  const int below = tokens / least * least;
  if (below == 0) {
    return usage_error(fmt::format("{0}={1} is less than one {2}; the nearest is {0}={3}", key, tokens, what, least));
  }
  return usage_error(fmt::format("{}={} is not a multiple of {}; the nearest are {}={} and {}={}", key, tokens, what, key, below,
                                 key, below + least));
}

// Landmarks are written and scanned 64 at a time: runs that divide that never straddle what is added later.
Status read_run(const SpecStage& stage, int* run) {
  KV_ASSIGN(*run, single_whole(stage, "run", *run, 1, kLargestRun));
  if (std::has_single_bit(static_cast<unsigned>(*run))) return {};
  const auto below = static_cast<int>(std::bit_floor(static_cast<unsigned>(*run)));
  return usage_error(fmt::format("run={} is not a power of two; the nearest are run={} and run={}", *run, below, 2 * below));
}

std::vector<std::string_view> index_words() {
  std::vector<std::string_view> words(row_format_names().begin(), row_format_names().end());
  words.insert(words.end(), {"residual", "bounds", "digest", "partial", "factors"});
  return words;
}

std::size_t index_word(const IndexOptions& index) {
  const std::size_t formats = row_format_names().size();
  switch (index.kind) {
    case IndexKind::kMean: return static_cast<std::size_t>(index.format);
    case IndexKind::kResidual: return formats;
    case IndexKind::kBounds: return formats + 1;
    case IndexKind::kDigest: return formats + 2;
    case IndexKind::kPartial: return formats + 3;
    case IndexKind::kFactors: return formats + 4;
  }
  return 0;
}

void set_index(std::size_t word, IndexOptions* index) {
  const std::size_t formats = row_format_names().size();
  if (word < formats) {
    index->kind = IndexKind::kMean;
    index->format = row_format_at(word);
    return;
  }
  constexpr std::array<IndexKind, 5> kKinds = {IndexKind::kResidual, IndexKind::kBounds, IndexKind::kDigest, IndexKind::kPartial,
                                               IndexKind::kFactors};
  index->kind = kKinds[word - formats];
  index->format = index->kind == IndexKind::kResidual ? RowFormat::kHiggs1 : RowFormat::kBf16;
}

// Keys that belong to one kind of index are refused with another.
Status check_index_keys(const SpecStage& stage, IndexKind kind, std::string_view word) {
  struct Owned {
    std::string_view key;
    std::string_view index;
    bool fits;
  };
  const std::array<Owned, 5> owned = {{{"meta", "residual", kind == IndexKind::kResidual},
                                       {"partial", "partial", kind == IndexKind::kPartial},
                                       {"skew", "partial", kind == IndexKind::kPartial},
                                       {"factors", "factors", kind == IndexKind::kFactors},
                                       {"window", "partial or index=factors", is_projected(kind)}}};
  for (const Owned& o : owned) {
    if (o.fits || stage.find(o.key) == nullptr) continue;
    return usage_error(fmt::format("{}= belongs to index={}, and this index is '{}'; leave it out", o.key, o.index, word));
  }
  return {};
}

Status read_index(const SpecStage& stage, SelectOptions* options) {
  KV_ASSIGN(options->index.chunk, single_whole(stage, "chunk", options->index.chunk, 1, kLargestChunk));
  const std::vector<std::string_view> words = index_words();
  const std::size_t otherwise = index_word(options->index);
  KV_ASSIGN(const std::size_t word, word_index(stage, "index", words, otherwise));
  if (word != otherwise) set_index(word, &options->index);
  KV_ASSIGN(options->index.meta, single_whole(stage, "meta", options->index.meta, 1, kLargestChunk));
  KV_ASSIGN(options->index.partial, single_share(stage, "partial", options->index.partial));
  if (options->index.partial == 0) return usage_error("partial=0 keeps no channel; write a share above 0 and up to 1");
  KV_ASSIGN(const std::size_t skew, word_index(stage, "skew", kSkews, static_cast<std::size_t>(options->index.skew)));
  options->index.skew = static_cast<Skew>(skew);
  KV_ASSIGN(options->index.factors, single_whole(stage, "factors", options->index.factors, 1, kMostFactors));
  KV_ASSIGN(options->index.window, single_whole(stage, "window", options->index.window, 1, kMostRows));
  return check_index_keys(stage, options->index.kind, words[word]);
}

Status read_stores(const SpecStage& stage, SelectOptions* options) {
  std::vector<std::string_view> words(row_format_names().begin(), row_format_names().end());
  KV_ASSIGN(const std::size_t values, word_index(stage, "values", words, static_cast<std::size_t>(options->values)));
  options->values = row_format_at(values);
  words.push_back(kLowRank);
  const std::size_t otherwise = options->low_rank_keys ? words.size() - 1 : static_cast<std::size_t>(options->keys);
  KV_ASSIGN(const std::size_t keys, word_index(stage, "keys", words, otherwise));
  options->low_rank_keys = keys == words.size() - 1;
  if (!options->low_rank_keys) options->keys = row_format_at(keys);
  KV_ASSIGN(const std::size_t rope,
            word_index(stage, "rope", kRopes, options->low_rank_keys ? 0 : static_cast<std::size_t>(options->rope)));
  options->rope = static_cast<KeyRope>(rope);
  KV_ASSIGN(const std::size_t groups, word_index(stage, "groups", kGroups, static_cast<std::size_t>(options->groups)));
  options->groups = static_cast<RowGroup>(groups);
  if (options->low_rank_keys && options->rope == KeyRope::kPost) {
    return usage_error("keys=svd factorizes keys before rotation, where they are close to low rank; write rope=pre");
  }
  KV_ASSIGN(options->rank, single_whole(stage, "rank", options->rank, 1, kMostRows));
  if (stage.find("rank") != nullptr && !options->low_rank_keys) {
    return usage_error(fmt::format("rank= belongs to keys=svd, and these keys are '{}'; leave it out", words[keys]));
  }
  return {};
}

Status read_selection(const SpecStage& stage, SelectOptions* options) {
  KV_ASSIGN(const std::size_t aggregate,
            word_index(stage, "aggregate", kAggregates, static_cast<std::size_t>(options->aggregate)));
  options->aggregate = static_cast<Aggregate>(aggregate);
  KV_ASSIGN(const std::size_t share, word_index(stage, "share", kShares, static_cast<std::size_t>(options->share)));
  options->share = static_cast<Share>(share);
  KV_ASSIGN(const std::size_t queries, word_index(stage, "queries", kQuerySources, static_cast<std::size_t>(options->queries)));
  options->queries = static_cast<QuerySource>(queries);
  return read_run(stage, &options->run);
}

Status check_generated(const SelectOptions& options) {
  if (options.generated == 0) return {};
  if (is_projected(options.index.kind)) {
    return usage_error(
        "generated= lets rows of the answer go far, and this index is made from the prompt's queries and takes no rows later; "
        "leave it out, or write an index= of landmarks such as higgs2");
  }
  if (options.low_rank_keys) {
    return usage_error(
        "generated= lets rows of the answer go far, and keys=svd factorizes the prompt's keys alone; leave it out, or write "
        "keys=f16");
  }
  if (options.generated >= options.block_rows()) return {};
  return usage_error(fmt::format("generated={0} is less than the {1} rows that go far at once; the nearest is generated={1}",
                                 options.generated, options.block_rows()));
}

Status read_segments(const SpecStage& stage, SelectOptions* options) {
  KV_TRY(read_amount(stage, "budget", 1, &options->budget));
  KV_TRY(read_amount(stage, "sinks", 0, &options->sinks));
  KV_TRY(read_amount(stage, "local", 0, &options->local));
  const int chunk = options->index.chunk;
  const std::size_t usual = chunk == 1 ? 0 : static_cast<std::size_t>(options->outliers);
  KV_ASSIGN(const std::size_t outliers, word_index(stage, "outliers", kOutliers, usual));
  options->outliers = static_cast<OutlierRule>(outliers);
  if (options->outliers == OutlierRule::kCosine && chunk == 1) {
    return usage_error(
        "outliers=cosine compares a chunk's keys with their mean, and a chunk of one is its mean; write outliers=first");
  }
  if (options->outliers == OutlierRule::kCosine && options->run > 1) {
    return usage_error(
        "run= selects neighbours together, and outliers=cosine takes chunks out from between them; write outliers=first");
  }
  KV_ASSIGN(const std::size_t segments, word_index(stage, "segments", kSegments, static_cast<std::size_t>(options->segments)));
  options->segments = static_cast<Segmentation>(segments);
  KV_ASSIGN(options->least_prompt, single_whole(stage, "min", options->least_prompt, 0, kMostRows));
  KV_ASSIGN(options->dense_layers, single_whole(stage, "dense", options->dense_layers, 0, kMostRows));
  if (options->queries == QuerySource::kGuessed && options->dense_layers == 0) {
    return usage_error(
        "dense=0 with queries=guessed: nothing runs before the first layer that could suggest its queries; write dense=1");
  }
  KV_ASSIGN(const std::size_t tier, word_index(stage, "tier", kTiers, static_cast<std::size_t>(options->tier)));
  options->tier = static_cast<Tier>(tier);
  KV_TRY(read_cache_share(stage, &options->cache_share));
  KV_ASSIGN(options->generated, single_whole(stage, "generated", options->generated, 0, kMostRows));
  KV_TRY(check_whole_chunks("budget", options->budget, chunk, options->run));
  if (options->segments == Segmentation::kInfix) return {};
  KV_TRY(check_whole_chunks("sinks", options->sinks, chunk, options->run));
  return check_whole_chunks("local", options->local, chunk, options->run);
}

std::string print_options(const SelectOptions& options) {
  std::string text = fmt::format("budget={},chunk={},index={}", print_amount(options.budget), options.index.chunk,
                                 index_words()[index_word(options.index)]);
  if (options.index.kind == IndexKind::kResidual) text += fmt::format(",meta={}", options.index.meta);
  if (options.index.kind == IndexKind::kPartial) {
    text += fmt::format(",partial={},skew={}", options.index.partial, kSkews[static_cast<std::size_t>(options.index.skew)]);
  }
  if (options.index.kind == IndexKind::kFactors) text += fmt::format(",factors={}", options.index.factors);
  if (is_projected(options.index.kind)) text += fmt::format(",window={}", options.index.window);
  text += fmt::format(",keys={}", options.low_rank_keys ? kLowRank : row_format_name(options.keys));
  if (options.low_rank_keys) text += fmt::format(",rank={}", options.rank);
  text += fmt::format(",values={},rope={}", row_format_name(options.values), kRopes[static_cast<std::size_t>(options.rope)]);
  if (options.groups == RowGroup::kJoint) text += ",groups=joint";
  text += fmt::format(",aggregate={},share={}", kAggregates[static_cast<std::size_t>(options.aggregate)],
                      kShares[static_cast<std::size_t>(options.share)]);
  if (options.queries == QuerySource::kGuessed) text += ",queries=guessed";
  if (options.run > 1) text += fmt::format(",run={}", options.run);
  text += fmt::format(",sinks={},outliers={},local={},segments={},min={},dense={},tier={},cache={}", print_amount(options.sinks),
                      kOutliers[static_cast<std::size_t>(options.outliers)], print_amount(options.local),
                      kSegments[static_cast<std::size_t>(options.segments)], options.least_prompt, options.dense_layers,
                      kTiers[static_cast<std::size_t>(options.tier)], options.cache_share);
  if (options.generated > 0) text += fmt::format(",generated={}", options.generated);
  return text;
}

std::string print_near(const SelectOptions& options) {
  return fmt::format("budget={},chunk={},dense={}", print_amount(options.budget), options.index.chunk, options.dense_layers);
}

Result<std::string> read_near(const SpecStage& stage, SelectOptions options, CacheSpec* spec) {
  constexpr std::array<std::string_view, 3> kNearKeys = {"budget", "chunk", "dense"};
  KV_TRY(check_keys(stage, kNearKeys));
  KV_ASSIGN(options.index.chunk, single_whole(stage, "chunk", options.index.chunk, 1, kLargestChunk));
  KV_TRY(read_amount(stage, "budget", 1, &options.budget));
  KV_ASSIGN(options.dense_layers, single_whole(stage, "dense", options.dense_layers, 0, kMostRows));
  KV_TRY(check_whole_chunks("budget", options.budget, options.index.chunk, options.run));
  spec->offload = options;
  return fmt::format("{}:{}", stage.name.key, print_near(options));
}

Result<std::string> read_select(const SpecStage& stage, CacheSpec* spec) {
  KV_TRY(check_keys(stage, kKeys));
  const std::span<const SelectPreset> presets = select_presets();
  const auto preset =
      std::find_if(presets.begin(), presets.end(), [&](const SelectPreset& p) { return p.name == stage.name.key; });
  SelectOptions options = preset->options;
  if (options.place == Place::kNear) return read_near(stage, options, spec);
  KV_TRY(read_index(stage, &options));
  KV_TRY(read_stores(stage, &options));
  KV_TRY(read_selection(stage, &options));
  KV_TRY(read_segments(stage, &options));
  KV_TRY(check_generated(options));
  spec->offload = options;
  return fmt::format("{}:{}", stage.name.key, print_options(options));
}

}  // namespace

std::span<const SpecMethod> offload_methods() {
  static const std::vector<SpecMethod> kMethods = [] {
    std::vector<SpecMethod> methods;
    for (const SelectPreset& preset : select_presets()) {
      SelectOptions options = preset.options;
      if (options.index.chunk == 1) options.outliers = OutlierRule::kFirst;
      std::string keys = options.place == Place::kNear ? print_near(options) : print_options(options);
      if (options.place == Place::kFar && !is_projected(options.index.kind) && !options.low_rank_keys) keys += ",generated=0";
      if (options.place == Place::kFar) keys += ",run=1";
      methods.push_back({{std::string(preset.name), std::move(keys), std::string(preset.summary)}, read_select});
    }
    return methods;
  }();
  return kMethods;
}

}  // namespace kvartet
