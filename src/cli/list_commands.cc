// kvartet methods, tasks, model: what there is to choose from.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/metrics/metric.h"
#include "bench/runner/measure_sample.h"
#include "bench/tasks/task.h"
#include "cli/command.h"
#include "model/model_facts.h"

namespace kvartet {
namespace {

Status list_methods() {
  std::string text =
      "A spec is one method or several joined by '+', evicting before quantizing: snapkv:budget=0.25+kivi:bits=4\n\n";
  for (const MethodInfo& m : methods()) text += fmt::format("{:14} {:44} {}\n", m.name, m.keys, m.summary);
  print(text);
  return {};
}

Status list_tasks() {
  std::string text = fmt::format("{:26} {:26} {:16} {}\n", "task", "parameters", "metric", "what it is");
  for (const TaskEntry& t : task_registry()) text += fmt::format("{:26} {:26} {:16} {}\n", t.name, t.keys, t.metric, t.summary);
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
  return fmt::format("window         {} tokens, in {} of {} layers\n", widest->window, windowed, shape.layer_count());
}

Status describe_model(const std::string& name) {
  KV_ASSIGN(ModelFacts f, read_model_facts(resolve_model(name)));
  const ModelShape& s = f.shape;
  const LayerShape& layer = s.layers.front();
  std::string types;
  for (const auto& [type, count] : f.weight_types)
    types += fmt::format("{}{} {:.1f} M", types.empty() ? "" : ", ", type, static_cast<double>(count) / 1e6);
  print(fmt::format(
      "name           {}\narchitecture   {}\nparameters     {:.1f} M ({})\nfile           {:.1f} MB\nlayers         "
      "{}\nhidden, ffn    {}, {}\n"
      "heads          {} query, {} KV, head_dim {}\n{}vocabulary     {} ({}){}\ncontext        {}\nRoPE           base "
      "{:g}, factor {:g}{}\n"
      "chat template  {}\nf16 KV cache   {} bytes per token{}, {:.1f} MB at the full context\n",
      f.name, s.architecture, static_cast<double>(f.parameters) / 1e6, types, static_cast<double>(f.file_bytes) / 1e6,
      s.layer_count(), s.hidden, s.ffn, layer.heads, layer.kv_heads, layer.head_dim, window_line(s), s.vocab, f.vocabulary,
      f.tied_embeddings ? ", output tied to it" : "", s.context, f.rope_base, f.rope_factor,
      f.rope_factors ? ", per-frequency factors" : "", f.has_chat_template ? "yes" : "no", s.f16_bytes_per_token(),
      window_line(s).empty() ? "" : " inside the windows", static_cast<double>(f16_bytes(s, s.context)) / 1e6));
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
