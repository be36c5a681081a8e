// kvartet run: one prompt or document, any number of questions on the same sealed cache.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "engine/engine.h"
#include "engine/prompt.h"

namespace kvartet {
namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  ModelFlags model;
  std::string kv = "full";
  std::string prompt;
  std::string file;
  std::vector<std::string> questions;
  GenerateOptions generate;
  bool raw = false;
  bool chat = false;
  bool json = false;
};

struct Answer {
  std::string question;
  Completion completion;
  double ttft_s = 0;
  int prompt_tokens = 0;
  Json kv_end;
};

std::size_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

// DESIGN 4: the ratio is f16 bytes of the live tokens over allocated bytes.
Json kv_json(const SequenceCache& cache, const ModelShape& shape) {
  const ByteAccount bytes = cache.bytes();
  const std::size_t full = shape.f16_bytes_per_token() * static_cast<std::size_t>(cache.next_position());
  const double ratio = bytes.allocated == 0 ? 0 : static_cast<double>(full) / static_cast<double>(bytes.allocated);
  return {{"spec", cache.spec().canonical}, {"live_bytes", bytes.live}, {"allocated_bytes", bytes.allocated},
          {"bytes_by_tier", {{"ram", bytes.allocated}}}, {"full_f16_bytes", full}, {"compression_ratio", ratio},
          {"fast_ratio", ratio}, {"rows_kept", cache.mean_rows()}, {"acted", cache.acted()}};
}

double decode_rate(const Completion& c) {
  return c.tokens.size() < 2 || c.decode_s <= 0 ? 0 : static_cast<double>(c.tokens.size() - 1) / c.decode_s;
}

Result<std::string> prompt_text(const RunFlags& flags) {
  if (!flags.file.empty()) return FileSystem::real().read_file(flags.file);
  return flags.prompt;
}

// The document is read and sealed once; what a question adds is built per question.
Result<std::vector<Token>> sealed_part(const Vocabulary& vocabulary, const RunFlags& flags, PromptForm form, const std::string& text) {
  if (flags.questions.empty()) return build_prompt(vocabulary, form, {text, ""});
  KV_ASSIGN(std::vector<Token> tokens, document_part(vocabulary, form, text));
  if (text.empty()) return bad_input("the document is empty: give text with -p or a file with -f");
  return tokens;
}

Result<Answer> answer(Engine& engine, const RunFlags& flags, PromptForm form, Sequence sequence, const std::string& question, double begin) {
  Answer result;
  result.question = question;
  if (!question.empty()) {
    KV_ASSIGN(std::vector<Token> tokens, question_part(engine.vocabulary(), form, "\n\n" + question));
    KV_TRY(engine.extend(sequence, tokens));
  }
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
  print_note(fmt::format("[{} prompt tokens, {} answered ({}), first token after {:.2f} s, {:.1f} tokens/s; {}: {:.1f} MB instead of {:.1f} MB ({:.2f}x)]",
                         a.prompt_tokens, c.tokens.size(), finish_reason_name(c.finish_reason), a.ttft_s, decode_rate(c),
                         sealed.cache.spec().canonical, kv["allocated_bytes"].get<double>() / 1e6, kv["full_f16_bytes"].get<double>() / 1e6,
                         kv["compression_ratio"].get<double>()));
}

Json answer_json(const Answer& a) {
  return {{"question", a.question}, {"text", a.completion.text}, {"finish_reason", finish_reason_name(a.completion.finish_reason)},
          {"prompt_tokens", a.prompt_tokens}, {"completion_tokens", a.completion.tokens.size()}, {"ttft_s", a.ttft_s},
          {"decode_tokens_per_s", decode_rate(a.completion)}, {"kv_end", a.kv_end}};
}

