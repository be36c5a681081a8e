#include "bench/runner/gold_positions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/prompt.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

// Of words, so that a token is several bytes; the template around the text is control tokens and a role's name.
TEST(GoldPositions, AreTheTokensThatShareABytesWithASpan) {
  const std::string path = test_files.add("gold-positions");
  ASSERT_TRUE(write_tiny_model(path, {}).ok());
  const auto vocabulary = Vocabulary::load(path).value();
  const std::string before = "Read: ";
  const std::string document = "alpha beta gamma. The key is 42. delta";
  const std::size_t at = document.find("The key is 42.");
  const std::vector<GoldSpan> spans = {{at, at + 14}};
  for (const PromptForm form : {PromptForm::kRaw, PromptForm::kChat}) {
    const std::vector<Token> tokens = document_part(*vocabulary, form, before + document).value();
    const std::vector<std::int32_t> positions = gold_positions(*vocabulary, tokens, before, document, spans);
    ASSERT_FALSE(positions.empty());
    std::string text;
    for (const std::int32_t p : positions) text += vocabulary->piece(tokens[static_cast<std::size_t>(p)]);
    EXPECT_NE(text.find("The key is 42."), std::string::npos) << text;
    EXPECT_LE(text.size(), 14U + 16);  // at most the rest of the first and the last token
    for (std::size_t i = 1; i < positions.size(); ++i) EXPECT_EQ(positions[i], positions[i - 1] + 1);
    // Two spans that touch the same token name it once.
    const std::vector<std::int32_t> twice =
        gold_positions(*vocabulary, tokens, before, document, std::vector<GoldSpan>{{at, at + 7}, {at + 7, at + 14}});
    EXPECT_EQ(twice, positions);
    EXPECT_TRUE(gold_positions(*vocabulary, tokens, before, document, {}).empty());
    EXPECT_TRUE(gold_positions(*vocabulary, std::span(tokens).first(tokens.size() / 2), before, document, spans).empty());
  }
}

}  // namespace
}  // namespace kvartet
