// What a method of the spec grammar is, and how its keys are read: shared by the files that describe the methods.
//
// A method is one entry in the table of its kind: spec_quantizers.cc, spec_evictors.cc or spec_offload.cc. Everything else (help,
// refusals, nearest names) follows from the table.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cache/spec.h"
#include "cache/spec_grammar.h"
#include "core/status.h"

namespace kvartet {

inline constexpr int kMostRows = 1 << 24;  // far above any context; keeps row arithmetic inside int

struct SpecMethod {
  MethodInfo info;
  // Completes `spec` from a stage of this name and returns the stage's canonical text. Null for quantizers: their stages may
  // be pairs of names, and read_quantizer reads both sides.
  Result<std::string> (*read)(const SpecStage& stage, CacheSpec* spec) = nullptr;
};

std::span<const SpecMethod> evictor_methods();
std::span<const SpecMethod> quantizer_methods();
std::span<const SpecMethod> offload_methods();

// The entry named `name`, or null.
const SpecMethod* find_method(std::span<const SpecMethod> table, std::string_view name);

// The canonical text of a quantizing stage, `name` or `keys/values`.
Result<std::string> read_quantizer(const SpecStage& stage, CacheSpec* spec);

// kUsage: the formats of `spec` do not fit this layer.
Status check_formats(const CacheSpec& spec, const LayerShape& layer);

// ---- reading keys

using Names = std::span<const std::string_view>;

bool contains(Names names, std::string_view name);
std::string stage_name(const SpecStage& stage);  // "kivi", "q8_0/kivi"

// kUsage: a setting that is not in `allowed`, naming the nearest.
Status check_keys(const SpecStage& stage, Names allowed);

// The text of a key that takes one value, or the default. kUsage: a pair.
Result<std::string> single_text(const SpecStage& stage, std::string_view key, std::string_view otherwise);
Result<int> single_whole(const SpecStage& stage, std::string_view key, int otherwise, int least, int most);
Result<std::string> single_word(const SpecStage& stage, std::string_view key, Names words);  // default: the first word
Result<int> one_of(std::string_view key, std::string_view text, std::span<const int> choices);

std::string print_sided(const SidedText& text);  // "4", "4/2"

Result<Budget> parse_budget(std::string_view text);
Result<double> single_share(const SpecStage& stage, std::string_view key, double otherwise);  // in [0, 1]
bool is_share(const Budget& budget);
std::string print_budget(const Budget& budget);

}  // namespace kvartet
