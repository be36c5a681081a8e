// kvartet run: one prompt or document, any number of questions on the same sealed cache.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/runner/measure_sample.h"
#include "cli/auto_spec.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "cli/self_checking.h"
#include "core/bytes_text.h"
#include "core/clock.h"
#include "core/counted.h"
#include "core/file_system.h"
#include "engine/engine.h"
#include "engine/prompt.h"
#include "results/machine.h"

namespace kvartet {
namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  ModelFlags model;
  std::string kv = "full";
  std::string prompt;
  std::string file;
  std::size_t sources = 0;  // how often -p or -f was given, also with an empty text
  std::vector<std::string> questions;
  GenerateOptions generate;
  bool raw = false;
  bool chat = false;
  bool json = false;
  SelfCheckFlags self_check;
};

struct Answer {
  std::string question;
  Completion completion;
  double ttft_s = 0;
  int prompt_tokens = 0;
  Json kv_end;
};

// offloading.md 1.2, since the sequence or its fork began.
Json traffic_json(const SequenceCache& cache) {
  const RowTraffic traffic = cache.traffic();
  return {{"medium", cache.slow_medium()},
          {"rows_fetched", traffic.rows_fetched},
          {"rows_hit", traffic.rows_hit},
          {"bytes_fetched", traffic.bytes_fetched},
          {"requests", traffic.medium.reads},
          {"bytes_read", traffic.medium.bytes_read},
          {"bytes_written", traffic.medium.bytes_written}};
}

// DESIGN 4: the ratio is f16 bytes of the live tokens over allocated bytes.
Json kv_json(const SequenceCache& cache, const ModelShape& shape) {
  const ByteAccount bytes = cache.bytes();
  const std::int64_t full = f16_bytes(shape, cache.next_position());
  const double ratio = bytes.allocated == 0 ? 0 : static_cast<double>(full) / static_cast<double>(bytes.allocated);
  Json kv = {
      {"spec", cache.spec().canonical},
      {"live_bytes", bytes.live},
      {"allocated_bytes", bytes.allocated},
      {"bytes_by_tier", bytes_by_tier_json(cache.spec(), bytes)},
      {"full_f16_bytes", full},
      {"compression_ratio", ratio},
      {"fast_ratio", bytes.fast_allocated() == 0 ? 0 : static_cast<double>(full) / static_cast<double>(bytes.fast_allocated())},
      {"rows_kept", cache.mean_rows()},
      {"acted", cache.acted()}};
  if (!cache.slow_medium().empty()) kv["traffic"] = traffic_json(cache);
  return kv;
}

double decode_rate(const Completion& c) {
  return c.tokens.size() < 2 || c.decode_s <= 0 ? 0 : static_cast<double>(c.tokens.size() - 1) / c.decode_s;
}

Result<std::string> prompt_text(const RunFlags& flags) {
  if (!flags.file.empty()) return FileSystem::real().read_file(flags.file);
  return flags.prompt;
}

struct Question {
  std::string text;
  std::vector<Token> tokens;
};

// The document is read and sealed once; every question adds its tokens to a fork of that.
struct Prompt {
  std::vector<Token> sealed;
  std::vector<Question> questions;  // without --question: one, which adds nothing
};

Result<Prompt> tokenized(const Vocabulary& vocabulary, const RunFlags& flags, PromptForm form, const std::string& text) {
  Prompt prompt;
  if (flags.questions.empty()) {
    KV_ASSIGN(prompt.sealed, build_prompt(vocabulary, form, {text, ""}));
    prompt.questions.emplace_back();
    return prompt;
  }
  if (text.empty()) return bad_input("the document is empty: give text with -p or a file with -f");
  KV_ASSIGN(prompt.sealed, document_part(vocabulary, form, text));
  for (const std::string& question : flags.questions) {
    if (question.empty()) return bad_input("a question is empty: give text with --question or leave it out");
    KV_ASSIGN(std::vector<Token> tokens, question_part(vocabulary, form, "\n\n" + question));
    prompt.questions.push_back({question, std::move(tokens)});
  }
  return prompt;
}

// Before minutes go into reading a document whose last question finds no room.
Status check_room(const Prompt& prompt, int context, int max_tokens) {
  for (const Question& question : prompt.questions) {
    const std::size_t tokens = prompt.sealed.size() + question.tokens.size();
    if (tokens + (max_tokens > 0 ? 1 : 0) <= static_cast<std::size_t>(context)) continue;
    return exhausted(
        fmt::format("the prompt has {} tokens, and the model's context holds {} together with the answer; shorten the text",
                    tokens, context));
  }
  return {};
}

