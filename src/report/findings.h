// The short answer: for each kind of work, what each cache loses, saves and costs, and which one to take.
//
// Costs come from the tables where both this cache and full ran alone, if there are any; else from the shared times.
// Rules, printed on the page too (docs/howto/read-the-report.md). A cache *loses* when the verdict is 'worse', by score or by
// likelihood, over all samples of the kind together or in any one table (task, context). It is *as good* when both are shown to
// be the same within the margin over all samples, and has *no measured loss* when the likelihood is the same but there are too
// few samples to say it of the score. Everything else is *undecided*. The answer is the cache with the largest compression ratio
// among those that are as good or have no measured loss.
//
// Undecided caches are put in order by how far the loss reaches that their samples still allow: the lower end of the 95 %
// interval, counted in margins, of the likelihood where it has one (the score needs far more samples), else of the score. Nearest
// to harmless is the one whose interval reaches least far.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/names.h"
#include "report/rows.h"

namespace kvartet {

enum class Loss : std::uint8_t { kReference, kAsGood, kNoMeasuredLoss, kLoses, kUndecided, kFailed };
const char* loss_name(Loss loss);  // "reference", "as good as full", "no measured loss", "loses", "undecided", "failed"

struct CacheFinding {
  std::string spec;
  Loss loss = Loss::kUndecided;
  std::string worst;  // the largest loss in one table, in words; empty unless kLoses
  int pairs = 0;
  int failed = 0;
  Measured score;  // over all samples of the kind
  Measured likelihood;
  Measured next_question;  // of second questions: the likelihood lost beyond what is lost where the question was seen
  double ratio_low = 0;    // compression ratio over the tables
  double ratio_high = 0;
  double ratio = 0;  // mean over the tables
  double fast_ratio = 0;
  std::optional<double> extra_ttft_s;  // median over the tables of the difference to full
  std::optional<double> ttft_factor;   // and of the factor
  std::optional<double> decode_factor;
  bool shared = false;  // the times are from steps that all caches shared; else from runs of each cache alone
};

// One kind of work, in one position of the question: a cache that loses nothing on a question that it has seen may lose on
// others.
struct WorkloadFinding {
  WorkKind workload = WorkKind::kQuestions;
  QuestionPosition position = QuestionPosition::kSeen;
  std::vector<std::string> tasks;
  std::vector<int> contexts;
  int samples = 0;
  int documents = 0;  // that the samples are about: what intervals rest on
  bool has_reference = false;
  std::vector<CacheFinding> caches;    // `full` first, then in the order of the outcomes
  std::optional<std::size_t> best;     // index in caches
  std::vector<std::size_t> undecided;  // indices in caches, nearest to harmless first
};

// From so few documents everything is preliminary, and said so. (By score, 'the same within 5 points' takes 38.)
inline constexpr int kFewDocuments = 20;

std::vector<WorkloadFinding> find_answers(const StoredResults& results, std::span<const ReportRow> rows);

// "−0.010 nats per token (−0.060 to +0.040)", of the measure that tells more; "" when nothing was measured.
std::string difference_text(const CacheFinding& cache);

// The answer in one to three sentences. `names` gives the short name of every spec.
struct Answer {
  std::string claim;     // which cache to take, and what it saves
  std::string evidence;  // the differences it rests on; may be empty
  std::string few;       // on how few documents all this rests, and how wide that leaves the intervals; may be empty
  std::string next;      // what choosing rows for one question cost the next one, of second questions; may be empty
  std::string nearest;   // which undecided cache is nearest to harmless; may be empty
  std::string cost;      // what it costs; may be empty
  std::vector<std::string>
      others;  // one for each other cache that was measured: harmless, undecided (nearest first), losing, failed
};
Answer answer_of(const WorkloadFinding& finding, const std::map<std::string, std::string>& names);

}  // namespace kvartet
