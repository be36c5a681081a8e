// Scores that the compression paper's artifact gives for its two models, to stand beside ours where the same model runs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvartet {

// LongBench points of compression.md 15.1; "" is not one of the paper's models. `method` is "full", "KIVI-4", ...; `task` is
// "longbench/hotpotqa", .... TurboQuant's summaries as re-scored with LongBench's metric (15.2): the artifact's own are of
// another.
std::string published_model(std::string_view model_name);  // "Llama-3.1-8B-Instruct" of a path or name that holds it
std::optional<double> published_score(std::string_view model, std::string_view method, std::string_view task);

}  // namespace kvartet
