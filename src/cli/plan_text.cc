// How a plan is shown: as an EXPLAIN, one term a line, and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cache/spec.h"
#include "cli/command.h"
#include "cli/planning.h"
#include "core/bytes_text.h"
#include "core/counted.h"
#include "results/paired.h"

namespace kvartet {
namespace {

using Json = nlohmann::ordered_json;

std::string seconds(double s) {
  if (s >= 0.1) return fmt::format("{:.2f} s", s);
  return s >= 1e-4 ? fmt::format("{:.2f} ms", s * 1e3) : fmt::format("{:.1f} us", s * 1e6);
}

std::string error_text(double e) {
  return e < 1 ? fmt::format("±{:.0f} %", e * 100) : fmt::format("within a factor of {:.1f}", 1 + e);
}

// A spec in pieces: "snapkv:budget=0.25+q4_0" is two stages.
struct SpecStageText {
  std::string name;
  std::vector<std::string> settings;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = text.find(at); end != std::string::npos; begin = end + 1, end = text.find(at, begin))
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

std::string joined(const std::vector<SpecStageText>& stages) {
  std::string text;
  for (const SpecStageText& stage : stages) {
    text += (text.empty() ? "" : "+") + stage.name;
    for (std::size_t i = 0; i < stage.settings.size(); ++i) text += (i == 0 ? ":" : ",") + stage.settings[i];
  }
  return text;
}

// The same cache in fewer words: settings that are the defaults are left out, but for those by which caches are known.
std::string short_spec(const std::string& canonical) {
  std::vector<SpecStageText> stages;
  for (const std::string& text : split(canonical, '+')) {
    const std::size_t colon = text.find(':');
    stages.push_back({text.substr(0, colon), {}});
    if (colon != std::string::npos) stages.back().settings = split(text.substr(colon + 1), ',');
  }
  for (SpecStageText& stage : stages) {
    for (std::size_t i = stage.settings.size(); i-- > 0;) {
      if (stage.settings[i].starts_with("bits=") || stage.settings[i].starts_with("budget=")) continue;
      const std::vector<std::string> all = stage.settings;
      stage.settings.erase(stage.settings.begin() + static_cast<std::ptrdiff_t>(i));
      const Result<CacheSpec> same = parse_spec(joined(stages));
      if (!same.ok() || same->canonical != canonical) stage.settings = all;
    }
  }
  return joined(stages);
}

void add_terms(std::string* text, const std::vector<CostTerm>& terms, bool are_bytes) {
  for (const CostTerm& t : terms) {
    *text += fmt::format("    {:24} {:>11}   {}\n", t.name, are_bytes ? bytes_text(t.value) : seconds(t.value), t.detail);
  }
}

// What the heading of a table says already.
std::string short_reason(const std::string& reason) {
  for (const std::string_view known :
       {"over memory: ", "over fast memory: ", "over loss: ", "fits; ", "breaks on this model: "}) {
    if (reason.starts_with(known)) return reason.substr(known.size());
  }
  constexpr std::string_view kDominated = "dominated by ";
  if (reason.starts_with(kDominated)) {
    const std::size_t end = reason.find(": no larger");
    return "by " + short_spec(reason.substr(kDominated.size(), end - kDominated.size()));
  }
  return reason;
}

std::string loss_text(const LossPrediction& l) {
  std::string source = source_name(l.source);
  if (l.measured_samples > 0) source += ", " + counted(l.measured_samples, "sample");
  return fmt::format("{:.4f}, 95 % between {:.4f} and {:.4f} ({})", l.expected, l.low, l.high, source);
}

// What its methods do, one sentence each.
void add_methods(std::string* text, const std::string& spec) {
  const char* begin = "  what it does";
  for (const std::string& stage : split(spec, '+')) {
    for (const std::string& name : split(stage.substr(0, stage.find(':')), '/')) {
      const auto method = std::ranges::find(methods(), name, &MethodInfo::name);
      if (method == methods().end()) continue;
      constexpr std::size_t kIndent = 29;
      *text += wrapped(fmt::format("{:29}{}: {}", begin, name, method->summary), kIndent);
      begin = "";
    }
  }
}

void add_detail(std::string* text, const Candidate& c, const PlanRequest& request, const ModelShape& shape) {
  constexpr std::size_t kEvidenceLines = 5;
  *text += fmt::format("  expected loss              {}\n", loss_text(c.loss));
  for (std::size_t i = 0; i < std::min(kEvidenceLines, c.loss.evidence.size()); ++i) {
    *text += fmt::format("    {:>3.0f} % from {}\n", 100 * c.loss.evidence[i].weight, c.loss.evidence[i].text);
  }
  if (c.loss.evidence.size() > kEvidenceLines)
    *text += fmt::format("    and {}\n", counted(c.loss.evidence.size() - kEvidenceLines, "lighter observation"));
  const double f16 = static_cast<double>(shape.f16_bytes_per_token()) * request.workload.prompt_tokens;
  *text +=
      fmt::format("  cache                      {} after the prompt, {} after the answer, exactly; {:.0f} % of its size in f16\n",
                  bytes_text(c.cost.after_prompt.allocated), bytes_text(c.cost.at_end.allocated),
                  100 * static_cast<double>(c.cost.after_prompt.allocated) / std::max(f16, 1.0));
  *text += fmt::format("  first token after          {} ({})\n", seconds(c.cost.ttft_s), error_text(c.cost.time_error));
  add_terms(text, c.cost.ttft, false);
  *text += fmt::format("  decode                     {:.1f} tokens/s, {} each in the middle of the answer ({})\n",
                       c.cost.decode_tokens_per_s(), seconds(c.cost.step_s), error_text(c.cost.time_error));
  add_terms(text, c.cost.step, false);
  *text += fmt::format("  peak memory, about         {}\n", bytes_text(sum(c.cost.peak)));
  add_terms(text, c.cost.peak, true);
}

std::string row_text(const Candidate& c) {
  const std::string spec = short_spec(c.spec);
  if (c.standing == Standing::kBreaks) return fmt::format("  {:42} {}\n", spec, c.reason);
  return fmt::format("  {:42} {:>9} {:>7.4f} {:>7.4f} to {:<7.4f} {:<13} {:>8.1f}  {}\n", spec, bytes_text(c.cost.bytes()),
                     c.loss.expected, c.loss.low, c.loss.high, source_name(c.loss.source), c.cost.decode_tokens_per_s(),
                     short_reason(c.reason));
}

std::string table_head() {
  return fmt::format("  {:42} {:>9} {:>7} {:^18} {:<13} {:>8}  {}\n", "cache", "size", "loss", "95 %", "loss from", "tokens/s",
                     "why not");
}

const char* standing_summary(Standing standing) {
  switch (standing) {
    case Standing::kChosen: return "";
    case Standing::kRunnerUp:
      return "fit as well, and each beats the chosen one and each other in something: size, speed or loss";
    case Standing::kDominated: return "fit, but another is no larger, no slower and no worse, and better in one of these";
    case Standing::kOverMemory: return "need more memory than allowed";
    case Standing::kOverLoss: return "lose more than allowed";
    case Standing::kBreaks: return "cannot be taken with this model";
  }
  return "";
}

Json loss_json(const LossPrediction& l) {
  Json evidence = Json::array();
  for (const EvidenceLine& line : l.evidence) evidence.push_back({{"weight", line.weight}, {"text", line.text}});
  return {{"low", l.low},
          {"expected", l.expected},
          {"high", l.high},
          {"source", source_name(l.source)},
          {"samples", l.measured_samples},
          {"evidence", evidence}};
}

Json terms_json(const std::vector<CostTerm>& terms) {
  Json list = Json::array();
  for (const CostTerm& t : terms) list.push_back({{"name", t.name}, {"value", t.value}, {"detail", t.detail}});
  return list;
}

Json candidate_json(const Candidate& c, bool with_terms) {
  Json json = {{"spec", c.spec}};
  if (c.standing != Standing::kBreaks) {
    json["bytes"] = c.cost.bytes();
    json["bytes_after_prompt"] = c.cost.after_prompt.allocated;
    json["bytes_at_end"] = c.cost.at_end.allocated;
    json["live_bytes_at_end"] = c.cost.at_end.live;
    json["fast_bytes"] = c.cost.fast_bytes();
    json["ttft_s"] = c.cost.ttft_s;
    json["decode_tokens_per_s"] = c.cost.decode_tokens_per_s();
    json["total_s"] = c.cost.total_s;
    json["time_error"] = c.cost.time_error;
    json["loss"] = loss_json(c.loss);
    if (!with_terms) json["loss"].erase("evidence");
  }
  json["reason"] = c.reason;
  if (with_terms) {
    json["terms"] = {
        {"ttft_s", terms_json(c.cost.ttft)}, {"step_s", terms_json(c.cost.step)}, {"peak_bytes", terms_json(c.cost.peak)}};
  }
  return json;
}

std::string limits_text(const PlanRequest& r) {
  std::string text;
  if (r.memory) text += fmt::format("cache at most {}, ", bytes_text(*r.memory));
  if (r.fast_memory) text += fmt::format("in RAM at most {}, ", bytes_text(*r.fast_memory));
  if (r.max_loss) text += fmt::format("loss at most {:g}, ", *r.max_loss);
  if (!r.max_loss && r.prefer != Prefer::kQuality) text += fmt::format("loss at most {:g} (default), ", kDefaultMaxLoss);
  return text + fmt::format("preferring {}", prefer_name(r.prefer));
}

// Beside which measured rates of another hour can be judged.
Json calibrated_reading(const Gathered& g) {
  if (!g.calibration) return nullptr;
  for (const Rate& r : g.calibration->rates)
    if (r.what == rate::kRead) return r.value * 1e-9;
  return nullptr;
}

}  // namespace

std::string statistics_text(const CellCounts& cells, std::size_t folders) {
  std::string text;
  if (folders > 0) {
    text = fmt::format("{} of this model (a task, a length and a cache each) from {}", counted(cells.tasks, "measured cell"),
                       counted(folders, "folder"));
  } else {
    text = "no results folder given (--results)";
    if (cells.fidelity == 0) return text + ": every loss is a prior from the papers, not measured here";
  }
  if (cells.fidelity > 0)
    text += fmt::format(", {} of kvartet fidelity on plain text (a weak sign)", counted(cells.fidelity, "figure"));
  if (cells.foreign > 0) text += fmt::format(", {} of other models (neighbours at best)", cells.foreign);
  if (cells.unread > 0) text += fmt::format(", {} of caches that this version or model does not know", cells.unread);
  if (cells.paper > 0) text += fmt::format(", {} in a paper's own form, which is no fair comparison (left out)", cells.paper);
  return text;
}

std::string workload_text(const Workload& w) {
  const QuestionPosition position = w.asked_position();
  const char* sealed = position == QuestionPosition::kSeen     ? "after the question"
                       : position == QuestionPosition::kUnseen ? "before the question"
                                                               : "after another question";
  return fmt::format("{}, {}, {} of {}, cache sealed {}", kind_name(w.kind), counted(w.prompt_tokens, "prompt token"),
                     counted(w.questions, "answer"), counted(w.answer_tokens(), "token"), sealed);
}

namespace {

// What the figures below mean and rest on, for who has never seen them.
std::string head_text(const Plan& plan, const Gathered& g, const PlanRequest& request, const std::string& model) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& words) {
    constexpr std::size_t kIndent = 12;
    text += wrapped(fmt::format("{:{}}{}", name, kIndent, words), kIndent);
  };
  text += fmt::format("plan for {}: {}\n", model, workload_text(request.workload));
  line("limits", limits_text(request));
  line("losses",
       fmt::format("in nats per token: how much less likely the tokens of the right answer become than through 'full', the "
                   "uncompressed cache. 0.01 is about one percent of a token's probability; within {:g} this program calls "
                   "two caches the same, though it still takes the smaller. A gain counts as no loss, so what may lose much is "
                   "expected to lose more than the middle of its interval. {}: this cache, kind of task and length. {}: carried "
                   "over from others; the less alike, the wider the interval. {}: what papers found, nothing measured.",
                   kLikelihoodMargin, source_name(LossSource::kMeasured), source_name(LossSource::kNeighbour),
                   source_name(LossSource::kPrior)));
  line("statistics", statistics_text(plan.cells, g.folders));
  line("times", g.machine_note + ". Below, calibrated is at a rate measured here, assumed at a typical one.");
  line("words",
       "a row is what a cache keeps of one token in one head of one layer: a key and a value. f16: 16 bits a number, as "
       "'full' has them. a/b: keys as a, values as b; bits= is of the half that has such a setting. kivi4.32 in the evidence: "
       "4 bits in groups of 32. Sealed: the moment from which the prompt's rows stand in the cache as they will stay.");
  return text + "\n";
}

}  // namespace

