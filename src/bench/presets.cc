#include "bench/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cache/spec_grammar.h"
#include "cache/spec_list.h"

namespace kvartet {
namespace {

constexpr const char* kRank = "{channels_160}";

PresetTask longbench(const std::string& set, int samples) {
  return {"longbench/" + set, {6144}, samples, "longbench/" + set + ".jsonl"};
}

// arXiv 2607.05399, compression.md 15: eight configurations (with streamingllm, a neighbour of ours at SnapKV's budget).
Preset compression_paper() {
  Preset p;
  p.name = "compression-paper";
  p.summary = "KIVI, TurboQuant, SnapKV, CaM against full: the study of arXiv 2607.05399";
  p.caches = {{"full", {"full"}},
              {"KIVI-2", {"kivi:bits=2,group=32,residual=32"}},
              {"KIVI-4", {"kivi:bits=4,group=32,residual=32"}},
              {"TurboQuant-3", {"turboquant:bits=3.25", "turboquant:bits=3"}},
              {"TurboQuant-4", {"turboquant:bits=4"}},
              {"SnapKV", {"snapkv:budget=0.25"}},
              {"CaM", {"cam:target=1024,interval=32"}},
              {"StreamingLLM", {"streamingllm:budget=0.25"}}};
  for (const char* set :
       {"hotpotqa", "2wikimqa", "qasper", "multifieldqa_en", "triviaqa", "multi_news", "gov_report", "narrativeqa"})
    p.tasks.push_back(longbench(set, 50));
  const std::vector<int> lengths = {1024, 2048, 4096, 6144};
  // Four questions a document where its facts suffice: most of a prompt's time is its prefill (docs/decisions/0012).
  for (const char* task : {"docqa:questions=4", "multihop:questions=4", "fewshot:questions=4", "needle:questions=4",
                           "multineedle:k=2,questions=4", "multineedle:k=4,questions=4", "multineedle:k=8,questions=2"})
    p.tasks.push_back({task, lengths, 20});
  return p;
}

// The same study with the settings of the paper's own runs (compression.md 15): its rotation, pooling and inner policy, CaM's
// answers cut at 64 tokens, all samples of its sets and nothing else, nothing truncated that the model can take.
Preset compression_paper_as_run() {
  Preset p;
  p.name = "compression-paper:form=paper";
  p.summary = "the same with the settings of the paper's own runs, as far as one harness can have them";
  p.form = "paper";
  p.caches = {{"full", {"full"}},
              {"KIVI-2", {"kivi:bits=2,group=32,residual=32"}},
              {"KIVI-4", {"kivi:bits=4,group=32,residual=32"}},
              {"TurboQuant-3", {"turboquant:bits=3.25,rotation=dense", "turboquant:bits=3,rotation=dense"}},
              {"TurboQuant-4", {"turboquant:bits=4,rotation=dense"}},
              {"SnapKV", {"snapkv:budget=0.25,window=32,kernel=7,pool=avg"}},
              {"CaM", {"cam:target=1024,interval=32,merge=32,base=snapkv,window=16,kernel=7,pool=avg"}, 64}};
  p.notes = {
      "Paper form: not repeated are TurboQuant's prompt attention over its own codes, its norms in fp32 and its other metric for "
      "summaries, "
      "the chat templates that differ from method to method, and kvpress' limit of 32 merges in CaM's first pass (compression.md "
      "15.2)."};
  for (const char* set :
       {"hotpotqa", "2wikimqa", "qasper", "multifieldqa_en", "triviaqa", "multi_news", "gov_report", "narrativeqa"}) {
    p.tasks.push_back(longbench(set, 200));
    p.tasks.back().contexts = {131072};
  }
  return p;
}

// offloading.md 3 to 5, 9.3, 13: the presets of the methods, and one cache for each axis that the paper blames or praises.
Preset offloading_paper() {
  Preset p;
  p.name = "offloading-paper";
  p.summary = "ShadowKV, YAKV, their neighbours and each axis between them on context-intensive work";
  const std::string rank = std::string(",rank=") + kRank;
  p.caches = {{"full", {"full"}},
              {"oracle", {"oracle"}},
              {"low-rank keys", {"oracle:keys=svd" + rank}},
              {"2-bit keys", {"oracle:keys=higgs2,values=f16"}},
              {"chunk-8 landmarks", {"select:chunk=8,index=bf16"}},
              {"4-bit landmarks", {"select:chunk=1,index=higgs4"}},
              {"2-bit landmarks", {"select:chunk=1,index=higgs2"}},
              {"1-bit landmarks", {"select:chunk=1,index=higgs1"}},
              {"residual landmarks", {"select:chunk=1,index=residual"}},
              {"ShadowKV", {"shadowkv:sinks=64" + (",rank=" + std::string(kRank))}},
              {"ShadowKV, rank 160", {"shadowkv:sinks=64,rank=160"}},
              {"YAKV", {"yakv"}},
              {"YAKV's engine", {"yakv-engine"}},
              {"Quest", {"quest"}},
              {"ArkVale", {"arkvale"}},
              {"InfiniGen", {"infinigen"}},
              {"LRQK", {"lrqk"}}};
  const std::vector<int> lengths = {2048, 4096, 6144};
  for (const char* task : {"needle:questions=4", "multineedle:k=4,questions=4", "multineedle:k=8,questions=2", "codebase",
                           "contracts", "text2json:shape=scaled"})
    p.tasks.push_back({task, lengths, 20});
  p.tasks.push_back({"text2json", {32768}, 20});
  p.tasks.push_back({"text2json/released", {32768, 131072}, 20, "text2json/text2json.jsonl"});
  p.tasks.push_back({"needlebench/multineedle", {6144, 32768}, 20, "needlebench/needles.jsonl"});
  p.tasks.push_back({"longproc/html_to_tsv:group=0.5k", {8192}, 20, "longproc/html_to_tsv_0.5k.json"});
  p.tasks.push_back({"longproc/html_to_tsv:group=8k", {32768}, 20, "longproc/html_to_tsv_8k.json"});
  p.tasks.push_back({"loong", {32768, 131072}, 20, "loong/loong.jsonl"});
  return p;
}

// 160 of Llama-3.1-8B's 8 x 128 key channels, as a share of this model's; at least 1.
int scaled_rank(const ModelShape& shape) {
  const LayerShape& layer = shape.layers.front();
  return std::max(1, static_cast<int>(std::lround(160.0 / 1024 * layer.kv_heads * layer.head_dim)));
}

std::string filled(std::string spec, const ModelShape& shape) {
  const std::size_t at = spec.find(kRank);
  if (at != std::string::npos) spec.replace(at, std::string_view(kRank).size(), std::to_string(scaled_rank(shape)));
  return spec;
}

std::string_view family(std::string_view task) { return task.substr(0, task.find(':')); }

// A task of --task, at the lengths of the preset's own task of that name: `docqa` and `docqa:questions=2` as its
// `docqa:questions=4`. One that the preset does not know takes the model's context.
PresetTask asked_by_name(const Preset& preset, const std::string& task, const ModelShape& shape) {
  auto known = std::ranges::find(preset.tasks, task, &PresetTask::task);
  if (known == preset.tasks.end())
    known = std::ranges::find_if(preset.tasks, [&](const PresetTask& own) { return family(own.task) == family(task); });
  if (known == preset.tasks.end()) return {task, {shape.context}, 0, ""};
  PresetTask chosen = *known;
  chosen.task = task;
  chosen.file.clear();  // asked for by name: a missing file is then an error of its own
  return chosen;
}

// What stood in the way of a preset's tasks.
struct LeftOut {
  std::string missing_file;  // the first; "": none is missing
  int shortest_context = 0;  // of the tasks that are longer than the model's; 0: there are none
};

// Why nothing is left, and what would help: each cause has its own remedy.
Status nothing_left(const Preset& preset, const LeftOut& left, const std::string& data_dir, const ModelShape& shape) {
  if (left.shortest_context > 0) {
    return exhausted(fmt::format(
        "The shortest prompts of the preset {} have {} tokens, and the model's context holds {}; give shorter ones with "
        "--context, or a model with a longer context{}.",
        preset.name, left.shortest_context, shape.context,
        left.missing_file.empty() ? "" : "; its other tasks need files under --data"));
  }
  if (data_dir.empty()) {
    return usage_error(
        fmt::format("All tasks of the preset {} read files of published sets; name the folder that holds them with --data, for "
                    "example {}, or give other tasks with --task.",
                    preset.name, left.missing_file));
  }
  return bad_input(
      fmt::format("No file of the preset {} is under {}, where {} would be one; 'kvartet data check {}' tells what is there.",
                  preset.name, data_dir, left.missing_file, data_dir));
}

std::string list_of(const std::vector<int>& numbers) {
  std::string out;
  for (const int n : numbers) out += (out.empty() ? "" : ", ") + std::to_string(n);
  return out;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {compression_paper(), offloading_paper(), compression_paper_as_run()};
  return all;
}

Result<const Preset*> find_preset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) {
    if (preset.name == name) return &preset;
    names.push_back(preset.name);
  }
  if (name.empty()) return usage_error(fmt::format("the preset has no name; choose {}", list_names(names)));
  return usage_error(fmt::format("unknown preset {}; {}", kvartet::quoted(name), choice_hint(name, names)));
}

