#include "results/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "results/outcome_check.h"
#include "results/paired.h"
#include "results/store.h"
#include "results/store_schema.h"

namespace kvartet {
namespace {

constexpr double kNormal975 = 1.959964;
constexpr int kTokensOfASample = 8;  // of plain text
constexpr std::string_view kDivergence = "kl";
constexpr std::string_view kPaperForm = "form=paper";

struct Seen {
  std::string spec;
  std::optional<double> nats;
  std::optional<double> score;
};

using CellKey = std::pair<Cell, std::string>;  // and the cache

// Losses of one figure by document, whose questions are not independent: a document counts once, with the mean of its own.
class DocumentLosses {
 public:
  void add(const std::string& document, double loss) {
    const auto [it, fresh] = place_.try_emplace(document, sums_.size());
    if (fresh) sums_.emplace_back();
    auto& [sum, count] = sums_[it->second];
    sum += loss;
    ++count;
  }
  Moments moments() const {
    Moments out;
    for (const auto& [sum, count] : sums_) out.add(sum / count);
    return out;
  }

 private:
  std::map<std::string, std::size_t> place_;
  std::vector<std::pair<double, int>> sums_;
};

struct Tally {
  DocumentLosses nats;
  DocumentLosses score;
  double prompt_tokens = 0;  // sum over the samples
  int samples = 0;
};

using Tallies = std::map<CellKey, Tally>;

// Pairs one sample's caches with its `full`; a sample without `full` says nothing about losses. One token of reference that no
// cache can change says nothing by its likelihood, but what is written after that token goes through the cache and is scored.
void tally_sample(const SampleRecord& sample, const std::vector<Seen>& seen, Tallies* tallies) {
  const Seen* full = nullptr;
  for (const Seen& s : seen)
    if (s.spec == "full") full = &s;
  if (full == nullptr) return;
  for (const Seen& s : seen) {
    if (&s == full) continue;
    Tally& tally = (*tallies)[{sample.key.cell(), s.spec}];
    tally.prompt_tokens += sample.prompt_tokens;
    ++tally.samples;
    if (s.nats && full->nats && !sample.decided_by_prefill()) tally.nats.add(sample.document, *full->nats - *s.nats);
    if (s.score && full->score) tally.score.add(sample.document, *full->score - *s.score);
  }
}

using Metrics = std::map<std::string, std::string>;  // by task

std::vector<EvidenceCell> cells_of(const Tallies& tallies, const std::vector<RunRecord>& runs, const Metrics& metric_of) {
  std::vector<EvidenceCell> cells;
  for (const auto& [key, tally] : tallies) {
    EvidenceCell cell;
    cell.nats = tally.nats.moments();
    if (cell.nats.n == 0) continue;  // a score alone is not what losses are estimated from
    cell.score = tally.score.moments();
    if (!runs.empty()) {
      cell.model_hash = runs.front().identity.model_hash;
      cell.model_name = runs.front().identity.model_name;
    }
    cell.parameters = fmt::format("question={}", question_position_name(key.first.position));
    if (!runs.empty() && !runs.front().identity.parameters.empty()) cell.parameters += "," + runs.front().identity.parameters;
    cell.task = key.first.task;
    cell.context = key.first.context;
    cell.spec = key.second;
    if (const auto metric = metric_of.find(cell.task); metric != metric_of.end()) cell.metric = metric->second;
    cell.prompt_tokens = static_cast<int>(std::lround(tally.prompt_tokens / tally.samples));
    cells.push_back(std::move(cell));
  }
  return cells;
}

// No hash looks like that.
std::string own_document(const SampleKey& key) { return "of sample " + key.sample; }

}  // namespace

void Moments::add(double x) {
  ++n;
  const double from_old = x - mean;
  mean += from_old / n;
  m2 += from_old * (x - mean);
}

void Moments::merge(const Moments& o) {
  if (o.n == 0) return;
  const double total = n + o.n;
  const double apart = o.mean - mean;
  mean += apart * o.n / total;
  m2 += o.m2 + apart * apart * n * o.n / total;
  n += o.n;
}

double Moments::standard_error() const {
  if (n < 2) return 0;
  return student_t_975(n - 1) / kNormal975 * std::sqrt(variance() / n);
}

bool is_paper_form(const EvidenceCell& cell) { return cell.parameters.find(kPaperForm) != std::string::npos; }

bool is_fidelity(const EvidenceCell& cell) { return cell.metric == kDivergence; }

EvidenceCell fidelity_cell(const FidelityRecord& r) {
  EvidenceCell cell;
  cell.model_hash = r.model_hash;
  cell.model_name = r.model_name;
  cell.parameters = "question=seen";
  cell.task = "fidelity";
  cell.metric = kDivergence;
  cell.context = r.prefix_tokens + r.tokens;
  cell.prompt_tokens = r.prefix_tokens;
  cell.spec = r.spec;
  cell.nats.n = std::max(2, r.tokens / kTokensOfASample);
  cell.nats.mean = r.kl_mean;
  cell.nats.m2 = r.kl_sd * r.kl_sd * (cell.nats.n - 1);
  return cell;
}

std::vector<EvidenceCell> evidence_of(const StoredResults& results) {
  Metrics metric_of;
  for (const StoredTask& task : results.tasks) metric_of[task.task] = task.metric;
  std::map<SampleKey, std::vector<Seen>> seen;
  for (const Outcome& o : results.outcomes) {
    if (!o.failed()) seen[o.key].push_back({o.spec, o.gold_log_likelihood, o.score});
  }
  Tallies tallies;
  for (SampleRecord sample : results.samples) {
    if (sample.document.empty()) sample.document = own_document(sample.key);
    if (const auto caches = seen.find(sample.key); caches != seen.end()) tally_sample(sample, caches->second, &tallies);
  }
  return cells_of(tallies, results.runs, metric_of);
}

Result<std::vector<EvidenceCell>> Store::evidence() {
  KV_ASSIGN(const std::vector<RunRecord> runs, load_runs());
  Metrics metric_of;
  KV_ASSIGN(Statement tasks, database_.prepare("SELECT task, metric FROM tasks"));
  for (;;) {
    KV_ASSIGN(const bool more, tasks.step());
    if (!more) break;
    std::string task = tasks.text();
    metric_of[std::move(task)] = tasks.text();
  }

  // In the order of the primary key: one pass, one sample's caches side by side.
  KV_ASSIGN(const std::string position, position_column("outcomes"));
  KV_ASSIGN(Statement row, database_.prepare(fmt::format(
                               "SELECT task, context, sample, {0} AS position, spec, gold_log_likelihood, score FROM outcomes "
                               "WHERE error = '' ORDER BY task, context, position, sample, spec",
                               position)));
  // The same prompt, answer and document with the question seen and unseen; one of them may be of an older format. The prompt of
  // a second question is another. Positions are named, so that the key finds the sample: it comes last there, and a cell may have
  // thousands.
  KV_ASSIGN(const std::string sample_position, position_column("samples"));
  KV_ASSIGN(Statement known,
            database_.prepare(fmt::format("SELECT prompt_tokens, gold_tokens, {0} FROM samples WHERE task = ? AND "
                                          "context = ? AND sample = ? AND {1} IN (?, ?) ORDER BY {0} DESC LIMIT 1",
                                          format_ < 4 ? "''" : "document", sample_position)));
  Tallies tallies;
  SampleRecord sample;
  std::vector<Seen> seen;
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) break;
    KV_ASSIGN(SampleKey next, read_key(row));
    if (next != sample.key) {
      tally_sample(sample, seen, &tallies);
      seen.clear();
      sample = {};
      sample.key = std::move(next);
      known.reset();
      known.bind(sample.key.task).bind(sample.key.context).bind(sample.key.sample);
      const bool second = sample.key.position == QuestionPosition::kSecond;
      for (const QuestionPosition position : {QuestionPosition::kSeen, QuestionPosition::kUnseen})
        known.bind(std::string_view(question_position_name(second ? QuestionPosition::kSecond : position)));
      KV_ASSIGN(const bool found, known.step());
      sample.prompt_tokens = found ? static_cast<int>(known.integer()) : sample.key.context;
      sample.gold_tokens = found ? static_cast<int>(known.integer()) : 0;
      sample.document = found ? known.text() : "";
      if (sample.document.empty()) sample.document = own_document(sample.key);
    }
    Seen one;
    one.spec = row.text();
    one.nats = row.optional_real();
    one.score = row.optional_real();
    Outcome figures;
    figures.gold_log_likelihood = one.nats;
    figures.score = one.score;
    if (!has_possible_figures(figures)) {
      return bad_input(fmt::format("The results in {} are damaged: the figures of sample {} of {} through {} cannot be.",
                                   directory_, sample.key.sample, sample.key.task, one.spec));
    }
    seen.push_back(std::move(one));
  }
  tally_sample(sample, seen, &tallies);

  return cells_of(tallies, runs, metric_of);
}

}  // namespace kvartet
