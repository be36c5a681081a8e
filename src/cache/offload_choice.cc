// Of a layer with far rows: the queries of a step choose.
#include "cache/offload_layer.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/uz.h"

namespace kvartet {
namespace {

// The largest score of each run of neighbours; the scores themselves where a run is one.
std::span<const float> best_of_runs(std::span<const float> scores, int run, std::vector<float>* best) {
  if (run == 1) return scores;
  KV_CHECK(scores.size() % uz(run) == 0);
  best->resize(scores.size() / uz(run));
  for (std::size_t r = 0; r < best->size(); ++r) {
    const std::span<const float> own = scores.subspan(r * uz(run), uz(run));
    (*best)[r] = *std::max_element(own.begin(), own.end());
  }
  return *best;
}

}  // namespace

std::size_t OffloadLayer::queries_asking() const {
  const bool linear = options_->index.kind == IndexKind::kMean || options_->index.kind == IndexKind::kResidual;
  const bool mean = options_->aggregate == Aggregate::kMeanQuery && linear;
  return mean || options_->share != Share::kGroup ? 1 : uz(shape_.group());
}

MatView<const float> OffloadLayer::asking(const Step& step, int unit, OffloadScratch::Worker& worker) const {
  if (options_->share != Share::kGroup) return step.queries.row_range(uz(unit), uz(unit) + 1);
  const MatView<const float> q = step.queries.row_range(uz(unit * shape_.group()), uz((unit + 1) * shape_.group()));
  if (queries_asking() == q.rows) return q;
  // The mean of the logits is the logit of the mean query: one scan instead of one per head. Boxes are not linear.
  worker.queries.assign(q.cols, 0.0F);
  for (std::size_t h = 0; h < q.rows; ++h)
    for (std::size_t i = 0; i < q.cols; ++i) worker.queries[i] += q.row(h)[i] / static_cast<float>(q.rows);
  return {worker.queries.data(), 1, q.cols};
}

bool OffloadLayer::scores_at_once() const {
  const std::size_t queries = queries_asking();
  return !sealed_->indexes_query_heads() && (options_->aggregate == Aggregate::kMaxLogit || queries == 1) &&
         sealed_->index(0).finds_largest(queries);
}

void OffloadLayer::make_room(OffloadScratch::Worker* scores) const {
  const auto landmarks = uz(candidates());
  scores->scores.resize(landmarks);
  if (scores_at_once()) return;
  scores->logits.resize(queries_asking() * landmarks);
  if (SoftmaxPieces::needed(options_->aggregate, queries_asking())) scores->pieces.resize(queries_asking(), landmarks);
}

// A part of a unit's landmarks: their scores, or the logits that these need first. Generated rows stand behind those of the
// prompt, and go with its last part.
void OffloadLayer::score(const Step& step, int unit, Part part, OffloadScratch::Worker& worker,
                         OffloadScratch::Worker& into) const {
  const MatView<const float> q = asking(step, unit, worker);
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
  const auto landmarks = uz(candidates());
  const MatView<const float> logits{into.logits.data(), q.rows, landmarks};
  const bool divides = !scores_at_once() && SoftmaxPieces::needed(options_->aggregate, q.rows);
  if (sealed_->indexes_query_heads()) {
    const int head = options_->share == Share::kGroup ? unit * shape_.group() : unit;
    for (std::size_t h = 0; h < q.rows; ++h)
      sealed_->projected(head + static_cast<int>(h)).score(q.row(h), scale, {into.logits.data() + h * landmarks, landmarks});
    if (divides) into.pieces.take(logits, 0, landmarks);
    return;
  }
  const auto score_rows = [&](const LandmarkIndex& index, std::size_t first, std::size_t count, std::size_t place) {
    if (scores_at_once()) {
      index.score_largest(q, scale, {into.scores.data() + place, count}, &worker.lut, first);
    } else {
      index.score(q, scale, {into.logits.data() + place, q.rows, count, landmarks}, &worker.lut, first);
    }
  };
  const auto head = uz(unit / units_per_head());
  const auto of_prompt = uz(sealed_->candidates());
  static_assert(SoftmaxPieces::kRows % LandmarkIndex::kPart == 0);
  const std::size_t border = divides ? SoftmaxPieces::kRows : LandmarkIndex::kPart;  // parts begin at multiples
  const std::size_t step_rows = of_prompt / uz(part.count) / border * border;
  const std::size_t first = uz(part.index) * step_rows;
  const bool is_last = part.index + 1 == part.count;
  score_rows(sealed_->index(static_cast<int>(head)), first, is_last ? of_prompt - first : step_rows, first);
  if (is_last && generated_ != nullptr) score_rows((*generated_)[head], 0, landmarks - of_prompt, of_prompt);
  if (divides) into.pieces.take(logits, first, is_last ? landmarks : first + step_rows);
}

void OffloadLayer::choose(int unit_index, OffloadScratch::Worker& worker, OffloadScratch::Worker& from) {
  if (!scores_at_once()) {
    aggregate_scores(options_->aggregate, {from.logits.data(), queries_asking(), from.scores.size()}, from.pieces, from.scores);
  }
  const int run = options_->run;
  worker.top.select(best_of_runs(from.scores, run, &worker.run_scores), sealed_->segments().selected / run, &worker.runs);

  Unit& unit = units_[uz(unit_index)];
  const int head = unit_index / units_per_head();
  const int chunk = options_->index.chunk;
  unit.chosen.clear();
  for (const std::int32_t first : worker.runs) {
    for (int candidate = first * run; candidate < (first + 1) * run; ++candidate) {
      const int first_token = first_position(head, candidate);
      append_range(first_token, first_token + chunk, &unit.chosen);
    }
  }
}

}  // namespace kvartet
