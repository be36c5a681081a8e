#include "bench/runner/second_question.h"

#include <gtest/gtest.h>

#include <memory>

#include "engine/byte_vocabulary.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

Sample sample(const std::string& id, const std::string& document, const std::string& question, const std::string& gold) {
  Sample s;
  s.id = id;
  s.before = "Read. ";
  s.document = document;
  s.question = "\n\n" + question;
  s.answers = {gold};
  s.gold = gold;
  s.max_new_tokens = 8;
  return s;
}

std::vector<PreparedSample> prepared(const Vocabulary& vocabulary, const std::vector<Sample>& samples, int context = 600) {
  std::vector<PreparedSample> out;
  for (const Sample& s : samples)
    out.push_back(prepare_sample(vocabulary, s, {"my.jsonl", context, s.id}, static_cast<int>(out.size())).value());
  return out;
}

std::vector<Sample> two_questions() {
  return {sample("a", "The mill is red. The dam is old.", "How is the mill?", "It is red."),
          sample("b", "The mill is red. The dam is old.", "How is the dam?", "It is old.")};
}

// Of every family: the text of the conversation, and where the caches are sealed.
TEST(SecondQuestion, IsAConversationThatIsSealedAfterTheFirstPrompt) {
  struct Case {
    const char* chat_template;
    std::vector<std::string> control;
    bool bos;
    std::string user, answer, end;  // what stands before a user's text, before an answer, and behind it
  };
  const std::vector<Case> cases = {
      {"<|im_start|>",
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
       false,
       "<|im_start|>user\n",
       "<|im_end|>\n<|im_start|>assistant\n",
       "<|im_end|>\n"},
      {"<start_of_turn>",
       {"<bos>", "<start_of_turn>", "<end_of_turn>"},
       true,
       "<start_of_turn>user\n",
       "<end_of_turn>\n<start_of_turn>model\n",
       "<end_of_turn>\n"},
      {"<|start_header_id|>",
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       true,
       "<|start_header_id|>user<|end_header_id|>\n\n",
       "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
       "<|eot_id|>"},
  };
  for (const Case& c : cases) {
    VocabularyFile file = byte_level_vocabulary(c.control);
    file.chat_template = c.chat_template;
    const auto vocabulary = Vocabulary::load(file.write("second"));
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
    const std::vector<PreparedSample> alone = prepared(**vocabulary, two_questions());
    const SecondQuestions second = ask_second(alone);
    ASSERT_EQ(second.samples.size(), 2U);
    EXPECT_EQ(second.alone, 0);
    const PreparedSample& b = second.samples[1];
    std::vector<Token> whole;
    if (c.bos) whole.push_back((*vocabulary)->bos());
    const std::string text = c.user + "Read. The mill is red. The dam is old.\n\nHow is the mill?" + c.answer + "It is red." +
                             c.end + c.user + "How is the dam?" + c.answer;
    const std::vector<Token> rendered = (*vocabulary)->tokenize_special(text);
    whole.insert(whole.end(), rendered.begin(), rendered.end());
    EXPECT_EQ(b.prompt(), whole) << (*vocabulary)->detokenize(b.prompt());
    EXPECT_EQ(b.document, alone[0].prompt()) << "sealed as the first question alone";
    EXPECT_EQ(b.gold, alone[1].gold);
    EXPECT_EQ(second.samples[0].document, alone[1].prompt()) << "the first of all comes after the one behind it";
  }
}

TEST(SecondQuestion, APlainPromptGoesOnAfterABlankLine) {
  const ByteVocabulary vocabulary;
  const SecondQuestions second = ask_second(prepared(vocabulary, two_questions()));
  ASSERT_EQ(second.samples.size(), 2U);
  EXPECT_EQ(vocabulary.detokenize(second.samples[1].prompt()),
            "Read. The mill is red. The dam is old.\n\nHow is the mill? It is red.\n\nHow is the dam?");
}

TEST(SecondQuestion, TheRecordIsThatOfTheQuestionWithThePromptOfTheConversation) {
  const ByteVocabulary vocabulary;
  std::vector<Sample> samples = two_questions();
  samples[1].gold_spans = {{17, 32}};
  const std::vector<PreparedSample> alone = prepared(vocabulary, samples);
  const PreparedSample b = ask_second(alone).samples[1];
  EXPECT_EQ(b.record.key, (SampleKey{"my.jsonl", 600, "b", QuestionPosition::kSecond}));
  EXPECT_EQ(b.record.question, "How is the dam?");
  EXPECT_EQ(b.record.answers_json, alone[1].record.answers_json);
  EXPECT_EQ(b.record.document, alone[1].record.document);
  EXPECT_EQ(b.record.depths_json, alone[1].record.depths_json);
  EXPECT_EQ(b.gold_positions, alone[1].gold_positions);
  EXPECT_FALSE(b.gold_positions.empty());
  EXPECT_NE(b.record.prompt_hash, alone[1].record.prompt_hash);
  EXPECT_EQ(b.record.prompt_tokens, static_cast<int>(b.prompt().size()));
  EXPECT_FALSE(b.record.decided_by_prefill());
}

