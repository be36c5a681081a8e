#include "bench/runner/benchmark.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bench/metrics/metric.h"
#include "bench/runner/predictions.h"
#include "bench/runner/second_question.h"
#include "core/counted.h"

namespace kvartet {
namespace {

// A prompt is tokenized in parts (document, question) but a task counts it whole: the two counts differ by a few tokens.
constexpr int kCountSlack = 8;

// Prompts of thousands of samples take minutes to prepare.
Status check_cancel(const BenchmarkRequest& request) {
  if (request.cancel == nullptr || !request.cancel->load()) return {};
  return cancelled("interrupted while prompts were prepared; nothing was run");
}

Result<SampleSet> task_samples(const Task& task, const BenchmarkRequest& request, int context, const Vocabulary& vocabulary,
                               FileSystem& files) {
  TaskRequest wish;
  wish.seed = request.seed;
  wish.data_dir = request.data_dir;
  wish.essays_dir = request.essays_dir;
  wish.files = &files;
  wish.count_tokens = [&](std::string_view text) -> Result<int> {  // every generator asks several times for each sample
    KV_TRY(check_cancel(request));
    KV_ASSIGN(const std::vector<Token> tokens, vocabulary.tokenize(text));
    return static_cast<int>(tokens.size());
  };
  // How long the answer may be is known from a sample only, so one is asked for first.
  wish.samples = 1;
  wish.context_tokens = context;
  KV_ASSIGN(const SampleSet probe, task.samples(wish));
  if (probe.samples.empty()) return bad_input(fmt::format("The task {} has no samples.", task.spec()));
  const Sample& first = probe.samples.front();
  const PromptForm form = prompt_form(vocabulary, first);
  KV_ASSIGN(const int frame, template_tokens(vocabulary, form));
  KV_ASSIGN(const std::vector<Token> gold, vocabulary.tokenize(gold_continuation(first, form)));
  // Gold texts of one generator differ by a few tokens, which the slack covers too.
  const int answer_room = std::max(first.max_new_tokens, static_cast<int>(gold.size()) + kCountSlack);
  wish.context_tokens = context - frame - answer_room - kCountSlack;
  wish.samples = request.samples;
  if (wish.context_tokens <= 0) {
    return exhausted(
        fmt::format("The context of {} tokens leaves no room for the prompt of {}: {} go to the template and {} to the answer; "
                    "give a larger --context.",
                    context, task.spec(), frame, answer_room));
  }
  return task.samples(wish);
}

// The name of a folder of predictions: most file systems take 255 bytes.
Status check_name_length(const Task& task) {
  constexpr std::size_t kLongest = 240;
  const std::size_t bytes = path_name(task.spec()).size();
  if (bytes <= kLongest) return {};
  return usage_error(
      fmt::format("The task name {}... has {} bytes, and a folder of predictions is named after it: at most {} are possible; "
                  "put the file where its path is shorter.",
                  task.spec().substr(0, 60), bytes, kLongest));
}

Result<PlannedTask> plan_task(const Task& task, const BenchmarkRequest& request, int context, const Vocabulary& vocabulary,
                              FileSystem& files) {
  PlannedTask out;
  out.task = task.spec();
  out.metric = task.metric();
  out.answer_cut = task.answer_cut();
  out.context = context;
  KV_ASSIGN(SampleSet set, task_samples(task, request, context, vocabulary, files));
  out.skipped = std::move(set.skipped);
  int ordinal = 0;
  for (Sample& sample : set.samples) {
    KV_TRY(check_cancel(request));
    const SampleKey key = {out.task, context, sample.id};
    KV_ASSIGN(PreparedSample prepared, prepare_sample(vocabulary, std::move(sample), key, ordinal++));
    out.samples.push_back(std::move(prepared));
  }
  return out;
}

// White space between document and answer, or the template's end, is no question.
bool lacks_question(const PreparedSample& s) { return s.question.empty() || s.record.question.empty(); }

// The positions of `asked` that the task can run in, and why it cannot in the first of the others: a sentence without its end.
struct PossiblePositions {
  std::vector<QuestionPosition> positions;
  std::string obstacle;
  std::string hint;