Result<PresetSpecs> preset_specs(const Preset& preset, const ModelShape& shape) {
  PresetSpecs out;
  out.notes = preset.notes;
  for (const PresetCache& cache : preset.caches) {
    std::string refusal;
    bool found = false;
    for (const std::string& alternative : cache.alternatives) {
      KV_ASSIGN(CacheSpec spec, parse_spec(filled(alternative, shape)));
      if (const Status fits = check_spec(spec, shape); !fits.ok()) {
        refusal = fits.message();
        continue;
      }
      const std::string canonical = spec.canonical;
      if (!add_once(&out.specs, std::move(spec))) {
        out.notes.push_back(
            fmt::format("{} is the same as an earlier cache on this model ({}); it runs once.", cache.name, canonical));
      } else {
        if (!refusal.empty()) out.notes.push_back(fmt::format("{} runs as {}: {}.", cache.name, canonical, refusal));
        if (cache.most_new_tokens > 0) out.caps[canonical] = cache.most_new_tokens;
      }
      found = true;
      break;
    }
    if (!found) out.notes.push_back(fmt::format("{} is left out: {}.", cache.name, refusal));
  }
  return out;
}

Result<PresetRequests> preset_requests(const Preset& preset, const BenchmarkRequest& wishes, const ModelShape& shape,
                                       FileSystem& files) {
  std::vector<PresetTask> tasks = preset.tasks;
  if (!wishes.tasks.empty()) {
    tasks.clear();
    for (const std::string& task : wishes.tasks) {
      tasks.push_back(asked_by_name(preset, task, shape));
    }
  }
  PresetRequests out;
  LeftOut left;
  for (const PresetTask& task : tasks) {
    if (!task.file.empty() && (wishes.data_dir.empty() || !files.exists(wishes.data_dir + "/" + task.file))) {
      out.notes.push_back(wishes.data_dir.empty()
                              ? fmt::format("{} is left out: it needs --data.", task.task)
                              : fmt::format("{} is left out: {}/{} is not there.", task.task, wishes.data_dir, task.file));
      if (left.missing_file.empty()) left.missing_file = task.file;
      continue;
    }
    BenchmarkRequest request = wishes;
    request.tasks = {task.task};
    if (request.samples == 0) request.samples = task.samples;
    if (request.contexts.empty()) {
      request.contexts = task.contexts;
      std::erase_if(request.contexts, [&](int context) { return context > shape.context; });
      // A set of records is cut to the context, so a shorter one will do; a generated task at that length exists already.
      if (request.contexts.empty() && !task.file.empty()) request.contexts = {shape.context};
      if (request.contexts.size() < task.contexts.size())
        out.notes.push_back(fmt::format("{} at {} tokens: the model has a context of {}{}.", task.task, list_of(task.contexts),
                                        shape.context,
                                        request.contexts.empty() ? "; left out" : "; run at " + list_of(request.contexts)));
      if (request.contexts.empty()) {
        const int shortest = *std::ranges::min_element(task.contexts);
        left.shortest_context = left.shortest_context == 0 ? shortest : std::min(left.shortest_context, shortest);
        continue;
      }
    }
    out.requests.push_back(std::move(request));
  }
  if (out.requests.empty()) return nothing_left(preset, left, wishes.data_dir, shape);
  return out;
}

Result<PresetPlan> plan_preset(std::span<const BenchmarkRequest> requests, const Vocabulary& vocabulary, const ModelShape& shape,
                               FileSystem& files) {
  PresetPlan out;
  for (const BenchmarkRequest& request : requests) {
    for (const int context : request.contexts) {
      BenchmarkRequest one = request;
      one.contexts = {context};
      Result<std::vector<PlannedTask>> plan = plan_benchmark(one, vocabulary, shape, files);
      if (!plan.ok() && plan.status().code() == Code::kExhausted) {
        out.notes.push_back(
            fmt::format("{} at {} tokens is left out: {}", request.tasks.front(), context, plan.status().message()));
        continue;
      }
      if (!plan.ok()) return std::move(plan).status();
      std::ranges::move(*plan, std::back_inserter(out.tasks));
    }
  }
  if (out.tasks.empty()) return exhausted("No task of the preset fits the contexts; give larger ones with --context.");
  return out;
}

}  // namespace kvartet
