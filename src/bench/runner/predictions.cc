#include "bench/runner/predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/metrics/json_in_text.h"
#include "results/fingerprint.h"

namespace kvartet {
namespace {

std::string prediction_line(const SampleRecord& sample, const Outcome& o) {
  const auto stored = [](const std::string& text) {
    const nlohmann::json value = parse_json(text);  // with a bound on its depth: writing recurses
    return value.is_discarded() ? nlohmann::json(nullptr) : value;
  };
  nlohmann::ordered_json line;
  line["pred"] = o.prediction;
  line["answers"] = stored(sample.answers_json);
  line["all_classes"] = stored(sample.classes_json);
  line["length"] = sample.length;
  line["id"] = sample.key.sample;
  line["spec"] = o.spec;
  line["prompt_tokens"] = sample.prompt_tokens;
  line["completion_tokens"] = o.completion_tokens;
  line["prompt_hash"] = sample.prompt_hash;
  line["question_position"] = question_position_name(sample.key.position);
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string path_name(const std::string& spec) {
  std::string out = spec;
  std::replace(out.begin(), out.end(), '/', '-');
  const bool is_file_in_folder = out != spec && spec.find(".jsonl") != std::string::npos;
  return is_file_in_folder ? fmt::format("{}-{}", out, hash_bytes(spec).substr(0, 8)) : out;
}

std::string file_name(const std::string& spec) {
  constexpr std::size_t kLongest = 240;  // most file systems take 255 bytes, and a file is written under a longer name first
  const std::string name = path_name(spec);
  if (name.size() <= kLongest) return name;
  return fmt::format("{}-{}", name.substr(0, kLongest - 9), hash_bytes(spec).substr(0, 8));
}

Status write_predictions(FileSystem& files, const std::string& directory, const StoredResults& results) {
  std::map<SampleKey, const SampleRecord*> samples;
  for (const SampleRecord& s : results.samples) samples[s.key] = &s;
  std::map<std::pair<Cell, std::string>, std::string> texts;
  for (const Outcome& o : results.outcomes) {
    if (o.failed()) continue;
    texts[{o.key.cell(), o.spec}] += prediction_line(*samples.at(o.key), o) + '\n';
  }
  for (const auto& [key, text] : texts) {
    const auto& [cell, spec] = key;
    const std::string folder =
        fmt::format("{}/predictions/{}/{}{}", directory, path_name(cell.task), cell.context,
                    cell.position == QuestionPosition::kSeen ? "" : fmt::format("-{}", question_position_name(cell.position)));
    KV_TRY(files.make_directories(folder));
    KV_TRY(write_file_atomically(files, fmt::format("{}/{}.jsonl", folder, file_name(spec)), text));
  }
  return {};
}

}  // namespace kvartet
