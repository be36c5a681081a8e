// A small measurement of speed for the tests of the report.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvartet {

// As `kvartet speed --json` writes it: full, one other cache and the peer at two depths.
inline nlohmann::json made_speed(const std::string& spec) {
  const auto row = [](const std::string& engine, const std::string& cache, const std::string& phase, int depth, double rate) {
    return nlohmann::json{{"engine", engine}, {"spec", cache},        {"phase", phase},
                          {"depth", depth},   {"tokens_per_s", rate}, {"runs", {rate}}};
  };
  return {{"model", "random-model"},
          {"fill", "prefill"},
          {"machine", {{"cpu", "Some CPU"}, {"threads", 2}, {"read_gb_per_s", 39.5}, {"read_runs", {39.5}}}},
          {"resident_bytes", 1},
          {"rows",
           {row("kvartet", "full", "decode", 0, 100), row("kvartet", spec, "decode", 7168, 75),
            row("kvartet", spec, "decode", 0, 101), row("kvartet", "full", "decode", 7168, 50),
            row("llama.cpp", "f16", "decode", 0, 100), row("llama.cpp", "f16", "decode", 7168, 25),
            row("kvartet", "full", "prefill", 7168, 400)}}};
}

}  // namespace kvartet
