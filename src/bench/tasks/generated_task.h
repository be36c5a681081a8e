// What every generated task shares: a length that must be given, documents drawn one by one from (seed, index).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/tasks/needle_haystack.h"
#include "bench/tasks/task.h"

namespace kvartet {

inline constexpr int kDefaultSamples = 20;
inline constexpr int kMostQuestions = 16;  // about one document

// A task whose documents may carry several questions each, in prompts of their own that differ in nothing else: the document
// is computed once for all of them (docs/decisions/0012-shared-documents.md). Samples are called "0", "1", ... where a document
// has one question, else "0.0", "0.1", ...: document and question.
class DocumentTask : public Task {
 public:
  DocumentTask(std::string spec, std::string metric) : spec_(std::move(spec)), metric_(std::move(metric)) {}
  std::string spec() const override { return spec_; }
  std::string metric() const override { return metric_; }
  // kUsage: no context length; kBadInput: no haystack where one is needed; kExhausted: the context is too small.
  Result<SampleSet> samples(const TaskRequest& request) const override;

 protected:
  virtual bool needs_haystack() const { return false; }
  // All questions about document `index`, a pure function of (request.seed, index, request.context_tokens). As many for every
  // document. The haystack is empty if not needed.
  virtual Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack& haystack, int index) const = 0;

 private:
  std::string spec_;
  std::string metric_;
};

// One question for each document.
class GeneratedTask : public DocumentTask {
 public:
  using DocumentTask::DocumentTask;

 protected:
  virtual Result<Sample> make_sample(const TaskRequest& request, const Haystack& haystack, int index) const = 0;

 private:
  Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack& haystack, int index) const final;
};

// "docqa", and "docqa:questions=4" for several; "chat:turns=4" and "chat:turns=4,questions=2".
std::string spec_with_questions(const std::string& spec, int questions);

// Question `question` of document `document` asks for this of as many facts in the order of the text: each document begins with
// another one, so that a run that ends within a document prefers no depth.
inline int asked_fact(int document, int question, int questions) { return (document + question) % questions; }

// The keys of a task spec, read one by one; what was not read is unknown.
//
//   TaskKeys keys(spec);
//   const int hops = keys.whole("hops", 2, 1, 2);
//   KV_TRY(keys.status());
class TaskKeys {
 public:
  explicit TaskKeys(const TaskSpec& spec) : spec_(spec) {}
  int whole(std::string_view key, int fallback, int least, int most);
  std::string word(std::string_view key, std::span<const std::string_view> allowed);  // the first is the default
  Status status() const;  // kUsage: the first bad value, or a key that nobody read

 private:
  const std::string* find(std::string_view key);
  TaskSpec spec_;
  std::vector<std::string> known_;
  Status status_;
};

// "a", "a and b", "a, b and c": how generated texts list things.
std::string words_joined(const std::vector<std::string>& parts);

}  // namespace kvartet
