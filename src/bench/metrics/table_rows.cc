#include "bench/metrics/table_rows.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>

#include "bench/metrics/qa_match.h"
#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

using Row = std::vector<std::string>;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Lower-case, no ASCII punctuation, no articles, no white space: "$1.50" is "150", "N/A" is "na".
std::string normalized_cell(const std::string& cell) {
  std::u32string out;
  for (const std::u32string& word : squad_tokens(cell)) out += word;
  return encode_utf8(out);
}

struct Table {
  std::size_t columns = 0;
  std::vector<Row> rows;  // normalized
};

// None: no table that could be compared.
std::optional<Table> read_table(std::string_view text) {
  std::vector<Row> lines = parse_tsv(trimmed(text));
  if (lines.size() < 2) return std::nullopt;
  const Row header = lines.front();
  if (std::set<std::string>(header.begin(), header.end()).size() != header.size()) return std::nullopt;
  lines.erase(lines.begin());
  if (lines.back().size() != header.size()) lines.pop_back();  // cut off by the end of the answer
  if (lines.empty()) return std::nullopt;
  Table table = {header.size(), {}};
  for (Row& row : lines) {
    if (row.size() != header.size()) row.assign(header.size(), "N/A");
    for (std::string& cell : row) cell = normalized_cell(cell);
    table.rows.push_back(std::move(row));
  }
  return table;
}

double share_in(const std::vector<Row>& rows, const std::vector<Row>& others) {
  const std::set<Row> known(others.begin(), others.end());
  const auto hits = std::count_if(rows.begin(), rows.end(), [&](const Row& row) { return known.contains(row); });
  return static_cast<double>(hits) / static_cast<double>(rows.size());
}

}  // namespace

std::string_view tsv_block(std::string_view text) {
  constexpr std::string_view kOpen = "```tsv";
  constexpr std::string_view kClose = "```";
  const std::size_t open = text.find(kOpen);
  if (open == std::string_view::npos) return trimmed(text);
  std::string_view inside = text.substr(open + kOpen.size());
  const std::size_t close = inside.rfind(kClose);
  return trimmed(inside.substr(0, close));
}

std::vector<std::vector<std::string>> parse_tsv(std::string_view text) {
  std::vector<Row> rows;
  if (text.empty()) return rows;
  Row row;
  std::string field;
  bool quoted = false;        // inside quotes
  bool at_start = true;       // of a field
  bool line_is_empty = true;  // an empty line is a row without fields, as Python's csv gives it
  const auto end_field = [&] {
    row.push_back(std::move(field));
    field.clear();
    at_start = true;
  };
  const auto end_row = [&] {
    if (!line_is_empty) end_field();
    rows.push_back(std::move(row));
    row.clear();
    line_is_empty = true;
    at_start = true;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      const bool doubled = c == '"' && i + 1 < text.size() && text[i + 1] == '"';
      if (c == '"' && !doubled) {
        quoted = false;
      } else {
        field += c;
        i += doubled ? 1 : 0;
      }
      continue;
    }
    if (c == '\n') {
      end_row();
      continue;
    }
    if (c == '\r' && (i + 1 == text.size() || text[i + 1] == '\n')) continue;
    line_is_empty = false;
    if (c == '\t') {
      end_field();
    } else if (c == '"' && at_start) {
      quoted = true;
      at_start = false;
    } else {
      field += c;
      at_start = false;
    }
  }
  end_row();
  return rows;
}

TableScore score_table(std::string_view prediction, std::string_view gold) {
  const std::optional<Table> found = read_table(tsv_block(prediction));
  const std::optional<Table> expected = read_table(gold);
  if (!found || !expected || found->columns != expected->columns) return {};
  TableScore score = {
      .precision = share_in(found->rows, expected->rows), .recall = share_in(expected->rows, found->rows), .extraction_rate = 1};
  const double sum = score.precision + score.recall;
  score.f1 = sum == 0 ? 0 : 2 * score.precision * score.recall / sum;
  return score;
}

double table_rows_f1(std::string_view prediction, Texts references, Texts) {
  return references.empty() ? 0 : score_table(prediction, references.front()).f1;
}

std::vector<ScorePart> table_rows_parts(std::string_view prediction, Texts references, Texts) {
  if (references.empty()) return {};
  const TableScore score = score_table(prediction, references.front());
  return {{"precision", score.precision}, {"recall", score.recall}, {"f1", score.f1}, {"extraction_rate", score.extraction_rate}};
}

}  // namespace kvartet