Result<Answer> answer(Engine& engine, const RunFlags& flags, Sequence sequence, const Question& question, double begin) {
  Answer result;
  result.question = question.text;
  KV_TRY(engine.extend(sequence, question.tokens));
  result.prompt_tokens = sequence.cache.next_position();
  double first = 0;
  Sequence* list[] = {&sequence};
  auto on_text = [&](int, std::string_view piece) {
    if (first == 0) first = Clock::real().seconds();
    if (!flags.json) print(piece);
  };
  const double decode_begin = Clock::real().seconds();
  KV_ASSIGN(std::vector<Completion> done, engine.generate(list, flags.generate, on_text));
  result.completion = std::move(done[0]);
  if (!result.completion.token_s.empty()) first = decode_begin + result.completion.token_s[0];
  result.ttft_s = first == 0 ? 0 : first - begin;
  result.kv_end = kv_json(sequence.cache, engine.shape());
  return result;
}

void print_summary(const Sequence& sealed, const Json& kv, const Answer& a) {
  const auto& c = a.completion;
  print_note(
      fmt::format("[{}, {} answered ({}), first token after {:.2f} s, {:.1f} tokens/s; {}: {}, in f16 {} "
                  "({:.2f}x)]",
                  counted(a.prompt_tokens, "prompt token"), c.tokens.size(), finish_reason_name(c.finish_reason), a.ttft_s,
                  decode_rate(c), sealed.cache.spec().canonical, bytes_text(kv["allocated_bytes"].get<double>()),
                  bytes_text(kv["full_f16_bytes"].get<double>()), kv["compression_ratio"].get<double>()));
}

Json answer_json(const Answer& a) {
  return {{"question", a.question},
          {"text", a.completion.text},
          {"finish_reason", finish_reason_name(a.completion.finish_reason)},
          {"prompt_tokens", a.prompt_tokens},
          {"completion_tokens", a.completion.tokens.size()},
          {"ttft_s", a.ttft_s},
          {"decode_tokens_per_s", decode_rate(a.completion)},
          {"kv_end", a.kv_end}};
}

// --kv auto is decided here, where the prompt's length is known.
Result<AutoDecision> decide_cache(const AutoSpec& wish, const RunFlags& flags, const Engine& engine, const Prompt& prompt,
                                  const std::string& text) {
  AutoSite site;
  site.model = flags.model.model;
  KV_ASSIGN(site.model_path, resolve_model(flags.model.model));
  site.threads = engine.threads();
  const std::size_t left = static_cast<std::size_t>(engine.shape().context) - prompt.sealed.size();
  site.workload.prompt_tokens = static_cast<int>(prompt.sealed.size());
  site.workload.output_tokens =
      static_cast<int>(std::min(left, static_cast<std::size_t>(std::max(flags.generate.max_tokens, 1))));
  site.workload.questions = static_cast<int>(prompt.questions.size());
  if (!flags.questions.empty()) site.workload.position = QuestionPosition::kUnseen;
  site.guess = guess_kind(text, flags.questions.empty() ? "" : flags.questions.front());
  AutoSpec capped = wish;
  if (flags.model.fast_tier_bytes != Arena::kNoCap && !capped.limits.fast_memory)
    capped.limits.fast_memory = flags.model.fast_tier_bytes;
  return decide(capped, site);
}

// What the plan predicted, as it came out: of the first answer.
void keep_what_happened(const AutoDecision& decision, const Sequence& sealed, const Answer& first) {
  PlanRecord happened;
  happened.actual_bytes = static_cast<double>(sealed.cache.bytes().allocated);
  if (first.ttft_s > 0) happened.actual_ttft_s = first.ttft_s;
  const double rate = decode_rate(first.completion);
  if (rate > 0) happened.actual_decode_tokens_per_s = rate;
  keep_outcome(decision, happened);
}

