#include "engine/prompt.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/utf8.h"
#include "engine/byte_vocabulary.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

using std::string;

std::vector<Token> counting(int n) {
  std::vector<Token> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// compression.md 13.1

TEST(TruncateMiddle, TheExampleOfTheSpec) { EXPECT_EQ(truncate_middle(counting(10), 7), (std::vector<Token>{0, 1, 2, 7, 8, 9})); }

TEST(TruncateMiddle, Borders) {
  EXPECT_EQ(truncate_middle(counting(10), 10), counting(10));
  EXPECT_EQ(truncate_middle(counting(10), 8), (std::vector<Token>{0, 1, 2, 3, 6, 7, 8, 9}));
  EXPECT_TRUE(truncate_middle(counting(10), 1).empty());
  EXPECT_TRUE(truncate_middle(counting(10), 0).empty());
  EXPECT_TRUE(truncate_middle({}, 5).empty());
}

TEST(TruncateMiddle, TextIsCutByTokensAndComesBackAsText) {
  ByteVocabulary vocabulary;
  EXPECT_EQ(*truncate_middle_text(vocabulary, "0123456789", 7), "012789");
  EXPECT_EQ(*truncate_middle_text(vocabulary, "0123456789", 10), "0123456789");
  vocabulary.asks_for_bos = true;  // the BOS counts, and has no text
  EXPECT_EQ(*truncate_middle_text(vocabulary, "0123456789", 10), "012356789");
  EXPECT_EQ(*truncate_middle_text(vocabulary, "0123456789", 7), "01789");
}

TEST(TruncateMiddle, ACharacterCutAtTheSeamIsReplaced) {
  const ByteVocabulary vocabulary;
  const Result<string> text = truncate_middle_text(vocabulary, "ab\xE6\x97\xA5xyz\xE6\x97\xA5", 6);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "ab\xEF\xBF\xBD\xE6\x97\xA5");
  EXPECT_TRUE(is_valid_utf8(*text));
}

TEST(TruncateMiddle, SentencePieceSpacesSurvive) {
  const auto vocabulary = Vocabulary::load(sentence_piece_vocabulary().write("truncate"));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  const Result<string> text = truncate_middle_text(**vocabulary, "aa bb cc dd ee", 8);  // BOS and one token per character
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "aad ee") << "BOS, border, a, a and d, border, e, e; the borders at the seams are not text";
}

TEST(Prompt, DocumentAndQuestionPartsJoinToThePrompt) {
  VocabularyFile file = byte_level_vocabulary();
  file.chat_template = "<|im_start|>";
  const auto vocabulary = Vocabulary::load(file.write("prompt"));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  for (const PromptForm form : {PromptForm::kChat, PromptForm::kRaw}) {
    const auto document = document_part(**vocabulary, form, "A text.");
    const auto question = question_part(**vocabulary, form, "\n\nWhy?");
    const auto prompt = build_prompt(**vocabulary, form, {"A text.", "\n\nWhy?"});
    ASSERT_TRUE(document.ok() && question.ok() && prompt.ok());
    std::vector<Token> joined = *document;
    joined.insert(joined.end(), question->begin(), question->end());
    EXPECT_EQ(joined, *prompt);
  }
  const auto chat = build_prompt(**vocabulary, PromptForm::kChat, {"A text.", ""});
  const std::vector<Token> whole =
      (*vocabulary)->tokenize_special("<|im_start|>user\nA text.<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(*chat, whole);
  EXPECT_EQ(*build_prompt(**vocabulary, PromptForm::kRaw, {"A text.", ""}), (*vocabulary)->tokenize_special("A text."));
}

TEST(Prompt, TheNextTurnFollowsAnAnswer) {
  VocabularyFile file = byte_level_vocabulary();
  file.chat_template = "<|im_start|>";
  const auto vocabulary = Vocabulary::load(file.write("prompt-turn"));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  const auto special = [&](const char* text) { return (*vocabulary)->tokenize_special(text); };
  EXPECT_EQ(*next_turn(**vocabulary, PromptForm::kChat, "\n\n And why? "),
            special("<|im_end|>\n<|im_start|>user\nAnd why? <|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(*next_turn(**vocabulary, PromptForm::kRaw, "\n\nAnd why?"), special("\n\nAnd why?"));
  EXPECT_EQ(*next_turn(**vocabulary, PromptForm::kRaw, "And why?"), special("\n\nAnd why?"));
  // What the question says stays text.
  EXPECT_NE(*next_turn(**vocabulary, PromptForm::kChat, "<|im_end|>"),
            special("<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(next_turn(**vocabulary, PromptForm::kChat, "\xFF").status().code(), Code::kBadInput);
}

TEST(Prompt, EmptyAndInvalidTextIsRefused) {
  const auto vocabulary = Vocabulary::load(byte_level_vocabulary().write("prompt-bad"));
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ(build_prompt(**vocabulary, PromptForm::kRaw, {}).status().code(), Code::kBadInput);
  EXPECT_EQ(build_prompt(**vocabulary, PromptForm::kRaw, {"a\xFF", ""}).status().code(), Code::kBadInput);
  EXPECT_EQ(build_prompt(**vocabulary, PromptForm::kRaw, {"a", "\xC3"}).status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace kvartet
