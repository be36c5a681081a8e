#include "bench/tasks/generated_document.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

namespace kvartet {

std::vector<Place> place_pieces(const Filler& filler, std::size_t pieces, const std::vector<GoldPiece>& gold) {
  std::vector<Place> places;
  places.reserve(pieces + gold.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i <= pieces; ++i) {
    const bool border = i == pieces || !filler.starts_block || filler.starts_block(i);
    while (border && next < gold.size() &&
           (i == pieces || static_cast<std::size_t>(gold[next].depth * static_cast<double>(pieces)) <= i)) {
      places.push_back({true, next++});
    }
    if (i < pieces) places.push_back({false, i});
  }
  return places;
}

void lay_out(const Filler& filler, std::size_t pieces, const std::vector<GoldPiece>& gold, Sample& sample) {
  std::string& out = sample.document;
  out.clear();
  sample.gold_spans.clear();
  for (const Place& place : place_pieces(filler, pieces, gold)) {
    if (!place.gold) {
      out += filler.piece(place.index);
      continue;
    }
    const GoldPiece& piece = gold[place.index];
    const std::size_t end = piece.span.end == 0 ? piece.text.find_last_not_of(" \n") + 1 : piece.span.end;
    sample.gold_spans.push_back({out.size() + piece.span.begin, out.size() + end});
    out += piece.text;
  }
  while (!out.empty() && (out.back() == ' ' || out.back() == '\n')) out.pop_back();
  sample.length = word_count(out);
}

Result<std::size_t> fit_units(const TaskRequest& request, const FitWish& wish, Sample& sample,
                              const std::function<void(std::size_t)>& build) {
  const auto tokens_with = [&](std::size_t units) {
    build(units);
    return request.count_tokens(sample.prompt());
  };
  KV_ASSIGN(const int least, tokens_with(wish.least));
  if (least > request.context_tokens) {
    return exhausted(
        fmt::format("The task {} needs at least {} tokens for its facts and question, but only {} remain for the prompt; "
                    "give a larger --context.",
                    wish.task, least, request.context_tokens));
  }
  // Tokens grow with units almost evenly, so interpolation needs few of the costly counts; every third step halves the
  // interval in case it does not.
  std::size_t low = wish.least;
  std::size_t high = 0;  // 0: no count above the limit seen yet
  int low_tokens = least;
  double tokens_per_unit = wish.typical_tokens;
  for (int step = 0; low < wish.most && (high == 0 || low + 1 < high); ++step) {
    const auto reach = static_cast<std::size_t>((request.context_tokens - low_tokens) / tokens_per_unit);
    std::size_t next = std::min(low + reach + 1, wish.most);
    if (high != 0) next = step % 3 == 2 ? low + (high - low) / 2 : std::clamp(low + reach, low + 1, high - 1);
    KV_ASSIGN(const int tokens, tokens_with(next));
    if (next > low && tokens > least) tokens_per_unit = std::max(1.0, (tokens - low_tokens) / static_cast<double>(next - low));
    if (tokens <= request.context_tokens) {
      low = next;
      low_tokens = tokens;
    } else {
      high = next;
    }
  }
  build(low);
  return low;
}

Status fill_document(const TaskRequest& request, const std::string& task, const Filler& filler,
                     const std::vector<GoldPiece>& gold, Sample& sample) {
  const FitWish wish = {.task = task, .most = filler.most, .typical_tokens = filler.typical_tokens};
  return fit_units(request, wish, sample, [&](std::size_t pieces) { lay_out(filler, pieces, gold, sample); }).status();
}

Result<std::vector<Sample>> fill_shared_document(const TaskRequest& request, const std::string& task, const Filler& filler,
                                                 const std::vector<GoldPiece>& gold, std::vector<DocumentQuestion> questions) {
  KV_CHECK(!questions.empty());
  std::size_t longest = 0;
  int most = 0;
  for (std::size_t i = 0; i < questions.size() && questions.size() > 1; ++i) {
    KV_ASSIGN(const int tokens, request.count_tokens(questions[i].sample.question));
    if (tokens <= most) continue;
    most = tokens;
    longest = i;
  }
  Sample filled = questions[longest].sample;
  KV_TRY(fill_document(request, task, filler, gold, filled));
  std::vector<Sample> out;
  for (DocumentQuestion& question : questions) {
    Sample& sample = question.sample;
    sample.document = filled.document;
    sample.length = filled.length;
    for (const std::size_t i : question.gold) sample.gold_spans.push_back(filled.gold_spans[i]);
    out.push_back(std::move(sample));
  }
  return out;
}

int word_count(std::string_view text) {
  int words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n';
    words += !space && !inside ? 1 : 0;
    inside = !space;
  }
  return words;
}

}  // namespace kvartet
