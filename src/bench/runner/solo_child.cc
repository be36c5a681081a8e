#include "bench/runner/solo_child.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/runner/measure_sample.h"
#include "core/child_process.h"
#include "engine/engine.h"
#include "results/fingerprint.h"
#include "results/machine.h"
#include "results/outcome_check.h"

namespace kvartet {
namespace {

using Json = nlohmann::json;

std::vector<Token> prompt_of(const SoloOrder& order) {
  std::vector<Token> out = order.document;
  out.insert(out.end(), order.question.begin(), order.question.end());
  return out;
}

// Without a reference answer: its likelihood is the shared run's business, and would cost memory here.
PreparedSample sample_of(const SoloOrder& order) {
  PreparedSample out;
  out.document = order.document;
  out.question = order.question;
  out.sample.max_new_tokens = order.max_new_tokens;
  out.sample.stop_at_newline = order.stop_at_newline;
  return out;
}

PreparedSample warm_up_sample(const SoloOrder& order) {
  PreparedSample out;
  out.document = prompt_of(order);
  out.document.resize(std::min<std::size_t>(out.document.size(), kWarmUpPromptTokens));
  out.sample.max_new_tokens = std::min(kWarmUpAnswerTokens, order.max_new_tokens);
  return out;
}

// What the shared run would store of it, as figures of a run alone. compression.md 14: from the request to the last token.
SoloRun run_of(const Outcome& o, const std::vector<double>& gaps_ms) {
  SoloRun run;
  run.error = o.error;
  run.text = o.prediction;
  run.finish_reason = o.finish_reason;
  run.completion_tokens = o.completion_tokens;
  run.ttft_s = o.ttft_s;
  run.prefill_s = o.prefill_s;
  run.compress_s = o.compress_s;
  run.decode_tokens_per_s = o.decode_tokens_per_s;
  run.token_gaps_json = o.token_gaps_json;
  double seconds = o.ttft_s;
  for (const double gap : gaps_ms) seconds += gap / 1000;
  if (o.completion_tokens > 0 && seconds > 0) run.end_to_end_tokens_per_s = o.completion_tokens / seconds;
  return run;
}

std::vector<double> gaps_of(const Outcome& o) {
  const Json gaps = Json::parse(o.token_gaps_json, nullptr, false);
  return gaps.is_array() ? gaps.get<std::vector<double>>() : std::vector<double>();
}

SoloRun failed_run(std::string error) {
  SoloRun run;
  run.error = std::move(error);
  return run;
}

Result<SoloRun> read_answer(std::string_view text, const std::string& prompt_hash) {
  const Json answer = Json::parse(text, nullptr, false);
  SoloRun run;
  try {
    answer.at("error").get_to(run.error);
    if (run.failed()) return run;
    const std::string hash = answer.at("prompt_hash").get<std::string>();
    if (hash != prompt_hash) {
      return internal_error(fmt::format("it ran another prompt (hash {}, asked for {})", hash, prompt_hash));
    }
    answer.at("text").get_to(run.text);
    answer.at("finish_reason").get_to(run.finish_reason);
    answer.at("completion_tokens").get_to(run.completion_tokens);
    answer.at("ttft_s").get_to(run.ttft_s);
    answer.at("prefill_s").get_to(run.prefill_s);
    answer.at("compress_s").get_to(run.compress_s);
    answer.at("decode_tokens_per_s").get_to(run.decode_tokens_per_s);
    answer.at("end_to_end_tokens_per_s").get_to(run.end_to_end_tokens_per_s);
    run.token_gaps_json = answer.at("token_gaps_ms").dump();
    answer.at("peak_rss_bytes").get_to(run.peak_rss_bytes);
    answer.at("weight_bytes").get_to(run.weight_bytes);
  } catch (const Json::exception&) {
    return internal_error("its answer is no answer");
  }
  if (!has_possible_figures(run)) return internal_error("its figures cannot be");
  return run;
}

}  // namespace

std::string solo_order_text(const SoloOrder& order) {
  const Json json = {{"model_path", order.settings.model_path},
                     {"threads", order.settings.threads},
                     {"fast_tier_bytes", order.settings.fast_tier_bytes},
                     {"tier_directory", order.settings.tier_directory},
                     {"spec", order.spec},
                     {"question_position", question_position_name(order.position)},
                     {"document", order.document},
                     {"question", order.question},
                     {"max_new_tokens", order.max_new_tokens},
                     {"stop_at_newline", order.stop_at_newline},
                     {"parent_process", order.parent_process}};
  // A path may hold any bytes; a model of such a name is refused by the process, in its own words.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<SoloOrder> read_solo_order(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  SoloOrder order;
  try {
    json.at("model_path").get_to(order.settings.model_path);
    json.at("threads").get_to(order.settings.threads);
    json.at("fast_tier_bytes").get_to(order.settings.fast_tier_bytes);
    json.at("tier_directory").get_to(order.settings.tier_directory);
    json.at("spec").get_to(order.spec);
    const std::string position = json.at("question_position").get<std::string>();
    order.position = find_question_position(position).value_or(QuestionPosition::kSeen);
    json.at("document").get_to(order.document);
    json.at("question").get_to(order.question);
    json.at("max_new_tokens").get_to(order.max_new_tokens);
    json.at("stop_at_newline").get_to(order.stop_at_newline);
    json.at("parent_process").get_to(order.parent_process);
  } catch (const Json::exception&) {
    return bad_input(
        fmt::format("{} takes an order of kvartet bench on standard input, and this is none; use 'kvartet bench ... --solo 5'",
                    kSoloCommand));
  }
  return order;
}

Result<SoloRun> measure_alone(const SoloOrder& order, const std::atomic<bool>* cancel) {
  KV_ASSIGN(const CacheSpec spec, parse_spec(order.spec));
  EngineOptions options;
  options.model_path = order.settings.model_path;
  options.threads = order.settings.threads;
  options.fast_tier_bytes = order.settings.fast_tier_bytes;
  options.tier_directory = order.settings.tier_directory;
  options.cancel = cancel;
  KV_ASSIGN(const std::unique_ptr<Engine> engine, Engine::open(options));
  const PreparedSample warm_up = warm_up_sample(order);
  for (int i = 0; i < kWarmUpRequests; ++i) {
    KV_ASSIGN(const std::vector<Outcome> ignored, measure_sample(*engine, warm_up, {&spec, 1}, QuestionPosition::kSeen));
    if (ignored.front().failed()) return failed_run(ignored.front().error);
  }
  KV_ASSIGN(const std::vector<Outcome> outcomes, measure_sample(*engine, sample_of(order), {&spec, 1}, order.position));
  SoloRun run = run_of(outcomes.front(), gaps_of(outcomes.front()));
  run.spec = spec.canonical;
  run.peak_rss_bytes = peak_resident_bytes();
  run.weight_bytes = static_cast<std::int64_t>(engine->weight_bytes());
  return run;
}

std::string solo_answer_text(const SoloOrder& order, const SoloRun& run) {
  Json gaps = Json::parse(run.token_gaps_json, nullptr, false);
  if (!gaps.is_array()) gaps = Json::array();
  const Json json = {{"error", run.error},
                     {"prompt_hash", hash_tokens(prompt_of(order))},
                     {"text", run.text},
                     {"finish_reason", run.finish_reason},
                     {"completion_tokens", run.completion_tokens},
                     {"ttft_s", run.ttft_s},
                     {"prefill_s", run.prefill_s},
                     {"compress_s", run.compress_s},
                     {"decode_tokens_per_s", run.decode_tokens_per_s},
                     {"end_to_end_tokens_per_s", run.end_to_end_tokens_per_s},
                     {"token_gaps_ms", gaps},
                     {"peak_rss_bytes", run.peak_rss_bytes},
                     {"weight_bytes", run.weight_bytes}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<SoloRun> run_alone(const SoloProgram& program, const PreparedSample& sample, const CacheSpec& spec, double limit_s) {
  SoloOrder order;
  order.settings = program.settings;
  order.spec = spec.canonical;
  order.position = sample.record.key.position;
  order.document = sample.document;
  order.question = sample.question;
  order.max_new_tokens = sample.sample.max_new_tokens;
  order.stop_at_newline = sample.sample.stop_at_newline;
  order.parent_process = getpid();
  const std::string text = solo_order_text(order);
  KV_ASSIGN(const ChildResult child,
            run_child({.command = {program.path, kSoloCommand}, .input = text, .limit_s = limit_s, .cancel = program.cancel}));
  // At the terminal Ctrl-C reaches the child as well, and its end may be seen before the wish itself.
  if (program.cancel != nullptr && program.cancel->load()) return cancelled("interrupted");
  SoloRun run;
  if (!child.ok()) {
    run.error = fmt::format("the process of its own {}", how_it_ended(child, limit_s));
  } else if (Result<SoloRun> answer = read_answer(child.out, sample.record.prompt_hash); answer.ok()) {
    run = std::move(*answer);
  } else {
    run.error = fmt::format("the process of its own is not to be believed: {}", answer.status().message());
  }
  run.key = sample.record.key;
  run.spec = spec.canonical;
  return run;
}

}  // namespace kvartet