// Which question comes first does not change when more are added: a run may go on with more samples.
TEST(SecondQuestion, ConversationsStayTheSameWhenQuestionsAreAdded) {
  const ByteVocabulary vocabulary;
  std::vector<Sample> samples = two_questions();
  const std::vector<PreparedSample> two = ask_second(prepared(vocabulary, samples)).samples;
  samples.insert(samples.begin() + 1, sample("z", "Another text.", "What is it?", "A text."));
  samples.push_back(sample("c", samples[0].document, "What is old?", "The dam."));
  const SecondQuestions more = ask_second(prepared(vocabulary, samples));
  EXPECT_EQ(more.alone, 1);  // z
  ASSERT_EQ(more.samples.size(), 3U);
  EXPECT_EQ(more.samples[0].record.prompt_hash, two[0].record.prompt_hash);
  EXPECT_EQ(more.samples[1].record.prompt_hash, two[1].record.prompt_hash);
  EXPECT_EQ(more.samples[2].document, prepared(vocabulary, samples)[2].prompt());  // b, the nearest before it
}

TEST(SecondQuestion, TheSameWordsAreNotAskedTwiceAndAFirstQuestionHasAnAnswer) {
  const ByteVocabulary vocabulary;
  std::vector<Sample> samples = two_questions();
  samples[1].question = samples[0].question;
  EXPECT_FALSE(can_ask_second(prepared(vocabulary, samples)));
  EXPECT_EQ(ask_second(prepared(vocabulary, samples)).alone, 2);
  samples.push_back(sample("c", samples[0].document, "What is old?", "The dam."));
  const std::vector<PreparedSample> alone = prepared(vocabulary, samples);
  const std::vector<PreparedSample> second = ask_second(alone).samples;
  ASSERT_EQ(second.size(), 3U);
  EXPECT_EQ(second[1].document, alone[2].prompt());

  samples = two_questions();
  samples[0].gold.clear();
  const SecondQuestions one = ask_second(prepared(vocabulary, samples));
  EXPECT_EQ(one.alone, 1);
  ASSERT_EQ(one.samples.size(), 1U);
  EXPECT_EQ(one.samples[0].record.key.sample, "a");
}

// What lost its middle is sealed as the first question had it.
TEST(SecondQuestion, CutPromptsAreThoseOfTheFirstQuestion) {
  const ByteVocabulary vocabulary;
  std::vector<Sample> samples = two_questions();
  for (Sample& s : samples) {
    for (int i = 0; i < 200; ++i) s.document += " More of it.";
    s.gold_spans = {{0, 16}};
  }
  samples[1].question += " And why is it so?";
  const std::vector<PreparedSample> alone = prepared(vocabulary, samples);
  ASSERT_GT(alone[0].record.dropped_tokens, 0);
  ASSERT_NE(alone[0].document, alone[1].document);
  const std::vector<PreparedSample> second = ask_second(alone).samples;
  EXPECT_EQ(second[1].document, alone[0].prompt());
  EXPECT_EQ(second[1].record.dropped_tokens, alone[0].record.dropped_tokens);
  EXPECT_TRUE(second[1].gold_positions.empty());
}

// Whatever the task, the hint can be followed.
TEST(SecondQuestion, EveryTaskSaysHowToGetSecondQuestions) {
  for (const TaskEntry& entry : task_registry()) {
    const std::string hint = how_to_ask_several(entry.name);
    constexpr std::string_view kGive = "give --task ";
    if (!hint.starts_with(kGive)) {
      EXPECT_NE(hint.find("docqa:questions=4"), std::string::npos) << entry.name << ": " << hint;
      continue;
    }
    const std::string task = hint.substr(kGive.size());
    EXPECT_EQ(task, entry.name + ":questions=4");
    EXPECT_TRUE(make_task(task).ok()) << task;
  }
  EXPECT_EQ(how_to_ask_several("needle"), "give --task needle:questions=4");
  EXPECT_EQ(how_to_ask_several("chat:turns=2"), "give --task chat:turns=2,questions=4");
  EXPECT_EQ(how_to_ask_several("needle:questions=4"), "give --samples 2 or more");
  EXPECT_EQ(how_to_ask_several("mine.jsonl"), "give it several lines with the same context");
}

}  // namespace
}  // namespace kvartet