Status run(const RunFlags& flags) {
  if (flags.file.empty() == flags.prompt.empty()) return usage_error("give the prompt with either -p TEXT or -f FILE");
  if (flags.raw && flags.chat) return usage_error("--raw and --chat exclude each other; choose one");
  KV_ASSIGN(std::vector<CacheSpec> specs, parse_specs({flags.kv}));
  KV_ASSIGN(std::string text, prompt_text(flags));
  EngineOptions options;
  options.model_path = resolve_model(flags.model.model);
  options.threads = resolved_threads(flags.model);
  options.fast_tier_bytes = flags.model.fast_tier_bytes;
  options.cancel = &interrupted();
  KV_ASSIGN(std::unique_ptr<Engine> engine, Engine::open(options));

  const double begin = Clock::real().seconds();
  if (flags.chat && engine->vocabulary().chat_family().empty()) {
    return usage_error("--chat: this model has no chat template that is known here; leave the flag out");
  }
  const PromptForm form = flags.raw ? PromptForm::kRaw : PromptForm::kChat;
  KV_ASSIGN(std::vector<Token> prompt, sealed_part(engine->vocabulary(), flags, form, text));
  KV_ASSIGN(std::vector<Sequence> sealed, engine->prefill(prompt, specs, [](double share) { show_progress("reading", share); }));
  const double sealed_at = Clock::real().seconds();
  const Json kv = kv_json(sealed[0].cache, engine->shape());
  if (!sealed[0].cache.acted() && specs[0].canonical != "full" && specs[0].canonical != "f32") {
    print_note(fmt::format("note: {} did not act on {} tokens: nothing was dropped or written in fewer bits", specs[0].canonical, prompt.size()));
  }

  std::vector<std::string> questions = flags.questions;
  if (questions.empty()) questions.emplace_back();
  std::vector<Answer> answers;
  for (const std::string& question : questions) {
    // A later question did not wait for the earlier answers: its clock starts where the sealed document was ready.
    const double start = answers.empty() ? begin : Clock::real().seconds() - (sealed_at - begin);
    if (!flags.json && questions.size() > 1) print(fmt::format("Question: {}\n", question));
    KV_ASSIGN(Answer a, answer(*engine, flags, form, sealed[0].fork(), question, start));
    if (!flags.json) {
      print("\n");
      print_summary(sealed[0], kv, a);
    }
    const bool stop = a.completion.finish_reason == FinishReason::kCancelled;
    answers.push_back(std::move(a));
    if (stop) break;
  }
  if (flags.json) {
    Json document = answer_json(answers[0]);
    document["prefill_s"] = sealed[0].prefill_s;
    document["compress_s"] = sealed[0].compress_s;
    document["peak_rss_bytes"] = peak_rss_bytes();
    document["kv"] = kv;
    document["answers"] = Json::array();
    for (const Answer& a : answers) document["answers"].push_back(answer_json(a));
    print(document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  if (answers.back().completion.finish_reason == FinishReason::kCancelled) return cancelled("interrupted; the text so far was printed");
  return {};
}

}  // namespace

void add_run(CLI::App& app, Action* action) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "answer a prompt, or questions about a document, through one cache");
  add_model_flags(command, &flags->model);
  command->add_option("--kv", flags->kv, "the cache, for example kivi:bits=4 (kvartet methods lists them)")->capture_default_str();
  command->add_option("-p,--prompt", flags->prompt, "the prompt");
  command->add_option("-f,--file", flags->file, "the prompt or document, a text file");
  command->add_option("--question", flags->questions, "asked after the document was read and its cache sealed; repeat for more on the same cache");
  command->add_option("-n", flags->generate.max_tokens, "longest answer in tokens")->capture_default_str()->check(CLI::NonNegativeNumber);
  command->add_option("--temp", flags->generate.sampling.temperature, "temperature; 0 is greedy")->capture_default_str()->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-p", flags->generate.sampling.top_p, "smallest set of tokens with this probability")->capture_default_str()->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", flags->generate.sampling.seed, "of the sampling")->capture_default_str();
  command->add_option("--stop", flags->generate.stop, "text that ends the answer; repeatable");
  command->add_flag("--raw", flags->raw, "no chat template: the model continues the text");
  command->add_flag("--chat", flags->chat, "insist on the model's chat template (the default where it has one)");
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return run(*flags); }; });
}

}  // namespace kvartet
