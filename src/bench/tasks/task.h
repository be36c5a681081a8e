// A task: where samples come from and by which metric their answers are scored. The runner knows nothing else of a task.
//
// A task spec is `name[/set][:key=value,...]`, for example `needle`, `multineedle:k=4`, `longbench/multi_news`, or the
// path of the user's own record file (`my.jsonl`, with a metric chosen beside it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/json_lines.h"
#include "bench/metrics/metric.h"
#include "core/file_system.h"
#include "core/status.h"
#include "engine/prompt.h"

namespace kvartet {

// Bytes [begin, end) of a sample's document that hold a piece of what its answer needs.
struct GoldSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// One prompt with its reference answers. The prompt is before + document + question, all plain text; the chat template
// goes around it. Only `question` may depend on what is asked, so with --question-position unseen the caches are sealed
// after `document` and `question` comes as an extension; with second, `question` also stands in a turn of its own, without the
// white space in front. A sample with an empty document has only a seen form.
struct Sample {
  std::string id;        // unique within the task, stable over runs: results and predictions are keyed by it
  std::string before;    // prompt text in front of the document
  std::string document;  // the long text
  std::string question;  // everything behind the document: instruction, question, answer cue

  std::vector<std::string> answers;      // references, never empty; how several are used is the metric's business
  std::vector<std::string> all_classes;  // class names for the `classification` metric, else empty
  std::string gold;                      // text whose likelihood is measured, bare (see gold_continuation)
  std::vector<GoldSpan> gold_spans;      // where in `document` the answer stands, ascending; empty: everywhere or unknown
  int length = 0;                        // LongBench's `length` field: words, NOT tokens; generators: words of the document

  int max_new_tokens = 128;
  bool chat_template = true;     // false: the plain prompt, even for chat models
  bool stop_at_newline = false;  // after at least one token

  std::string prompt() const { return before + document + question; }
  std::vector<double> gold_depths() const;  // begins of the gold spans as shares of the document, in [0, 1)
};

// The text to score by likelihood: `gold`, with one space in front when a plain prompt ends in a visible character.
std::string gold_continuation(const Sample& sample, PromptForm form);

inline constexpr const char* kSetUpEssays = "models/haystack";  // where set-up puts the default haystack

struct TaskRequest {
  // Tokens of the whole prompt, template and answer left out. Generators aim at it and never exceed it; record tasks
  // ignore it: the runner cuts their prompts in the middle (compression.md 13.1). 0: no wish.
  int context_tokens = 0;
  int samples = 0;                        // at most that many; 0: all there are (generators: 20)
  std::uint64_t seed = 1;                 // generators only: record tasks take the first `samples` records in file order
  std::string data_dir;                   // --data; holds longbench/, ...; may be empty for tasks that need no files
  std::string essays_dir = kSetUpEssays;  // essays as .txt, where data_dir has no haystack/
  FileSystem* files = nullptr;            // never null
  std::function<Result<int>(std::string_view)> count_tokens;  // of plain text, without BOS; set for generators
};

struct SampleSet {
  std::vector<Sample> samples;
  std::vector<SkippedLine> skipped;  // records that could not be used, to be named in the report (never silently fewer)
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string spec() const = 0;    // canonical: what results and tables show
  virtual std::string metric() const = 0;  // a name for find_metric(), or kLikelihoodMetric: no free-running score
  virtual AnswerCut answer_cut() const { return AnswerCut::kNone; }  // what score_answer() cuts off before the metric
  // kBadInput: files missing or useless; kUsage: a request that makes no sense; kExhausted: context_tokens too small.
  virtual Result<SampleSet> samples(const TaskRequest& request) const = 0;
};

// A parsed task spec. `set` is what follows the slash.
struct TaskSpec {
  std::string name;
  std::string set;
  std::vector<std::pair<std::string, std::string>> keys;
};
Result<TaskSpec> parse_task_spec(std::string_view text);

// One line of `kvartet tasks` and of the registry. A task is one file that offers a `TaskEntry x_task()`.
struct TaskEntry {
  std::string name;  // "multineedle"; record tasks: "longbench/hotpotqa"
  std::string keys;  // as help shows them: "k=4"
  std::string metric;
  std::string summary;                                                 // one line
  std::function<Result<std::unique_ptr<Task>>(const TaskSpec&)> make;  // kUsage: a key or value it does not know
};

// Every task, in the order that help shows.
const std::vector<TaskEntry>& task_registry();

// The task of a spec. `metric` is for the user's own files only, where it must be given (`contains`, `f1`, ...);
// for other tasks it must be empty. kUsage: unknown task (naming the nearest), key, value or metric.
Result<std::unique_ptr<Task>> make_task(std::string_view spec, std::string_view metric = {});

}  // namespace kvartet
