// The decode loop: a list of sequences as one batch, each until its own end.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/utf8.h"
#include "engine/completion_text.h"
#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/sampler.h"

namespace kvartet {

namespace {

Status check_options(const GenerateOptions& options) {
  if (options.max_tokens < 0) return usage_error(fmt::format("{} new tokens make no sense; give 0 or more", options.max_tokens));
  for (const std::string& stop : options.stop) {
    if (stop.empty()) return usage_error("a stop string is empty; leave it out");
    if (!is_valid_utf8(stop)) return usage_error("a stop string is not valid UTF-8; give whole characters");
  }
  return check_sampling(options.sampling);
}

// One sequence on its way to its end.
class Answer {
 public:
  Answer(int index, Sequence& sequence, const Vocabulary& vocabulary, const GenerateOptions& options, int room)
      : index_(index), sequence_(&sequence), text_(vocabulary, options), room_(room) {}

  int index() const { return index_; }
  Sequence& sequence() const { return *sequence_; }
  bool ended() const { return ended_; }

  // Draws the next token from the sequence's logits and takes it into the text. `begin`: when generation began.
  Status draw(const Vocabulary& vocabulary, const GenerateOptions& options, double begin, const Engine::OnText& on_text) {
    std::vector<Token>& tokens = completion_.tokens;
    KV_ASSIGN(const Token token, sample(sequence_->logits, options.sampling, tokens.size()));
    if (vocabulary.is_end(token) && !options.ignore_end) {
      end(FinishReason::kStop, on_text);
      return {};
    }
    tokens.push_back(token);
    completion_.token_s.push_back(Clock::real().seconds() - begin);
    sequence_->pending.push_back(token);
    emit(text_.push(token), on_text);
    if (text_.stopped()) {
      end(FinishReason::kStop, on_text);
    } else if (static_cast<int>(tokens.size()) == room_) {
      end(FinishReason::kLength, on_text);
    }
    return {};
  }

  void end(FinishReason reason, const Engine::OnText& on_text) {
    emit(text_.finish(), on_text);
    completion_.finish_reason = text_.stopped() ? FinishReason::kStop : reason;
    const std::vector<double>& times = completion_.token_s;
    completion_.decode_s = times.empty() ? 0 : times.back() - times.front();
    ended_ = true;
  }

  void fail(Status failure, const Engine::OnText& on_text) {
    end(FinishReason::kFailed, on_text);
    completion_.failure = std::move(failure);
  }

  Completion take_completion() { return std::move(completion_); }

 private:
  void emit(const std::string& piece, const Engine::OnText& on_text) {
    if (piece.empty()) return;
    completion_.text += piece;
    if (on_text) on_text(index_, piece);
  }

  int index_;  // among the sequences of the call
  Sequence* sequence_;
  CompletionText text_;
  int room_;  // tokens that max_tokens and the context allow
  bool ended_ = false;
  Completion completion_;
};

}  // namespace

Result<std::vector<Completion>> Engine::generate(std::span<Sequence* const> sequences, const GenerateOptions& options,
                                                 const OnText& on_text) {
  KV_TRY(check_options(options));
  std::vector<Completion> completions(sequences.size());
  if (options.max_tokens == 0) return completions;

  std::vector<Answer> active;
  active.reserve(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const int used = sequences[i]->cache.next_position() + static_cast<int>(sequences[i]->pending.size());
    const int left = sequences[i]->cache.is_endless() ? options.max_tokens : shape().context - used;
    const int room = std::min(options.max_tokens, left);
    if (room < 1) {
      return exhausted(
          fmt::format("the prompt of {} tokens fills the model's context of {} and leaves no room for an answer; shorten it",
                      used, shape().context));
    }
    active.emplace_back(static_cast<int>(i), *sequences[i], vocabulary(), options, room);
  }

  const double begin = Clock::real().seconds();
  for (Sequence* sequence : sequences) {
    if (!sequence->pending.empty()) KV_TRY(extend(*sequence, {}));
  }
  std::vector<Sequence*> batch;
  std::vector<Token> fed;
  while (!active.empty()) {
    // The first token of each costs no step: its logits are there.
    const bool interrupted = impl_->is_cancelled();
    for (Answer& answer : active) {
      if (interrupted) {
        answer.end(FinishReason::kCancelled, on_text);
      } else {
        KV_TRY(answer.draw(vocabulary(), options, begin, on_text));
      }
      if (answer.ended()) completions[static_cast<std::size_t>(answer.index())] = answer.take_completion();
    }
    std::erase_if(active, [](const Answer& answer) { return answer.ended(); });
    if (active.empty()) break;
    batch.clear();
    fed.clear();
    for (Answer& answer : active) {
      batch.push_back(&answer.sequence());
      fed.push_back(answer.sequence().pending.back());
      answer.sequence().pending.clear();
    }
    Status stepped = impl_->decode(batch, fed);
    if (stepped.ok()) continue;
    const std::span<const Status> failures = impl_->step->failures();
    const auto failed = [](const Status& status) { return !status.ok(); };
    if (sequences.size() == 1 || std::none_of(failures.begin(), failures.end(), failed)) return stepped;
    for (std::size_t i = 0; i < active.size(); ++i) {
      if (failures[i].ok()) continue;
      active[i].fail(failures[i], on_text);
      completions[static_cast<std::size_t>(active[i].index())] = active[i].take_completion();
    }
    std::erase_if(active, [](const Answer& answer) { return answer.ended(); });
  }
  return completions;
}

}  // namespace kvartet