  std::string names() const {
    std::vector<std::string> out;
    for (const QuestionPosition position : positions) out.emplace_back(question_position_name(position));
    return fmt::format("{}", fmt::join(out, " and "));
  }
};

PossiblePositions possible_positions(const PlannedTask& task, std::span<const QuestionPosition> asked) {
  const auto bare = std::ranges::find_if(task.samples, lacks_question);
  PossiblePositions out;
  for (const QuestionPosition position : asked) {
    std::string obstacle, hint;
    if (position != QuestionPosition::kSeen && bare != task.samples.end()) {
      obstacle = fmt::format("The sample {} of {} at {} tokens has no question apart from its document", bare->record.key.sample,
                             task.task, task.context);
    } else if (position == QuestionPosition::kSecond && !can_ask_second(task.samples)) {
      obstacle = fmt::format(
          "--question-position second needs at least two questions about a document, and the prompts of {} at {} tokens have one "
          "each",
          task.task, task.context);
      hint = how_to_ask_several(task.task);
    }
    if (obstacle.empty()) {
      out.positions.push_back(position);
    } else if (out.obstacle.empty()) {
      out.obstacle = std::move(obstacle);
      out.hint = std::move(hint);
    }
  }
  return out;
}

// A second question comes on top of the prompt and answer for which the context was asked.
Status check_conversations(const PlannedTask& task, int model_context) {
  for (const PreparedSample& s : task.samples) {
    const int tokens = s.record.prompt_tokens + std::max(s.sample.max_new_tokens, s.record.gold_tokens);
    if (tokens <= model_context) continue;
    const int fitting = task.context - (tokens - model_context);
    return exhausted(
        fmt::format("A second question comes on top of --context: with the first and its answer the sample {} of {} at {} tokens "
                    "takes {}, and "
                    "the model was trained for {}; {}.",
                    s.record.key.sample, task.task, task.context, counted(tokens, "token"), model_context,
                    fitting > 0 ? fmt::format("give --context {} or less", fitting) : "choose another task"));
  }
  return {};
}

// As second questions; what cannot be asked second is told.
Status make_second(PlannedTask* task, int model_context) {
  SecondQuestions second = ask_second(task->samples);
  if (second.alone > 0) {
    task->note += fmt::format("{}{} at {} tokens: {} the only one about the document, left out at --question-position second.",
                              task->note.empty() ? "" : " ", task->task, task->context,
                              counted(second.alone, "question is", "questions are each"));
  }
  task->samples = std::move(second.samples);
  return check_conversations(*task, model_context);
}

// The same questions once for each position.
Status add_positions(PlannedTask task, std::span<const QuestionPosition> asked, int model_context,
                     std::vector<PlannedTask>* plan) {
  const PossiblePositions possible = possible_positions(task, asked);
  if (possible.positions.empty()) {
    const std::string& hint = possible.hint;
    return usage_error(fmt::format("{}; {}.", possible.obstacle, hint.empty() ? "use --question-position seen" : hint));
  }
  if (!possible.obstacle.empty()) {
    task.note = fmt::format("{}: only --question-position {} is run{}{}.", possible.obstacle, possible.names(),
                            possible.hint.empty() ? "" : "; ", possible.hint);
  }
  share_documents(task.samples, possible.positions.size());
  for (const QuestionPosition position : possible.positions) {
    PlannedTask one = task;
    one.position = position;
    for (PreparedSample& sample : one.samples) sample.record.key.position = position;
    if (position == QuestionPosition::kSecond) KV_TRY(make_second(&one, model_context));
    task.skipped.clear();  // to be told once
    task.note.clear();
    plan->push_back(std::move(one));
  }
  return {};
}

void score(const PlannedTask& task, const PreparedSample& sample, std::span<Outcome> outcomes) {
  const Metric* metric = find_metric(task.metric);
  if (metric == nullptr) return;  // judged by likelihood alone
  for (Outcome& o : outcomes) {
    if (o.failed()) continue;
    const std::string answer = cut_answer(task.answer_cut, o.prediction);
    if (const Status status = check_answer(task.metric, answer, sample.sample.answers, sample.sample.all_classes); !status.ok()) {
      o.error = fmt::format("the answer could not be scored by {}: {}", task.metric, status.message());
      continue;
    }
    o.score = score_answer(*metric, task.answer_cut, o.prediction, sample.sample.answers, sample.sample.all_classes);
  }
}

// A sample with the caches that have no outcome for it yet.
struct Job {
  const PlannedTask* task = nullptr;
  const PreparedSample* sample = nullptr;
  std::vector<CacheSpec> missing;
  bool begins_document = true;  // or what it shares with the job before is there
  bool ends_document = true;

  // What it takes, in prompt tokens. A shared prefix costs nothing; the answers, which cost as much as for any prompt, are a
  // quarter of the time of long prompts through a handful of caches.
  double work() const {
    constexpr double kAnswers = 0.25;
    const double all = sample->record.prompt_tokens;
    return begins_document ? all : all - (1 - kAnswers) * sample->shared_tokens;
  }
};

// Rate and time left from the samples this run has finished.
class Pace {
 public:
  Pace(const Clock& clock, std::span<const Job> jobs) : clock_(clock), start_(clock.seconds()) {
    for (const Job& job : jobs) left_ += job.work();
  }
  void finished(const Job& job) {
    tokens_ += job.sample->record.prompt_tokens;
    done_ += job.work();
    left_ -= job.work();
  }
  void tell(BenchmarkProgress& progress, const Job& current) const {
    if (done_ == 0) return;
    const double elapsed = clock_.seconds() - start_;
    if (elapsed <= 0) return;
    const double within = progress.sample_share * current.work();
    progress.tokens_per_s = (tokens_ + progress.sample_share * current.sample->record.prompt_tokens) / elapsed;
    progress.seconds_left = std::max(0.0, left_ - within) * elapsed / (done_ + within);
  }

