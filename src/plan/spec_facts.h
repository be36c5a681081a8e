// A spec as the planner compares it: which stage evicts, what its rows cost, in numbers instead of names. Derived from the
// parsed spec and the byte formula, so a new method needs no line here.
#pragma once

#include <cstdint>
#include <string>

#include "cache/spec.h"
#include "core/model_shape.h"
#include "core/status.h"

namespace kvartet {

struct SpecFacts {
  CacheSpec spec;
  std::string evict_stage;   // canonical text of the stage that chooses rows, evicting or selecting; empty: all rows are seen
  std::string evict_method;  // its name
  std::string format_stage;  // canonical text of the quantizing stage; "full" when there is none
  std::string key_format;    // label of how sealed keys are written: "f16", "kivi4.32"
  std::string value_format;
  double key_bits = 16;  // bytes of a full tile over its elements, in bits: scales included
  double value_bits = 16;

  bool evicts() const { return !evict_stage.empty(); }       // or selects: attention sees fewer rows
  bool selects() const { return spec.offload.has_value(); }  // the others stay, in a slower tier
  bool by_position() const {                                 // rows leave by their place alone
    return spec.evict == Evict::kStreaming || (spec.evict == Evict::kCam && spec.base == CamBase::kStreaming);
  }
  bool quantizes() const { return key_format != "f16" || value_format != "f16"; }
  std::string formats() const { return key_format + "/" + value_format; }
  std::string formats_text() const { return key_format == value_format ? key_format : formats(); }  // for people
};

// kUsage: the text is no spec, or does not fit the first layer of `shape`.
Result<SpecFacts> spec_facts(const std::string& text, const ModelShape& shape);
Result<SpecFacts> spec_facts(const CacheSpec& spec, const ModelShape& shape);

// Whether a selecting cache chooses rows behind a prompt of this length; one that is too short stays near as a whole.
bool selects_from(const SpecFacts& facts, int prompt_tokens);
// Rows that one head's attention sees after a prompt and `generated` steps.
double kept_rows(const SpecFacts& facts, int prompt_tokens, int generated);
// Of the generated rows those that a selecting cache always sees: all, unless its spec lets some go far, which none does after a
// prompt that is too short to select from.
double near_generated(const SpecFacts& facts, int prompt_tokens, int generated);
// Of the rows seen those that a selecting cache chooses anew at every step and fetches from the slow tier; 0 for others.
double chosen_rows(const SpecFacts& facts, int prompt_tokens);
// Share of the prompt's rows that stay, in (0, 1]. Where all do: share of all rows so far, on average over the answer, as a
// window that holds the prompt may not hold the answer too.
double kept_share(const SpecFacts& facts, int prompt_tokens, int answer_tokens);

}  // namespace kvartet
