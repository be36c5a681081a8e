#include "cli/auto_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "cache/spec_grammar.h"
#include "cli/command.h"
#include "core/bytes_text.h"
#include "core/file_system.h"
#include "model/memory_limit.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 6> kKeys = {"memory", "fast-memory", "for", "max-loss", "prefer", "results"};

Status set(AutoSpec* spec, std::string_view key, const std::string& value) {
  if (key == "memory") {
    KV_ASSIGN(spec->limits.memory, parse_bytes(value));
  }
  if (key == "fast-memory") {
    KV_ASSIGN(spec->limits.fast_memory, parse_bytes(value));
  }
  if (key == "prefer") {
    KV_ASSIGN(spec->limits.prefer, parse_prefer(value));
  }
  if (key == "results") spec->results.push_back(value);
  if (key == "for") {
    KV_ASSIGN(spec->limits.workload.kind, parse_kind(value));
    spec->kind_given = true;
  }
  if (key == "max-loss") {
    double nats = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), nats);
    if (error != std::errc() || end != value.data() + value.size() || !(nats >= 0)) {
      return usage_error(
          fmt::format("max-loss={} is no number of nats per token; write for example max-loss=0.02", kvartet::quoted(value)));
    }
    spec->limits.max_loss = nats;
  }
  return {};
}

// Without a limit of the user's the machine sets one; a fifth of what is free is left to the rest of the run.
std::size_t usable_memory() {
  const std::uint64_t available = available_memory(FileSystem::real());
  return static_cast<std::size_t>(0.8 * static_cast<double>(available));
}

std::string limits_of(const AutoSpec& wish) {
  return wish.text == "auto" ? "none given" : wish.text.substr(wish.text.find(':') + 1);
}

}  // namespace

bool is_auto(std::string_view kv) { return kv == "auto" || kv.starts_with("auto:"); }

Result<AutoSpec> parse_auto(std::string_view kv) {
  AutoSpec spec;
  spec.text = std::string(kv);
  if (kv == "auto") return spec;
  std::string_view rest = kv.substr(5);
  std::vector<std::string_view> seen;
  do {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      return usage_error(fmt::format("{} in {} is not a setting; write key=value, such as auto:memory=200M,for=summary",
                                     quoted(part), quoted(kv)));
    }
    const std::string_view key = part.substr(0, equals);
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      return usage_error(fmt::format("'auto' has no key {}; {}", quoted(key), choice_hint(key, kKeys)));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      return usage_error(fmt::format("{} is set twice in {}; keep one", quoted(key), quoted(kv)));
    seen.push_back(key);
    KV_TRY(set(&spec, key, std::string(part.substr(equals + 1))));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    if (comma != std::string_view::npos && rest.empty())
      return usage_error(fmt::format("{} ends in a comma; write another setting or leave it out", quoted(kv)));
  } while (!rest.empty());
  return spec;
}

Result<AutoDecision> decide(const AutoSpec& wish, const AutoSite& site) {
  PlanRequest request = wish.limits;
  request.workload = site.workload;
  request.workload.kind = wish.kind_given ? wish.limits.workload.kind : site.guess.kind;
  if (!request.memory) request.memory = std::max(usable_memory(), request.fast_memory.value_or(0));
  KV_ASSIGN(const std::unique_ptr<Gathered> gathered,
            gather(site.model_path, wish.results.empty() ? results_of_environment() : wish.results, site.threads));
  KV_ASSIGN(const Plan plan, make_plan(gathered->inputs, request));
  const std::string kind_source = wish.kind_given ? "given" : "guessed: " + site.guess.reason;
  if (!plan.feasible)
    return exhausted(fmt::format("--kv {}{} ({}, {}): {}", wish.text, site.what.empty() ? "" : " for " + site.what,
                                 workload_text(request.workload), kind_source, plan.reason));

  const Candidate& c = plan.first();
  print_note(fmt::format(
      "auto{}: {} ({}) -> {}; it has {}; expected loss {:.4f} nats per token, 95 % {:.4f} to {:.4f} ({}), {}, first token "
      "{:.2f} s, {:.1f} tokens/s ({})",
      site.what.empty() ? "" : " for " + site.what, workload_text(request.workload), kind_source, c.spec, plan.reason,
      c.loss.expected, c.loss.low, c.loss.high, source_name(c.loss.source), bytes_text(c.cost.bytes()), c.cost.ttft_s,
      c.cost.decode_tokens_per_s(), gathered->machine_note));
  AutoDecision decision{c.spec, 0};
  PlanRecord record;
  record.decided = utc_timestamp();
  record.model = site.model;
  record.kind = kind_name(request.workload.kind);
  record.kind_source = kind_source;
  record.prompt_tokens = request.workload.prompt_tokens;
  record.limits = limits_of(wish);
  record.spec = c.spec;
  record.reason = plan.reason;
  record.calibrated = plan.calibrated;
  record.loss_low = c.loss.low;
  record.loss_expected = c.loss.expected;
  record.loss_high = c.loss.high;
  record.predicted_bytes = static_cast<double>(c.cost.after_prompt.allocated);
  record.predicted_ttft_s = c.cost.ttft_s;
  record.predicted_decode_tokens_per_s = c.cost.decode_tokens_per_s();
  if (std::optional<PlannerStore> store = open_planner_store()) {
    Result<std::int64_t> id = store->add(record);
    if (id.ok())
      decision.record = *id;
    else
      print_note("note: the decision is not kept: " + id.status().message());
  }
  return decision;
}

void keep_outcome(const AutoDecision& decision, const PlanRecord& what_happened) {
  if (decision.record == 0) return;
  std::optional<PlannerStore> store = open_planner_store();
  if (!store) return;
  const Status status = store->finish(decision.record, what_happened);
  if (!status.ok()) print_note("note: what happened is not kept: " + status.message());
}

}  // namespace kvartet
