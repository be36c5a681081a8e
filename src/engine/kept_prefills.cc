#include "engine/kept_prefills.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "core/bytes_text.h"
#include "core/counted.h"
#include "engine/unfinished_file.h"
#include "model/arithmetic.h"

namespace kvartet {
KeptPrefills::KeptPrefills(KeptPrefillOptions options) : options_(std::move(options)) {}

FileSystem& KeptPrefills::files() const { return options_.files == nullptr ? FileSystem::real() : *options_.files; }

// The name only finds the file: what is inside is compared.
std::string KeptPrefills::path_of(std::span<const Token> prompt) const {
  return fmt::format("{}/{}-{:016x}.prefill", options_.directory, options_.model, XXH64(prompt.data(), prompt.size_bytes(), 0));
}

std::string KeptPrefills::made_by() const {
  return fmt::format("model {}, {}, {}", options_.model, options_.program, prefill_arithmetic());
}

Result<KeptPrefills::Plan> KeptPrefills::plan(const ModelShape& shape, std::span<const std::vector<Token>> prompts) const {
  constexpr std::size_t kMadeByBytes = 512;  // about
  Plan plan;
  std::set<std::string> seen;
  for (const std::vector<Token>& prompt : prompts) {
    const std::string path = path_of(prompt);
    if (!seen.insert(path).second) continue;
    const std::size_t queries = std::min(prompt.size(), static_cast<std::size_t>(kQueries));
    const std::uint64_t bytes = prefill_file_bytes(shape, {prompt.size(), queries, kMadeByBytes});
    const bool there = files().exists(path);
    ++plan.prompts;
    plan.there += there ? 1 : 0;
    plan.bytes += bytes;
    plan.new_bytes += there ? 0 : bytes;
  }
  KV_ASSIGN(plan.free_bytes, files().free_bytes(options_.directory));
  return plan;
}

Status KeptPrefills::prepare(const Plan& plan) {
  KV_TRY(files().make_directories(options_.directory));
  if (plan.new_bytes == 0) return {};
  std::uint64_t free_bytes = plan.free_bytes;
  if (remove_abandoned(files(), options_.directory) > 0) {
    KV_ASSIGN(free_bytes, files().free_bytes(options_.directory));
  }
  if (plan.new_bytes > free_bytes) {
    return exhausted(fmt::format(
        "keeping the prefills of {} takes {}, but '{}' has {} free; free some "
        "space, choose another folder, or fewer samples",
        counted(plan.prompts - plan.there, "prompt"), bytes_text(plan.new_bytes), options_.directory, bytes_text(free_bytes)));
  }
  // Better now than after the first prompt.
  const std::string probe = unfinished_name(options_.directory + "/probe");
  KV_ASSIGN(const std::unique_ptr<RandomAccessFile> held, create_unfinished(files(), probe));
  return files().remove(probe);
}

std::unique_ptr<PrefillFileReader> KeptPrefills::open(const PrefillOrigin& origin, int queries) {
  const std::string path = path_of(origin.tokens);
  if (!files().exists(path)) return nullptr;
  Result<std::unique_ptr<PrefillFileReader>> reader = PrefillFileReader::open(files(), path, origin);
  if (!reader.ok()) {
    refuse(reader.status());
    return nullptr;
  }
  if ((*reader)->queries() < std::min(queries, static_cast<int>(origin.tokens.size()))) {
    refuse(bad_input(fmt::format("the kept prefill '{}' holds the last {} queries, but a cache asks for {}", path,
                                 (*reader)->queries(), queries)));
    return nullptr;
  }
  return std::move(*reader);
}

void KeptPrefills::refuse(const Status& why) {
  ++tally_.refused;
  if (options_.on_refusal) options_.on_refusal(why);
}

std::unique_ptr<PrefillFileWriter> KeptPrefills::create(const PrefillOrigin& origin, int queries) {
  Result<std::unique_ptr<PrefillFileWriter>> writer = PrefillFileWriter::create(files(), path_of(origin.tokens), origin, queries);
  if (writer.ok()) return std::move(*writer);
  count_kept(writer.status());
  return nullptr;
}

void KeptPrefills::count_kept(const Status& status) {
  if (status.ok()) {
    ++tally_.kept;
    return;
  }
  if (tally_.not_kept++ == 0) tally_.first_failure = status;
}

}  // namespace kvartet
