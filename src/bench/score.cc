#include "bench/score.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

namespace kvartet {
namespace {

struct Prediction {
  std::string text;
  std::vector<std::string> answers;
  std::vector<std::string> all_classes;
  int length = -1;  // words; -1: unknown
};

Result<Prediction> prediction_of(const nlohmann::json& object, std::string_view metric) {
  Prediction prediction;
  KV_ASSIGN(prediction.text, text_field(object, "pred"));
  KV_ASSIGN(prediction.answers, metric == "json" ? json_list_field(object, "answers") : text_or_list_field(object, "answers"));
  if (prediction.answers.empty()) return bad_input("field answers is empty");
  if (object.contains("all_classes")) {
    KV_ASSIGN(prediction.all_classes, text_list_field(object, "all_classes"));
  }
  KV_TRY(check_answer(metric, prediction.text, prediction.answers, prediction.all_classes));
  KV_ASSIGN(prediction.length, length_field(object));
  return prediction;
}

struct Total {
  double sum = 0;
  int n = 0;
  void add(double score) {
    sum += score;
    ++n;
  }
  double percent() const { return n == 0 ? 0.0 : percent_score(sum, n); }
};

// Means of the metric's parts, in its own order.
class PartTotals {
 public:
  void add(const Metric& metric, std::string_view answer, const Prediction& prediction) {
    if (metric.parts == nullptr) return;
    const std::vector<ScorePart> parts = metric.parts(answer, prediction.answers, prediction.all_classes);
    if (totals_.empty()) totals_.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      totals_[i].first = parts[i].name;
      totals_[i].second.add(parts[i].value);
    }
  }
  std::vector<ScorePartMean> report() const {
    std::vector<ScorePartMean> means;
    for (const auto& [name, total] : totals_) means.push_back({name, total.percent()});
    return means;
  }

 private:
  std::vector<std::pair<std::string, Total>> totals_;
};

int bucket_of(int length) { return length < 4000 ? 0 : length < 8000 ? 1 : 2; }

// Refuses an id that an earlier line had.
class SeenIds {
 public:
  Status add(const std::string& id, int line) {
    if (id.empty()) return {};
    const auto [place, is_new] = lines_.try_emplace(id, line);
    return is_new ? Status() : bad_input(fmt::format("repeats the id {} of line {}", id, place->second));
  }

 private:
  std::map<std::string, int> lines_;
};

}  // namespace

double percent_score(double total, int n) {
  // Printing rounds the exact binary value, ties to even, as Python's round(x, 2) does; x * 100 would round twice.
  return std::strtod(fmt::format("{:.2f}", 100 * total / n).c_str(), nullptr);
}

Result<ScoreReport> score_predictions(const Task& task, std::string_view text, std::string_view file_name) {
  ScoreReport report;
  report.task = task.spec();
  report.metric = task.metric();
  const Metric* metric = find_metric(report.metric);
  if (metric == nullptr) {
    return usage_error(
        fmt::format("task {} is judged by {}, which needs the model, not predictions", report.task, report.metric));
  }

  Total all;
  Total buckets[3];
  PartTotals parts;
  SeenIds ids;
  report.skipped = read_json_lines(text, file_name, [&](int line, const nlohmann::json& object) -> Status {
    KV_ASSIGN(const Prediction prediction, prediction_of(object, report.metric));
    KV_ASSIGN(const std::string id, id_field(object));
    KV_TRY(ids.add(id, line));
    const double score = score_answer(*metric, task.answer_cut(), prediction.text, prediction.answers, prediction.all_classes);
    all.add(score);
    parts.add(*metric, cut_answer(task.answer_cut(), prediction.text), prediction);
    if (prediction.length >= 0) buckets[bucket_of(prediction.length)].add(score);
    return {};
  });
  if (all.n == 0 && report.skipped.empty()) {
    return bad_input(fmt::format("{} holds no predictions; each line should be a JSON object with pred and answers", file_name));
  }

  report.n = all.n;
  report.score = all.percent();
  report.parts = parts.report();
  constexpr const char* kBucketNames[] = {"0-4k", "4-8k", "8k+"};
  for (int b = 0; b < 3; ++b) report.buckets.push_back({kBucketNames[b], buckets[b].n, buckets[b].percent()});
  return report;
}

}  // namespace kvartet
