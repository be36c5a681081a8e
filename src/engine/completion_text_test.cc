#include "engine/completion_text.h"

#include <gtest/gtest.h>

#include "core/rng.h"
#include "engine/byte_vocabulary.h"

namespace kvartet {
namespace {

using std::string;

struct Streamed {
  string text;
  bool all_valid = true;
  bool stopped = false;
};

Streamed stream(const Vocabulary& vocabulary, const std::vector<Token>& tokens, const GenerateOptions& options) {
  CompletionText completion(vocabulary, options);
  Streamed out;
  const auto take = [&](const string& piece) {
    out.all_valid = out.all_valid && is_valid_utf8(piece);
    out.text += piece;
  };
  for (const Token token : tokens) {
    take(completion.push(token));
    if (completion.stopped()) break;
  }
  take(completion.finish());
  out.stopped = completion.stopped();
  return out;
}

TEST(CompletionText, C10CutByMaxTokensInsideACharacter) {  // user-needs C10
  const ByteVocabulary vocabulary;
  const string emoji = "ok \xF0\x9F\x98\x80";
  for (std::size_t n = 3; n < emoji.size(); ++n) {
    const Streamed out = stream(vocabulary, vocabulary.tokenize_special(emoji.substr(0, n)), {});
    EXPECT_TRUE(out.all_valid);
    EXPECT_EQ(out.text, n == 3 ? "ok " : "ok \xEF\xBF\xBD") << n;
  }
}

TEST(CompletionText, RandomBytesAreValidAndJoinToTheWhole) {
  const ByteVocabulary vocabulary;
  Rng rng(4);
  for (int i = 0; i < 2000; ++i) {
    string bytes;
    for (std::uint64_t n = rng.below(40); bytes.size() < n;) bytes += static_cast<char>(rng.below(256));
    const Streamed out = stream(vocabulary, vocabulary.tokenize_special(bytes), {.stop = {"never happens"}});
    EXPECT_TRUE(out.all_valid);
    EXPECT_EQ(out.text, replace_invalid_utf8(bytes));
  }
}

TEST(CompletionText, C10AStopOfManyBytesComesInManyTokens) {  // C9 and C10 together
  const ByteVocabulary vocabulary;
  const Streamed out =
      stream(vocabulary, vocabulary.tokenize_special("caf\xC3\xA9 \xE2\x9C\x82 rest"), {.stop = {"\xE2\x9C\x82"}});
  EXPECT_EQ(out.text, "caf\xC3\xA9 ");
  EXPECT_TRUE(out.stopped);
  // A stop whose character is never completed stops nothing and loses nothing.
  const Streamed cut = stream(vocabulary, vocabulary.tokenize_special("a\xE2\x9C"), {.stop = {"\xE2\x9C\x82"}});
  EXPECT_EQ(cut.text, "a\xEF\xBF\xBD");
  EXPECT_FALSE(cut.stopped);
}

TEST(CompletionText, NewlineStopsFromTheSecondTokenOn) {  // compression.md 13.1, samsum
  const ByteVocabulary vocabulary({"\n\n", " day\nnext"});
  GenerateOptions options;
  options.stop_at_newline = true;
  EXPECT_EQ(stream(vocabulary, {'\n', 'a', 'b', '\n', 'c'}, options).text, "\nab");
  EXPECT_EQ(stream(vocabulary, {256, 'x', 257, 'c'}, options).text, "\n\nx day");
  EXPECT_FALSE(stream(vocabulary, {'\n'}, options).stopped);
  EXPECT_EQ(stream(vocabulary, {'a', '\n'}, {}).text, "a\n") << "off by default";
}

TEST(CompletionText, TokensWithoutTextChangeNothing) {
  const ByteVocabulary vocabulary({""});
  EXPECT_EQ(stream(vocabulary, {'a', 256, 'b'}, {.stop = {"ab!"}}).text, "ab");
}

}  // namespace
}  // namespace kvartet