std::string explain_text(const Plan& plan, const Gathered& g, const PlanRequest& request, const std::string& model, bool all) {
  constexpr std::size_t kRows = 8;
  std::string text = head_text(plan, g, request, model);
  const Candidate& first = plan.first();
  if (plan.feasible) {
    text += fmt::format("chosen: {}\n  because it has             {}\n", short_spec(first.spec), plan.reason);
  } else {
    text += fmt::format("nothing fits; the nearest: {}\n", short_spec(first.spec));
  }
  add_methods(&text, first.spec);
  if (first.standing != Standing::kBreaks) add_detail(&text, first, request, g.inputs.model.shape);
  if (!plan.what_ifs.empty()) text += "\nwhat would change the choice, and to which\n";
  for (const WhatIf& w : plan.what_ifs)
    text += fmt::format("  {:34} {} (expected loss {:.4f})\n", w.change, short_spec(w.spec), w.expected_loss);

  std::map<Standing, std::size_t> counts;
  for (const Candidate& c : plan.candidates) ++counts[c.standing];
  for (const Standing standing :
       {Standing::kRunnerUp, Standing::kDominated, Standing::kOverMemory, Standing::kOverLoss, Standing::kBreaks}) {
    if (counts[standing] == 0) continue;
    text += fmt::format("\n{} ({}): {}\n{}", standing_name(standing), counts[standing], standing_summary(standing), table_head());
    std::size_t shown = 0;
    for (const Candidate& c : plan.candidates) {
      if (c.standing != standing || (!all && shown == kRows)) continue;
      text += row_text(c);
      ++shown;
    }
    if (shown < counts[standing]) text += fmt::format("  and {} more (--all lists them)\n", counts[standing] - shown);
  }
  return text;
}

