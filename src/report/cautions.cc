#include "report/cautions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/counted.h"
#include "report/names.h"
#include "report/pairing.h"

namespace kvartet {
namespace {

// Tables of one task that have something in common: their lengths, and two figures for each.
struct Place {
  Cell first;
  std::vector<int> contexts;
  std::vector<double> figures;
  std::vector<double> others;

  std::string where() const {
    return fmt::format("{} at {} tokens{}", first.task, fmt::join(contexts, ", "), question_suffix(first.position));
  }
};

// A sort of caution with everything it holds for: said once, however many tasks there are.
class Places {
 public:
  void add(const Cell& cell, double figure, double other = 0) {
    const auto same = [&](const Place& p) { return p.first.task == cell.task && p.first.position == cell.position; };
    auto place = std::ranges::find_if(places_, same);
    if (place == places_.end()) place = places_.insert(place, {cell, {}, {}, {}});
    place->contexts.push_back(cell.context);
    place->figures.push_back(figure);
    place->others.push_back(other);
  }
  bool empty() const { return places_.empty(); }

  // "needle at 2048, 4096 tokens (DETAIL), docqa at ... (DETAIL)".
  template <typename Detail>
  std::string text(Detail detail) const {
    std::string out;
    for (const Place& p : places_) out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", p.where(), detail(p));
    return out;
  }
  bool any_own_file() const {
    return std::ranges::any_of(places_, [](const Place& p) { return p.first.task.find(".jsonl") != std::string::npos; });
  }

