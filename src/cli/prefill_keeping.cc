#include "cli/prefill_keeping.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "cli/command.h"
#include "core/bytes_text.h"
#include "core/counted.h"
#include "core/file_system.h"
#include "results/fingerprint.h"
#include "results/machine.h"

namespace kvartet {
namespace {

constexpr int kNamed = 3;  // files of no use that are named; the rest is counted

}  // namespace

Result<std::unique_ptr<KeptPrefills>> open_kept_prefills(const std::string& directory, const std::string& model_path) {
  if (directory.empty()) return usage_error("--keep-prefill needs the name of a folder, for example --keep-prefill prefills.");
  KeptPrefillOptions options;
  options.directory = directory;
  KV_ASSIGN(options.model, model_fingerprint(FileSystem::real(), model_path));
  options.program = "kvartet " + kvartet_version();
  options.on_refusal = [named = 0](const Status& why) mutable {
    if (named++ < kNamed) print_note(fmt::format("{}; its prompt is computed anew", why.message()));
  };
  return std::make_unique<KeptPrefills>(std::move(options));
}

Result<KeptPrefills::Plan> plan_keeping(const KeptPrefills& kept, const ModelShape& shape,
                                        std::span<const PreparedSample* const> samples) {
  std::vector<std::vector<Token>> prompts;
  prompts.reserve(samples.size());
  for (const PreparedSample* sample : samples) {
    prompts.push_back(sample->record.key.position == QuestionPosition::kSeen ? sample->prompt() : sample->document);
  }
  return kept.plan(shape, prompts);
}

Status prepare_keeping(KeptPrefills& kept, const ModelShape& shape, std::span<const PreparedSample* const> samples) {
  KV_ASSIGN(const KeptPrefills::Plan plan, plan_keeping(kept, shape, samples));
  return kept.prepare(plan);
}

std::string keeping_text(const KeptPrefills::Plan& plan, const std::string& directory) {
  return fmt::format("kept prefills in {}: {} of {} kept already, the others take {} of {} that are free{}\n", directory,
                     plan.there, counted(plan.prompts, "prompt"), bytes_text(plan.new_bytes), bytes_text(plan.free_bytes),
                     plan.new_bytes > plan.free_bytes ? ": too little"
                     : plan.there > 0                 ? "; the hours above count every prompt as computed"
                                                      : "");
}

Status report_keeping(const KeptPrefills& kept, const std::string& directory) {
  const KeptPrefills::Tally& tally = kept.tally();
  std::string note = fmt::format("kept prefills in {}: {} read, {} written", directory, tally.read, tally.kept);
  if (tally.refused > 0) note += fmt::format(", {} of no use", counted(tally.refused, "file"));
  if (tally.read + tally.kept + tally.refused > 0) print_note(note);
  if (tally.not_kept == 0) return {};
  const Status& first = tally.first_failure;
  return {first.code(), fmt::format("the results are complete, but {} could not be kept: {}", counted(tally.not_kept, "prefill"),
                                    first.message())};
}

}  // namespace kvartet