Json plan_json(const Plan& plan, const Gathered& g, const PlanRequest& request) {
  Json json = {{"workload",
                {{"kind", kind_name(request.workload.kind)},
                 {"prompt_tokens", request.workload.prompt_tokens},
                 {"output_tokens", request.workload.answer_tokens()},
                 {"questions", request.workload.questions},
                 {"question_position", question_position_name(request.workload.asked_position())}}},
               {"limits", limits_text(request)},
               {"loss_unit", "nats per token"},
               {"statistics", statistics_text(plan.cells, g.folders)},
               {"machine", g.machine_note},
               {"calibrated", plan.calibrated},
               {"calibrated_read_gb_per_s", calibrated_reading(g)},
               {"feasible", plan.feasible}};
  json["chosen"] = nullptr;
  if (plan.feasible) json["chosen"] = candidate_json(plan.first(), true);
  json["what_if"] = Json::array();
  for (const WhatIf& w : plan.what_ifs)
    json["what_if"].push_back({{"change", w.change}, {"spec", w.spec}, {"expected_loss", w.expected_loss}});
  json["alternatives"] = Json::array();
  for (const Candidate& c : plan.candidates) {
    if (c.standing == Standing::kChosen) continue;
    Json one = candidate_json(c, false);
    one["rejected"] = standing_name(c.standing);
    json["alternatives"].push_back(std::move(one));
  }
  return json;
}

}  // namespace kvartet
