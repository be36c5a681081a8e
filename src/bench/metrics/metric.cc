#include "bench/metrics/metric.h"

#include <algorithm>
#include <cstddef>

#include "bench/metrics/classification.h"
#include "bench/metrics/code_similarity.h"
#include "bench/metrics/containment.h"
#include "bench/metrics/entry_match.h"
#include "bench/metrics/line_pairs.h"
#include "bench/metrics/qa_match.h"
#include "bench/metrics/rouge_l.h"
#include "bench/metrics/structured_answer.h"
#include "bench/metrics/table_rows.h"

namespace kvartet {
namespace {

constexpr Metric kMetrics[] = {
    {"f1", "token F1 after SQuAD normalization, best reference (LongBench QA-F1)", qa_f1},
    {"em", "exact match after SQuAD normalization", exact_match_squad},
    {"em_triviaqa", "exact match after the official TriviaQA script's normalization", exact_match_triviaqa},
    {"rouge", "ROUGE-L of the Python package rouge 1.0.1 (LongBench)", rouge_l},
    {"contains", "1 if any reference is in the answer, letter for letter", contains_any},
    {"keywords", "share of the references that are in the answer, letter for letter", keyword_share},
    {"string_match", "share of the references that are in the answer, letter case aside (RULER)", string_match},
    {"json", "1 if the answer holds JSON equal to a reference", json_equal, nullptr, check_json},
    {"line_pairs", "share of the references \"thing: value\" that stand on a line of the answer", line_pairs},
    {"text2json", "entries by name, with partial credit (Text2JSON)", entry_match, entry_match_parts, check_entries},
    {"text2json_strict", "the same, failing where the released scorer fails", entry_match, entry_match_parts,
     check_entries_strict},
    {"tsv_rows", "F1 of the rows of a tab-separated table (LongProc)", table_rows_f1, table_rows_parts},
    {"structured", "1 if the answer's JSON has the reference's items, in any order", structured_match, structured_parts,
     check_structured},
    {"classification", "class names in the answer (LongBench)", classification, nullptr, check_classes},
    {"count", "share of the numbers in the answer that are right (LongBench)", count_share},
    {"retrieval", "share of the numbers in the answer that name the paragraph (LongBench)", retrieval_share},
    {"code_sim", "edit similarity of the first code line (LongBench)", code_similarity},
};

std::string_view first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::span<const Metric> metrics() { return kMetrics; }

const Metric* find_metric(std::string_view name) {
  for (const Metric& metric : kMetrics) {
    if (metric.name == name) return &metric;
  }
  return nullptr;
}

Status check_answer(std::string_view name, std::string_view prediction, Texts references, Texts all_classes) {
  const Metric* metric = find_metric(name);
  return metric == nullptr || metric->check == nullptr ? Status() : metric->check(prediction, references, all_classes);
}

std::string cut_answer(AnswerCut cut, std::string_view answer) {
  return std::string(cut == AnswerCut::kFirstLine ? first_line(answer) : answer);
}

double score_answer(const Metric& metric, AnswerCut cut, std::string_view prediction, Texts references, Texts all_classes) {
  return metric.function(cut_answer(cut, prediction), references, all_classes);
}

}  // namespace kvartet
