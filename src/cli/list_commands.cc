// kvartet methods, tasks, model: what there is to choose from.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "bench/metrics/metric.h"
#include "bench/runner/measure_sample.h"
#include "bench/tasks/task.h"
#include "cache/spec_method.h"
#include "cli/command.h"
#include "core/bytes_text.h"
#include "core/counted.h"
#include "model/model_facts.h"

namespace kvartet {
namespace {

constexpr std::size_t kNameWidth = 15;

std::string describe_methods(std::string_view heading, std::span<const SpecMethod> table,
                             const std::function<bool(std::string_view)>& belongs) {
  std::string text = fmt::format("\n{}\n", heading);
  for (const SpecMethod& method : table) {
    const MethodInfo& m = method.info;
    if (!belongs(m.name)) continue;
    text += wrapped(fmt::format("{:14} {}", m.name, m.summary), kNameWidth);
    if (!m.keys.empty()) text += wrapped(std::string(kNameWidth, ' ') + m.keys, kNameWidth);
  }
  return text;
}

Status list_methods() {
  std::string text =
      "A spec is a method with its keys, such as kivi:bits=2,residual=64, or two joined by '+', evicting before quantizing:\n"
      "snapkv:budget=0.25+kivi:bits=4. Keys and values may differ: kivi:bits=4/2, q8_0/q4_0. Defaults are shown, first.\n";
  const auto any = [](std::string_view) { return true; };
  const auto plain = [](std::string_view name) { return name == "full" || name == "f32"; };
  const auto merges = [](std::string_view name) { return name == "cam"; };  // it also chooses which rows leave
  text += describe_methods("PLAIN", quantizer_methods(), plain);
  text += describe_methods("QUANTIZE: fewer bits per number; every one also takes center=mean and keep=LAYERS",
                           quantizer_methods(), std::not_fn(plain));
  text += describe_methods("EVICT: fewer rows", evictor_methods(), std::not_fn(merges));
  text += describe_methods("MERGE: rows that leave are added to rows that stay", evictor_methods(), merges);
  text +=
      describe_methods("OFFLOAD: every row stays; a small index finds the few that a step reads, and the others may lie far away",
                       offload_methods(), any);
  print(text);
  return {};
}

Status list_tasks() {
  std::string text = fmt::format("{:30} {:25} {:14} {}\n", "task", "parameters", "metric", "what it is");
  for (const TaskEntry& t : task_registry())
    text += wrapped(fmt::format("{:30} {:25} {:14} {}", t.name, t.keys, t.metric, t.summary), 72);
  text += "\nYour own file: --task my.jsonl --metric NAME, one JSON record per line with input, context, answers. Metrics:\n";
  for (const Metric& m : metrics()) text += fmt::format("  {:16} {}\n", m.name, m.summary);
  text += fmt::format("  {:16} {}\n", kLikelihoodMetric, "no free-running score, only the likelihood of the first answer");
  print(text);
  return {};
}

std::string window_line(const ModelShape& shape) {
  const auto windowed = std::count_if(shape.layers.begin(), shape.layers.end(), [](const LayerShape& l) { return l.window > 0; });
  if (windowed == 0) return "";
  const auto widest = std::max_element(shape.layers.begin(), shape.layers.end(),
                                       [](const LayerShape& a, const LayerShape& b) { return a.window < b.window; });
  return fmt::format("window         {}, in {} of {}\n", counted(widest->window, "token"), windowed,
                     counted(shape.layer_count(), "layer"));
}

Status describe_model(const std::string& name) {
  KV_ASSIGN(const std::string path, resolve_model(name));
  KV_ASSIGN(ModelFacts f, read_model_facts(path));
  const ModelShape& s = f.shape;
  const LayerShape& layer = s.layers.front();
  std::string types;
  for (const auto& [type, count] : f.weight_types)
    types += fmt::format("{}{} {:.1f} M", types.empty() ? "" : ", ", type, static_cast<double>(count) / 1e6);
  print(fmt::format(
      "name           {}\narchitecture   {}\nparameters     {:.1f} M ({})\nfile           {}\nlayers         "
      "{}\nhidden, ffn    {}, {}\n"
      "heads          {} query, {} KV, head_dim {}\n{}vocabulary     {} ({}){}\ncontext        {}\nRoPE           base "
      "{:g}, factor {:g}{}\n"
      "chat template  {}\nf16 KV cache   {} bytes per token{}, {} at the full context\n",
      f.name, s.architecture, static_cast<double>(f.parameters) / 1e6, types, bytes_text(f.file_bytes), s.layer_count(), s.hidden,
      s.ffn, layer.heads, layer.kv_heads, layer.head_dim, window_line(s), s.vocab, f.vocabulary,
      f.tied_embeddings ? ", output tied to it" : "", s.context, f.rope_base, f.rope_factor,
      f.rope_factors ? ", per-frequency factors" : "", f.has_chat_template ? "yes" : "no", s.f16_bytes_per_token(),
      window_line(s).empty() ? "" : " inside the windows", bytes_text(f16_bytes(s, s.context))));
  return {};
}

}  // namespace

void add_lists(CLI::App& app, Action* action) {
  app.add_subcommand("methods", "the caches and their parameters")->callback([action] { *action = list_methods; });
  app.add_subcommand("tasks", "the benchmark's tasks and metrics")->callback([action] { *action = list_tasks; });
  auto name = std::make_shared<std::string>();
  CLI::App* model = app.add_subcommand("model", "what a model file holds; reads no weights");
  model->add_option("MODEL", *name, "a GGUF file, or the name of one in models/")->required();
  model->callback([name, action] { *action = [name] { return describe_model(*name); }; });
}

}  // namespace kvartet
