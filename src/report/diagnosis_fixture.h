// A small diagnosis for the tests of the report.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvartet {

// A diagnosis as `kvartet fidelity --diagnose --json` writes it: two layers that select and one that does not, two heads.
inline nlohmann::json made_figure(double mean) {
  return {{"mean", mean},
          {"p5", mean - 0.1},
          {"p95", mean + 0.1},
          {"map", {{nullptr, nullptr}, {mean - 0.05, mean}, {mean, mean + 0.05}}}};
}

inline nlohmann::json made_diagnosis(const std::string& spec) {
  const auto row = [&](double mean) {
    return nlohmann::json{{"spec", spec},
                          {"selected_rows", 63},
                          {"recall", made_figure(mean - 0.2)},
                          {"mass", made_figure(mean)},
                          {"mass_ratio", made_figure(mean)},
                          {"output_error",
                           {{"exact_oracle", made_figure(0.11)},
                            {"stored_oracle", made_figure(0.12)},
                            {"exact_selected", made_figure(0.13)},
                            {"stored_selected", made_figure(0.14)}}},
                          {"oracle_mass", made_figure(0.91)},
                          {"aggregation_loss", made_figure(0.01)},
                          {"key_error", made_figure(0.085)},
                          {"key_error_p99", 0.17},
                          {"reuse", made_figure(0.6)}};
  };
  nlohmann::json found = row(0.85);
  found["gold_recall"] = made_figure(0.75);
  found["gold_by_one_head"] = made_figure(0.95);
  nlohmann::json rows = nlohmann::json::array({found});
  for (const double share : {1.0 / 1024, 1.0 / 64, 0.25}) {
    nlohmann::json swept = row(0.6 + share);
    swept["sweep_of"] = spec;
    swept["budget_share"] = share;
    rows.push_back(swept);
  }
  return {{"diagnosis", {{"prefix_tokens", 2028}, {"steps", 10}, {"gold_tokens", 12}, {"rows", rows}}}};
}

}  // namespace kvartet
