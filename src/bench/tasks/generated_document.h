// How a generated task fills its context: filler pieces in order, gold pieces at their depths, as many filler pieces as fit.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "bench/tasks/task.h"
#include "core/status.h"

namespace kvartet {

// A piece that must be in the document, at a share `depth` in [0, 1] of the filler.
struct GoldPiece {
  double depth = 0;
  std::string text;  // with the white space that follows it
  GoldSpan span;     // what of it is gold; end 0: all of it
};

struct Filler {
  // The i-th piece, with the white space that follows it: a pure function of i.
  std::function<std::string(std::size_t)> piece;
  // May a gold piece stand in front of piece i? Empty: in front of any.
  std::function<bool(std::size_t)> starts_block;
  std::size_t most = std::numeric_limits<std::size_t>::max();  // pieces there are
  double typical_tokens = 22;                                  // of a piece: a first guess
};

// One place of the document.
struct Place {
  bool gold = false;
  std::size_t index = 0;  // of the filler or the gold piece
};

// The order of `pieces` filler pieces and the gold pieces: gold j comes in front of the first block at or behind
// floor(depth_j * pieces). `gold` by ascending depth.
std::vector<Place> place_pieces(const Filler& filler, std::size_t pieces, const std::vector<GoldPiece>& gold);

// The pieces joined, without white space at the end; sets sample.document, sample.gold_spans and sample.length (words).
void lay_out(const Filler& filler, std::size_t pieces, const std::vector<GoldPiece>& gold, Sample& sample);

// The most units (sentences, words, clauses, ...) up to `most` whose whole prompt stays within request.context_tokens.
// `build(n)` makes the sample's document of n units; on return the sample holds the document of the answer.
// kExhausted: not even zero units fit; as count_tokens.
struct FitWish {
  std::string task;  // for messages
  std::size_t least = 0;
  std::size_t most = std::numeric_limits<std::size_t>::max();
  double typical_tokens = 22;
};
Result<std::size_t> fit_units(const TaskRequest& request, const FitWish& wish, Sample& sample,
                              const std::function<void(std::size_t)>& build);

// lay_out with as many pieces as fit.
Status fill_document(const TaskRequest& request, const std::string& task, const Filler& filler,
                     const std::vector<GoldPiece>& gold, Sample& sample);

// A question about a document that others ask about, too: a sample without its document, and which gold pieces are its own.
struct DocumentQuestion {
  Sample sample;
  std::vector<std::size_t> gold;  // ascending
};

// The same for several questions: one document for all, as long as the one with the longest question allows.
Result<std::vector<Sample>> fill_shared_document(const TaskRequest& request, const std::string& task, const Filler& filler,
                                                 const std::vector<GoldPiece>& gold, std::vector<DocumentQuestion> questions);

// Words of a text, as spaces and newlines separate them.
int word_count(std::string_view text);

}  // namespace kvartet