 private:
  std::vector<Place> places_;
};

std::string range_of(const std::vector<double>& figures, double scale, int decimals) {
  const auto [low, high] = std::ranges::minmax(figures);
  return range_text(scale * low, scale * high, decimals);
}

int sum_of(const std::vector<double>& counts) { return static_cast<int>(std::accumulate(counts.begin(), counts.end(), 0.0)); }

constexpr const char* kWeakRest =
    "of 100 points: so little that a cache with nothing right could hardly be told from it. The score says little about caches "
    "here; judge by the likelihood (nats), or take a task that the model can do.";
constexpr const char* kCutRest = "were cut at the limit of tokens: what would have come after it is not scored.";

std::string weak_sentence(const Places& weak) {
  return fmt::format(
      "Full itself is weak, so that a cache with nothing right could hardly be told from it, on {}. The scores say little about "
      "caches there; judge by the likelihood (nats), or take tasks that the model can do.",
      weak.text([](const Place& p) { return range_of(p.figures, 1, 1) + " of 100 points"; }));
}

constexpr double kNoFull = -1;

std::string cut_sentence(const Places& cut) {
  const auto detail = [](const Place& p) {
    const bool full = std::ranges::find(p.others, kNoFull) == p.others.end();
    return fmt::format("{} % of the answers{}", range_of(p.figures, 100, 0),
                       full ? fmt::format(", {} % of those of full", range_of(p.others, 100, 0)) : "");
  };
  return fmt::format("Many answers were cut at the limit of tokens, and what would have come after it is not scored: {}.{}",
                     cut.text(detail), cut.any_own_file() ? " FILE.jsonl:max_new=N allows more." : "");
}

std::string prompts_detail(const Place& p) {
  return fmt::format("{} of {}", sum_of(p.figures), counted(sum_of(p.others), "prompt"));
}

// What is written after a token that the prefill decided still goes through the cache: how many of those answers scored otherwise
// than full's. Empty: none.
std::string scored_otherwise_text(const StoredResults& results) {
  const std::set<SampleKey> decided = samples_decided_by_prefill(results);
  std::map<SampleKey, double> of_full;
  for (const Outcome& o : results.outcomes) {
    if (o.spec == kReference && !o.failed() && o.score && decided.contains(o.key)) of_full[o.key] = *o.score;
  }
  int scored = 0;
  int otherwise = 0;
  for (const Outcome& o : results.outcomes) {
    const auto full = of_full.find(o.key);
    if (o.spec == kReference || o.failed() || !o.score || full == of_full.end()) continue;
    ++scored;
    if (std::abs(*o.score - full->second) > 1e-9) ++otherwise;
  }
  if (otherwise == 0) return "";
  return fmt::format(
      " What is written after that token goes through the cache: of {} to these prompts, {} scored otherwise than full's.",
      counted(scored, "answer of other caches", "answers of other caches"), otherwise);
}

}  // namespace

bool is_weak_reference(const ReportRow& full, std::span<const Outcome* const> done, const References& references,
                       const DocumentNumbers& documents) {
  const ScoreKind kind = score_kind(full.metric);
  if (!full.score.mean || *full.score.mean >= kWeakScore) return false;
  PairedPool nothing_right;
  std::set<int> different;
  for (const Outcome* o : done) {
    if (!references.contains(o->key) || !o->score) continue;
    Outcome wrong;
    wrong.key = o->key;
    wrong.score = 0;
    nothing_right.add(wrong, references, documents.of(o->key));
    different.insert(documents.of(o->key));
  }
  if (nothing_right.pairs() == 0) return false;
  if (static_cast<int>(different.size()) < kMinimumPairs) return kind == ScoreKind::kCount && *full.score.mean < kHardlyAnyRight;
  return nothing_right.score(true, kind).verdict != Verdict::kWorse;
}

TableCaution caution_of(std::span<const ReportRow* const> table) {
  TableCaution caution;
  double answers = 0;
  double cut = 0;
  for (const ReportRow* row : table) {
    if (row->weak) caution.weak = row;
    if (row->spec == kReference && row->n > 0) caution.full_cut = row->cut_off;
    answers += row->n;
    cut += row->cut_off * row->n;
  }
  if (answers > 0) caution.cut = cut / answers;
  return caution;
}

std::string weak_text(double points) { return fmt::format("full itself scores {:.1f} {}", points, kWeakRest); }
std::string cut_text(const TableCaution& caution) {
  const std::string of_full = caution.full_cut ? fmt::format(", {:.0f} % of those of full,", 100 * *caution.full_cut) : "";
  return fmt::format("{:.0f} % of the answers{} {}", 100 * caution.cut, of_full, kCutRest);
}

std::vector<std::string> caution_sentences(std::span<const ReportRow> rows) {
  Places weak;
  Places cut;
  for (const RowTable& table : tables_of(rows)) {
    const TableCaution caution = caution_of(table.rows);
    if (caution.weak != nullptr) weak.add(table.cell, *caution.weak->score.mean);
    if (caution.many_cut()) cut.add(table.cell, caution.cut, caution.full_cut.value_or(kNoFull));
  }
  std::vector<std::string> out;
  if (!weak.empty()) out.push_back(weak_sentence(weak));
  if (!cut.empty()) out.push_back(cut_sentence(cut));
  return out;
}

std::vector<std::string> prompt_sentences(const StoredResults& results) {
  struct Counts {
    int all = 0;
    int truncated = 0;
    int decided = 0;
    std::set<int> documents;
  };
  const DocumentNumbers numbers(results);
  std::map<Cell, Counts> cells;
  for (const SampleRecord& s : results.samples) {
    Counts& counts = cells[s.key.cell()];
    ++counts.all;
    counts.truncated += s.dropped_tokens > 0 ? 1 : 0;
    counts.decided += s.decided_by_prefill() ? 1 : 0;
    counts.documents.insert(numbers.of(s.key));
  }
  Places shared;
  Places truncated;
  Places decided;
  for (const auto& [cell, counts] : cells) {
    const auto documents = static_cast<int>(counts.documents.size());
    if (documents < counts.all) shared.add(cell, counts.all, documents);
    if (counts.truncated > 0) truncated.add(cell, counts.truncated, counts.all);
    if (counts.decided > 0) decided.add(cell, counts.decided, counts.all);
  }
  std::vector<std::string> out;
  if (!shared.empty()) {
    const auto detail = [](const Place& p) {
      const std::string documents = range_of(p.others, 1, 0);
      return fmt::format("{} prompts about {} {}{}", range_of(p.figures, 1, 0), documents,
                         documents == "1" ? "document" : "documents", p.contexts.size() > 1 ? " at each length" : "");
    };
    out.push_back(fmt::format(
        "Several prompts ask about one document, and answers about one document are not independent, so intervals rest on "
        "documents: {}.",
        shared.text(detail)));
  }
  if (!truncated.empty())
    out.push_back(fmt::format("Prompts that were too long lost their middle: {}.", truncated.text(prompts_detail)));
  if (!decided.empty()) {
    out.push_back(fmt::format(
        "An answer of one token is predicted by the exact pass over the prompt before any cache acts, so it tells no cache from "
        "another and is left out of the differences: {}. '--question-position unseen' asks through the cache.{}",
        decided.text(prompts_detail), scored_otherwise_text(results)));
  }
  return out;
}

}  // namespace kvartet
