#include "report/cautions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "report/names.h"

namespace kvartet {
namespace {

using Tables = std::vector<std::pair<Cell, std::vector<const ReportRow*>>>;  // as first met

Tables tables_of(std::span<const ReportRow> rows) {
  Tables tables;
  for (const ReportRow& row : rows) {
    auto place = std::ranges::find(tables, row.cell(), &Tables::value_type::first);
    if (place == tables.end()) place = tables.insert(place, {row.cell(), {}});
    place->second.push_back(&row);
  }
  return tables;
}

// Tables of one task that have something in common: their lengths, and a figure for each.
struct Lengths {
  Cell first;
  std::vector<int> contexts;
  std::vector<double> figures;

  std::string where() const {
    return fmt::format("{} at {} tokens{}", first.task, fmt::join(contexts, ", "),
                       first.position == QuestionPosition::kUnseen ? ", question unseen" : "");
  }
  std::string range(double scale, int decimals) const {
    const auto [low, high] = std::ranges::minmax(figures);
    return range_text(scale * low, scale * high, decimals);
  }
};

void add(const Cell& cell, double figure, std::vector<Lengths>* all) {
  const auto same = [&](const Lengths& l) { return l.first.task == cell.task && l.first.position == cell.position; };
  auto place = std::ranges::find_if(*all, same);
  if (place == all->end()) place = all->insert(place, {cell, {}, {}});
  place->contexts.push_back(cell.context);
  place->figures.push_back(figure);
}

constexpr const char* kWeakRest =
    "of 100 points: so little that a cache with nothing right could hardly be told from it. The score says little about caches "
    "here; judge by the likelihood (nats), or take a task that the model can do.";
constexpr const char* kCutRest = "were cut at the limit of tokens: what would have come after it is not scored.";

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
    if (row->spec == "full" && row->n > 0) caution.full_cut = row->cut_off;
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
  std::vector<Lengths> weak;
  std::vector<Lengths> cut;
  std::vector<Lengths> full_cut;  // of the same tables, where `full` is there
  for (const auto& [cell, table] : tables_of(rows)) {
    const TableCaution caution = caution_of(table);
    if (caution.weak != nullptr) add(cell, *caution.weak->score.mean, &weak);
    if (!caution.many_cut()) continue;
    add(cell, caution.cut, &cut);
    if (caution.full_cut) add(cell, *caution.full_cut, &full_cut);
  }
  std::vector<std::string> out;
  for (const Lengths& l : weak) out.push_back(fmt::format("{}: full itself scores {} {}", l.where(), l.range(1, 1), kWeakRest));
  for (const Lengths& l : cut) {
    const auto full = std::ranges::find(full_cut, l.first, &Lengths::first);
    const std::string of_full = full == full_cut.end() ? "" : fmt::format(", {} % of those of full,", full->range(100, 0));
    out.push_back(fmt::format("{}: {} % of the answers{} {}", l.where(), l.range(100, 0), of_full, kCutRest));
    if (l.first.task.find(".jsonl") != std::string::npos) out.back() += " FILE.jsonl:max_new=N allows more.";
  }
  return out;
}

}  // namespace kvartet