 private:
  const Clock& clock_;
  double start_;
  double tokens_ = 0;  // of finished prompts
  double done_ = 0;
  double left_ = 0;
};

void gather_documents(std::vector<Job>& jobs) {
  std::map<DocumentKey, std::size_t> first;
  std::vector<std::pair<std::size_t, Job>> placed;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const bool shares = jobs[i].sample->shared_tokens > 0;
    const std::size_t place = shares ? first.try_emplace(document_key(*jobs[i].sample), i).first->second : i;
    placed.emplace_back(place, std::move(jobs[i]));
  }
  std::ranges::stable_sort(placed, {}, &std::pair<std::size_t, Job>::first);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    jobs[i] = std::move(placed[i].second);
    jobs[i].begins_document = i == 0 || placed[i].first != placed[i - 1].first;
    jobs[i].ends_document = i + 1 == placed.size() || placed[i + 1].first != placed[i].first;
  }
}

Result<std::vector<Job>> open_jobs(std::span<const PlannedTask> plan, std::span<const CacheSpec> specs, Store& store,
                                   BenchmarkSummary& summary) {
  std::vector<std::string> names;
  for (const CacheSpec& spec : specs) names.push_back(spec.canonical);
  std::vector<Job> jobs;
  for (const PlannedTask& task : plan) {
    KV_TRY(store.add_task(task.task, task.metric));
    for (const PreparedSample& sample : task.samples) {
      KV_ASSIGN(const std::vector<std::string> missing, store.missing(sample.record.key, sample.record.prompt_hash, names));
      KV_TRY(store.note_document(sample.record));
      if (missing.empty()) {
        ++summary.samples_resumed;
        continue;
      }
      Job job = {&task, &sample, {}};
      for (const CacheSpec& spec : specs) {
        if (std::find(missing.begin(), missing.end(), spec.canonical) != missing.end()) job.missing.push_back(spec);
      }
      jobs.push_back(std::move(job));
    }
  }
  gather_documents(jobs);
  return jobs;
}

}  // namespace

Result<std::vector<PlannedTask>> plan_benchmark(const BenchmarkRequest& request, const Vocabulary& vocabulary,
                                                const ModelShape& shape, FileSystem& files) {
  if (request.tasks.empty()) return usage_error("No task was named; give --task, for example --task needle.");
  std::vector<int> contexts = request.contexts;
  if (contexts.empty()) contexts.push_back(shape.context);
  std::vector<PlannedTask> plan;
  for (const std::string& spec : request.tasks) {
    KV_ASSIGN(const std::unique_ptr<Task> task, make_task(spec, request.metric));
    KV_TRY(check_name_length(*task));
    for (int context : contexts) {
      if (context < 1 || context > shape.context) {
        return exhausted(
            fmt::format("A context of {} tokens was asked for, but the model was trained for {}; give --context from 1 to {}.",
                        context, shape.context, shape.context));
      }
      const bool twice = std::any_of(plan.begin(), plan.end(),
                                     [&](const PlannedTask& p) { return p.task == task->spec() && p.context == context; });
      if (twice) continue;
      KV_ASSIGN(PlannedTask planned, plan_task(*task, request, context, vocabulary, files));
      KV_TRY(add_positions(std::move(planned), request.question_positions, shape.context, &plan));
    }
  }
  return plan;
}

std::string run_parameters(const BenchmarkRequest& request) { return request.form.empty() ? "" : "form=" + request.form; }

Result<BenchmarkSummary> run_benchmark(std::span<const PlannedTask> plan, std::span<const CacheSpec> specs, Store& store,
                                       const BenchmarkHooks& hooks) {
  KV_CHECK(!specs.empty() && hooks.measure);
  BenchmarkSummary summary;
  KV_ASSIGN(const std::vector<Job> jobs, open_jobs(plan, specs, store, summary));
  if (hooks.begin) {
    std::vector<const PreparedSample*> samples;
    for (const Job& job : jobs) samples.push_back(job.sample);
    KV_TRY(hooks.begin(samples));
  }
  Pace pace(*hooks.clock, jobs);

  for (const Job& job : jobs) {
    const SampleRecord& record = job.sample->record;
    const auto report = [&](double share) {
      if (!hooks.progress) return;
      BenchmarkProgress progress = {
          .cell = record.key.cell(), .done = summary.samples_run, .total = static_cast<int>(jobs.size()), .sample_share = share};
      pace.tell(progress, job);
      hooks.progress(progress);
    };
    if (hooks.cancel != nullptr && hooks.cancel->load()) {
      summary.cancelled = true;
      break;
    }
    report(0);
    Result<std::vector<Outcome>> outcomes = hooks.measure(*job.sample, job.missing, report);
    if (!outcomes.ok() && outcomes.status().code() == Code::kCancelled) {
      summary.cancelled = true;
      break;
    }
    if (!outcomes.ok()) return std::move(outcomes).status();
    score(*job.task, *job.sample, *outcomes);
    KV_TRY(store.finish_sample(record, *outcomes));
    for (const Outcome& o : *outcomes) summary.outcomes_failed += o.failed() ? 1 : 0;
    ++summary.samples_run;
    pace.finished(job);
    if (job.ends_document && hooks.end_document) hooks.end_document();
    report(0);
  }
  return summary;
}

}  // namespace kvartet