Status run(const RunFlags& flags) {
  if (flags.sources != 1) return usage_error("give the prompt with either -p TEXT or -f FILE, once");
  if (flags.raw && flags.chat) return usage_error("--raw and --chat exclude each other; choose one");
  KV_ASSIGN(const SelfCheckMode self_check, self_check_mode(flags.self_check));
  std::optional<AutoSpec> wish;
  std::vector<CacheSpec> specs;
  if (is_auto(flags.kv)) {
    KV_ASSIGN(wish, parse_auto(flags.kv));
  } else {
    KV_ASSIGN(specs, parse_specs({flags.kv}));
  }
  KV_ASSIGN(std::string text, prompt_text(flags));
  KV_ASSIGN(const EngineOptions options, engine_options(flags.model));
  KV_ASSIGN(std::unique_ptr<Engine> engine, Engine::open(options));

  double begin = Clock::real().seconds();
  KV_ASSIGN(const std::vector<Completion> none, engine->generate({}, flags.generate));  // refuses senseless options
  KV_CHECK(none.empty());
  if (flags.chat && engine->vocabulary().chat_family().empty()) {
    return usage_error("--chat: this model has no chat template that is known here; leave the flag out");
  }
  if (!flags.raw && engine->vocabulary().chat_family().empty()) {
    print_note("note: this model has no chat template that is known here and continues the plain text, as with --raw");
  }
  const PromptForm form = flags.raw ? PromptForm::kRaw : PromptForm::kChat;
  KV_ASSIGN(const Prompt prompt, tokenized(engine->vocabulary(), flags, form, text));
  KV_TRY(check_room(prompt, engine->shape().context, flags.generate.max_tokens));
  AutoDecision decision;
  if (wish) {
    KV_ASSIGN(decision, decide_cache(*wish, flags, *engine, prompt, text));
    KV_ASSIGN(specs, parse_specs({decision.spec}));
  }
  const double before_check = Clock::real().seconds();
  KV_TRY(check_spec(specs[0], engine->shape()));
  KV_TRY(check_caches(*engine, options.model_path, specs, self_check));
  begin += Clock::real().seconds() - before_check;  // not what somebody waits for who runs it again
  KV_ASSIGN(std::vector<Sequence> sealed,
            engine->prefill(prompt.sealed, specs, [](double share) { show_progress("reading", share); }));
  const double sealed_at = Clock::real().seconds();
  const Json kv = kv_json(sealed[0].cache, engine->shape());
  if (!sealed[0].cache.acted() && specs[0].canonical != "full" && specs[0].canonical != "f32") {
    print_note(fmt::format("note: {} did not act on {}: nothing was dropped or written in fewer bits", specs[0].canonical,
                           counted(prompt.sealed.size(), "token")));
  }

  std::vector<Answer> answers;
  for (const Question& question : prompt.questions) {
    // A later question did not wait for the earlier answers: its clock starts where the sealed document was ready.
    const double start = answers.empty() ? begin : Clock::real().seconds() - (sealed_at - begin);
    if (!flags.json && prompt.questions.size() > 1) print(fmt::format("Question: {}\n", question.text));
    KV_ASSIGN(Answer a, answer(*engine, flags, sealed[0].fork(), question, start));
    if (!flags.json) {
      print("\n");
      print_summary(sealed[0], kv, a);
    }
    const bool stop = a.completion.finish_reason == FinishReason::kCancelled;
    answers.push_back(std::move(a));
    if (stop) break;
  }
  const std::int64_t resident = resident_bytes();
  keep_what_happened(decision, sealed[0], answers[0]);
  if (flags.json) {
    Json document = answer_json(answers[0]);
    document["prefill_s"] = sealed[0].prefill_s;
    document["compress_s"] = sealed[0].compress_s;
    document["peak_rss_bytes"] = peak_resident_bytes();
    document["rss_bytes"] = resident;
    document["kv"] = kv;
    document["answers"] = Json::array();
    for (const Answer& a : answers) document["answers"].push_back(answer_json(a));
    print(json_text(document));
  }
  if (answers.back().completion.finish_reason == FinishReason::kCancelled)
    return cancelled("interrupted; the text so far was printed");
  return {};
}

}  // namespace

void add_run(CLI::App& app, Action* action) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "answer a prompt, or questions about a document, through one cache");
  add_model_flags(command, &flags->model);
  command->add_option("--kv", flags->kv, "the cache, for example kivi:bits=4 (kvartet methods lists them), or auto")
      ->capture_default_str();
  command->add_option("-p,--prompt", flags->prompt, "the prompt");
  command->add_option("-f,--file", flags->file, "the prompt or document, a text file");
  command->add_option("--question", flags->questions,
                      "asked after the document was read and its cache sealed; repeat for more on the same cache");
  command->add_option("-n", flags->generate.max_tokens, "longest answer in tokens")->capture_default_str()->check(at_least(0));
  command->add_option("--temp", flags->generate.sampling.temperature, "temperature; 0 is greedy")
      ->capture_default_str()
      ->check(number_within(0, 100));
  command->add_option("--top-p", flags->generate.sampling.top_p, "smallest set of tokens with this probability")
      ->capture_default_str()
      ->check(number_within(0, 1));
  command->add_option("--seed", flags->generate.sampling.seed, "of the sampling")->capture_default_str()->check(seed_number());
  command->add_option("--stop", flags->generate.stop, "text that ends the answer; repeatable");
  command->add_flag("--raw", flags->raw, "no chat template: the model continues the text");
  command->add_flag("--chat", flags->chat, "insist on the model's chat template (the default where it has one)");
  add_self_check_flags(command, &flags->self_check);
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action, command] {
    flags->sources = command->count("--prompt") + command->count("--file");
    *action = [flags] { return run(*flags); };
  });
}

}  // namespace kvartet
