#include "bench/runner/solo.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace kvartet {
namespace {

using OutcomeKey = std::pair<SampleKey, std::string>;  // and the cache

// Ten times what the cache needed in company, and time to load a large model.
constexpr double kPatience = 10;
constexpr double kLoading = 120;

struct Known {
  std::map<OutcomeKey, const Outcome*> shared;
  std::set<std::pair<OutcomeKey, int>> done;  // and the repeat
  std::map<Cell, std::string> sample;         // that earlier runs took
};

Known known_of(const StoredResults& results) {
  Known known;
  for (const Outcome& o : results.outcomes) known.shared[{o.key, o.spec}] = &o;
  for (const SoloRun& s : results.solo) {
    if (s.failed()) continue;
    known.done.insert({{s.key, s.spec}, s.repeat});
    known.sample.try_emplace(s.key.cell(), s.key.sample);
  }
  return known;
}

double limit_of(const Outcome& shared) {
  const double decode = shared.decode_tokens_per_s > 0 ? shared.completion_tokens / shared.decode_tokens_per_s : 0;
  return kLoading + kPatience * (shared.ttft_s + decode);
}

struct Job {
  const PreparedSample* sample = nullptr;
  CacheSpec spec;
  int repeat = 0;
  const Outcome* shared = nullptr;
};

const PreparedSample* chosen_sample(const PlannedTask& task, const Known& known) {
  const auto earlier = known.sample.find(task.cell());
  if (earlier == known.sample.end()) return representative_sample(task);
  const auto same =
      std::ranges::find_if(task.samples, [&](const PreparedSample& s) { return s.record.key.sample == earlier->second; });
  return same != task.samples.end() ? &*same : representative_sample(task);
}

void note_left_out(const Outcome* shared, const PreparedSample& sample, const CacheSpec& spec, SoloSummary& summary) {
  const SampleKey& key = sample.record.key;
  const char* why = shared == nullptr ? "has no answer in company yet" : "failed in company";
  summary.notes.push_back(fmt::format("{} is not timed alone on sample {} of {} at {} tokens: it {}", spec.canonical, key.sample,
                                      key.task, key.context, why));
}

// The caches take turns, and a round begins with another one each time: whatever slows the machine down for a while does not
// hit one cache alone.
std::vector<Job> open_jobs(std::span<const SoloWork> work, int repeats, const Known& known, SoloSummary& summary) {
  std::vector<Job> jobs;
  for (const SoloWork& cell : work) {
    const PreparedSample* sample = chosen_sample(*cell.task, known);
    if (sample == nullptr) continue;
    const SampleKey& key = sample->record.key;
    std::vector<Job> caches;
    for (const CacheSpec& spec : cell.specs) {
      const auto found = known.shared.find({key, spec.canonical});
      const Outcome* shared = found == known.shared.end() ? nullptr : found->second;
      if (shared == nullptr || shared->failed()) {
        note_left_out(shared, *sample, spec, summary);
        continue;
      }
      caches.push_back({sample, spec, 0, shared});
    }
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (std::size_t i = 0; i < caches.size(); ++i) {
        Job job = caches[(i + static_cast<std::size_t>(repeat)) % caches.size()];
        job.repeat = repeat;
        if (known.done.contains({{key, job.spec.canonical}, repeat})) {
          ++summary.resumed;
        } else {
          jobs.push_back(std::move(job));
        }
      }
    }
  }
  return jobs;
}

std::string difference_note(const Job& job) {
  const SampleKey& key = job.sample->record.key;
  return fmt::format("alone {} wrote another text than in company on sample {} of {} at {} tokens (run {})", job.spec.canonical,
                     key.sample, key.task, key.context, job.repeat + 1);
}

}  // namespace

std::vector<const PlannedTask*> solo_tasks(std::span<const PlannedTask> plan) {
  std::vector<const PlannedTask*> out;
  for (const PlannedTask& task : plan) {
    const bool there =
        std::ranges::any_of(out, [&](const PlannedTask* p) { return p->task == task.task && p->context == task.context; });
    if (!there) out.push_back(&task);
  }
  return out;
}

const PreparedSample* representative_sample(const PlannedTask& task) {
  if (task.samples.empty()) return nullptr;
  std::vector<const PreparedSample*> order;
  for (const PreparedSample& sample : task.samples) order.push_back(&sample);
  std::ranges::stable_sort(order, {}, [](const PreparedSample* s) { return s->record.prompt_tokens; });
  const int middle = order[(order.size() - 1) / 2]->record.prompt_tokens;
  return *std::ranges::find_if(order, [&](const PreparedSample* s) { return s->record.prompt_tokens == middle; });
}

Result<SoloSummary> run_solo(std::span<const SoloWork> work, int repeats, Store& store, const SoloHooks& hooks) {
  KV_CHECK(hooks.measure && repeats > 0);
  KV_ASSIGN(const StoredResults results, store.load());
  const Known known = known_of(results);
  SoloSummary summary;
  const std::vector<Job> jobs = open_jobs(work, repeats, known, summary);
  const double begin = hooks.clock->seconds();
  for (const Job& job : jobs) {
    if (hooks.cancel != nullptr && hooks.cancel->load()) {
      summary.cancelled = true;
      break;
    }
    if (hooks.progress) {
      SoloProgress progress = {job.sample->record.key.cell(), job.spec.canonical, summary.run, static_cast<int>(jobs.size()), -1};
      const double each = summary.run > 0 ? (hooks.clock->seconds() - begin) / summary.run : 0;
      if (summary.run > 0) progress.seconds_left = each * (progress.total - progress.done);
      hooks.progress(progress);
    }
    Result<SoloRun> measured = hooks.measure(*job.sample, job.spec, limit_of(*job.shared));
    if (!measured.ok() && measured.status().code() == Code::kCancelled) {
      summary.cancelled = true;
      break;
    }
    if (!measured.ok()) return std::move(measured).status();
    SoloRun run = std::move(*measured);
    run.key = job.sample->record.key;
    run.spec = job.spec.canonical;
    run.repeat = job.repeat;
    KV_TRY(store.finish_solo(run));
    ++summary.run;
    if (run.failed()) {
      ++summary.failed;
    } else if (run.text != job.shared->prediction) {
      summary.notes.push_back(difference_note(job));
    }
  }
  return summary;
}

}  // namespace kvartet
