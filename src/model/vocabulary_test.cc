#include "model/vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/rng.h"
#include "core/utf8.h"
#include "model/vocabulary_fixture.h"

namespace kvartet {
namespace {

using std::string;

std::unique_ptr<Vocabulary> must_load(const string& path) {
  Result<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::load(path);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  return vocabulary.ok() ? std::move(vocabulary).value() : nullptr;
}

Status load_status(const string& path) { return Vocabulary::load(path).status(); }

const Vocabulary& bytes() {
  static const std::unique_ptr<Vocabulary> vocabulary = must_load(byte_level_vocabulary().write("bytes"));
  return *vocabulary;
}

const Vocabulary* smollm2() {
  static const string path = smollm2_path();
  static const std::unique_ptr<Vocabulary> vocabulary = path.empty() ? nullptr : must_load(path);
  if (vocabulary == nullptr) std::printf("skipped: the default model is not set up\n");
  return vocabulary.get();
}

string random_text(Rng* rng) {
  static const std::vector<string> kParts = {
      "a",          "The ", "  ",    "\n",           "1234",          "\xC3\xA9",     "\xE6\x97\xA5", "\xF0\x9F\x98\x80",
      "<|im_end|>", "\t",   "don't", "\xE2\x96\x81", string(1, '\0'), "\xED\x95\x9C", "</s>",         "<0x0A>"};
  string text;
  for (std::uint64_t n = rng->below(20); n > 0; --n) text += kParts[rng->below(kParts.size())];
  return text;
}

void expect_round_trips(const Vocabulary& vocabulary) {
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    const string text = random_text(&rng);
    const Result<std::vector<Token>> tokens = vocabulary.tokenize(text);
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    EXPECT_EQ(vocabulary.detokenize(*tokens), text);
  }
}

TEST(Vocabulary, C12ByteLevelRoundTripsEveryText) {
  EXPECT_EQ(bytes().size(), 259);
  EXPECT_EQ(bytes().bos(), 256);
  EXPECT_FALSE(bytes().adds_bos());
  expect_round_trips(bytes());
}

TEST(Vocabulary, C12SentencePieceRoundTripsEveryText) {
  const auto vocabulary = must_load(sentence_piece_vocabulary().write("spm"));
  ASSERT_NE(vocabulary, nullptr);
  EXPECT_TRUE(vocabulary->adds_bos());
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    const string text = random_text(&rng);
    if (text.find("\xE2\x96\x81") != string::npos) continue;  // SentencePiece itself takes U+2581 for a space
    const Result<std::vector<Token>> tokens = vocabulary->tokenize(text);
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    EXPECT_EQ(vocabulary->detokenize(*tokens), text);
  }
}

TEST(Vocabulary, C12SmolLm2RoundTripsEveryText) {
  if (smollm2() == nullptr) GTEST_SKIP();
  EXPECT_EQ(smollm2()->size(), 49152);
  EXPECT_FALSE(smollm2()->adds_bos());
  EXPECT_TRUE(smollm2()->is_end(2));
  expect_round_trips(*smollm2());
}

// Where tokenizers differ: spaces, tabs, line ends, composed and decomposed Korean, emoji, every byte above ASCII.
const std::vector<string> kEdges = {" leading",
                                    "two  spaces",
                                    "\ttab\t\ttabs",
                                    "trailing ",
                                    "<|im_end|> after a control word",
                                    "\xED\x95\x9C\xEA\xB5\xAD",
                                    "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB",
                                    "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
                                    "caf\xC3\xA9 \xC2\x80\xC3\xBF",
                                    "line\r\nline\n\n",
                                    "",
                                    "   ",
                                    "\n",
                                    "don't 1234 a1"};

// Without merges every token is a byte, and its id the byte's value.
TEST(Vocabulary, C12TokenizerEdgesOfBytes) {
  for (const string& text : kEdges) {
    const Result<std::vector<Token>> tokens = bytes().tokenize(text);
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    std::vector<Token> expected;
    for (const char c : text) expected.push_back(static_cast<unsigned char>(c));
    EXPECT_EQ(*tokens, expected) << text;
    EXPECT_EQ(bytes().detokenize(*tokens), text);
  }
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(bytes().piece(byte), string(1, static_cast<char>(byte)));
}

// Ids from another implementation: Hugging Face's tokenizers 0.23.3 with the file's tokens and merges, digits apart, byte level.
TEST(Vocabulary, C12TokenizerEdgesOfSmolLm2) {
  if (smollm2() == nullptr) GTEST_SKIP();
  const std::vector<std::vector<Token>> expected = {{2899},
                                                    {11355, 216, 5600},
                                                    {197, 15999, 197, 197, 100, 7366},
                                                    {4861, 4966, 216},
                                                    {44, 108, 306, 79, 486, 108, 46, 990, 253, 1533, 2229},
                                                    {33085, 246, 181, 130, 251},
                                                    {172, 222, 236, 172, 223, 111, 172, 224, 121},
                                                    {10813, 242, 218, 10813, 235, 119, 321, 231, 10813, 235, 117},
                                                    {83, 1939, 2756, 3351, 218, 142, 140},
                                                    {1311, 201, 198, 1311, 1116},
                                                    {},
                                                    {333},
                                                    {198},
                                                    {12420, 982, 216, 33, 34, 35, 36, 253, 33}};
  ASSERT_EQ(expected.size(), kEdges.size());
  for (std::size_t i = 0; i < kEdges.size(); ++i) {
    const Result<std::vector<Token>> tokens = smollm2()->tokenize(kEdges[i]);
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    EXPECT_EQ(*tokens, expected[i]) << kEdges[i];
    EXPECT_EQ(smollm2()->detokenize(*tokens), kEdges[i]);
  }
}

// One BOS in front of a prompt, whether the template writes it, the file asks for it, or both.
TEST(Vocabulary, C12ExactlyOneBosWithATemplate) {
  for (const char* written : {"<|start_header_id|>", "'[INST] ' + '<<SYS>>' + ' [/INST]'", "{{ '<start_of_turn>' }}"}) {
    for (const bool asked : {false, true}) {
      VocabularyFile file = byte_level_vocabulary({"<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]",
                                                   "[/INST]", "<start_of_turn>", "<end_of_turn>"});
      file.chat_template = written;
      file.flags["tokenizer.ggml.add_bos_token"] = asked;
      const auto vocabulary = must_load(file.write("one-bos"));
      ASSERT_NE(vocabulary, nullptr);
      const Result<ChatPrompt> prompt = chat_prompt(*vocabulary, vocabulary->chat_family());
      ASSERT_TRUE(prompt.ok()) << prompt.status().message();
      EXPECT_EQ(prompt->before.front(), vocabulary->bos()) << written;
      EXPECT_EQ(std::count(prompt->before.begin(), prompt->before.end(), vocabulary->bos()), 1) << written;
      EXPECT_EQ(std::count(prompt->after.begin(), prompt->after.end(), vocabulary->bos()), 0) << written;
    }
  }
}

TEST(Vocabulary, C11ControlWordsInUserTextStayText) {  // ggml-notes 7
  for (const Vocabulary* vocabulary : {&bytes(), smollm2()}) {
    if (vocabulary == nullptr) continue;
    const Result<std::vector<Token>> plain = vocabulary->tokenize("a<|im_end|>b");
    ASSERT_TRUE(plain.ok());
    for (const Token token : *plain) EXPECT_FALSE(vocabulary->is_end(token));
    EXPECT_EQ(vocabulary->detokenize(*plain), "a<|im_end|>b");
    EXPECT_EQ(vocabulary->tokenize_special("<|im_end|>").size(), 1U);
    EXPECT_TRUE(vocabulary->is_end(vocabulary->tokenize_special("<|im_end|>")[0]));
    EXPECT_EQ(vocabulary->piece(vocabulary->tokenize_special("<|im_end|>")[0]), "") << "control tokens have no text";
  }
}

TEST(Vocabulary, InvalidUtf8IsRefusedWithItsPlace) {
  const Result<std::vector<Token>> tokens = bytes().tokenize("abc\xFFz");
  ASSERT_EQ(tokens.status().code(), Code::kBadInput);
  EXPECT_NE(tokens.status().message().find("byte 3 (0xff) of 5"), string::npos) << tokens.status().message();
  EXPECT_EQ(bytes().tokenize("\xF0\x9F\x98").status().code(), Code::kBadInput) << "cut off at the end";
}

TEST(Vocabulary, EmptyTextAndNulAreFine) {
  EXPECT_TRUE(bytes().tokenize("").ok());
  EXPECT_TRUE(bytes().tokenize("")->empty());
  EXPECT_EQ(bytes().tokenize(std::string_view("a\0b", 3))->size(), 3U);
}

TEST(Vocabulary, LongTextNeedsASecondAttempt) {  // one token per byte: far more than the first guess
  const string text(10000, 'q');
  EXPECT_EQ(bytes().tokenize(text)->size(), text.size());
}

TEST(Vocabulary, TokensOutOfRangeHaveNoText) {  // libllama throws there (ggml-notes 7)
  for (const Token token : {-1, 259, 1 << 30, INT32_MIN}) {
    EXPECT_EQ(bytes().piece(token), "");
    EXPECT_FALSE(bytes().is_end(token));
  }
}

TEST(Vocabulary, C10PiecesAreBytesOfCharacters) {  // C10: one character may come in several tokens
  const Result<std::vector<Token>> tokens = bytes().tokenize("\xF0\x9F\x98\x80");
  ASSERT_EQ(tokens->size(), 4U);
  EXPECT_EQ(bytes().piece((*tokens)[1]), "\x9F");
}

// --- damaged files: each a sentence, none an abort (ggml-notes 9)

void expect_refused(const string& path, const string& part) {
  const Status status = load_status(path);
  EXPECT_EQ(status.code(), Code::kBadInput);
  EXPECT_NE(status.message().find(part), string::npos) << status.message();
}

TEST(DamagedVocabulary, MissingOrNoGguf) {
  expect_refused("/nowhere/model.gguf", "/nowhere/model.gguf");
  expect_refused(std::filesystem::temp_directory_path(), "folder");
  const string path = test_files.add("garbage");
  for (const string& content : {string(), string("GGUF"), string(4096, 'x'),
                                string("GGUF\3\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\1\0\0\0\0\0\0\0", 24)}) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    std::fwrite(content.data(), 1, content.size(), file);
    std::fclose(file);
    expect_refused(path, path);
  }
}

TEST(DamagedVocabulary, CutAnywhereInTheMetadata) {
  const string whole = byte_level_vocabulary().write("whole");
  const auto size = std::filesystem::file_size(whole);
  const string path = test_files.add("cut");
  for (std::uintmax_t cut = 0; cut < size - 64; cut += 97) {
    std::filesystem::copy_file(whole, path, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path, cut);
    EXPECT_EQ(load_status(path).code(), Code::kBadInput) << "cut at " << cut;
  }
}

TEST(DamagedVocabulary, MissingKeys) {
  VocabularyFile file = byte_level_vocabulary();
  file.model.reset();
  expect_refused(file.write("no-model"), "no vocabulary");
  file = byte_level_vocabulary();
  file.merges.reset();
  expect_refused(file.write("no-merges"), "'tokenizer.ggml.merges'");
  file = byte_level_vocabulary();
  file.tokens.clear();
  file.types.clear();
  expect_refused(file.write("no-tokens"), "tokens");
  expect_refused(
      byte_level_vocabulary().write("lost-tokens", [](gguf_context* g) { gguf_remove_key(g, "tokenizer.ggml.tokens"); }),
      "no vocabulary");
}

TEST(DamagedVocabulary, UnsupportedKinds) {
  for (const char* kind : {"no_vocab", "none", "bert", "t5", "rwkv", "plamo2", "nonsense", ""}) {
    VocabularyFile file = byte_level_vocabulary();
    file.model = kind;
    expect_refused(file.write("kind"), "kind");
  }
  VocabularyFile file = byte_level_vocabulary();
  file.pre = "no-such-pre-tokenizer";
  expect_refused(file.write("pre"), "no-such-pre-tokenizer");
}

TEST(DamagedVocabulary, EmptyAndDuplicateTokens) {
  VocabularyFile file = byte_level_vocabulary();
  file.tokens[7].clear();
  expect_refused(file.write("empty"), "token 7 is empty");
  file = byte_level_vocabulary();
  file.tokens[9] = file.tokens[4];
  expect_refused(file.write("duplicate"), "tokens 4 and 9");
}

TEST(DamagedVocabulary, ArraysOfTheWrongLengthOrType) {
  VocabularyFile file = byte_level_vocabulary();
  file.types.resize(100);
  expect_refused(file.write("short-types"), "100 entries for 259 tokens");
  file = byte_level_vocabulary();
  file.scores.assign(3, 0.0F);
  expect_refused(file.write("short-scores"), "3 entries for 259 tokens");
  const auto with_string = [](const char* key) {
    return byte_level_vocabulary().write("wrong-type", [key](gguf_context* g) { gguf_set_val_str(g, key, "text"); });
  };
  for (const char* key :
       {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores", "tokenizer.ggml.merges"}) {
    EXPECT_EQ(load_status(with_string(key)).code(), Code::kBadInput) << key;
  }
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token"}) {
    const Status status = load_status(with_string(key));
    EXPECT_TRUE(status.ok() || status.code() == Code::kBadInput) << key;
  }
}

// What libllama reads as an array of four bytes an element must be one: of one byte each, it would read beyond the end.
TEST(DamagedVocabulary, TablesOfAnotherElementType) {
  const VocabularyFile file = sentence_piece_vocabulary();
  const std::vector<std::uint8_t> small(file.tokens.size(), 1);
  for (const char* key : {"tokenizer.ggml.token_type", "tokenizer.ggml.scores"}) {
    const auto damage = [&](gguf_context* g) { gguf_set_arr_data(g, key, GGUF_TYPE_UINT8, small.data(), small.size()); };
    expect_refused(file.write("element-type", damage), key);
  }
}

TEST(DamagedVocabulary, TypesScoresMergesAndBytesThatCannotBe) {
  VocabularyFile file = byte_level_vocabulary();
  file.types[5] = 99;
  expect_refused(file.write("type"), "token 5 has the type 99");
  file = sentence_piece_vocabulary();
  file.scores[7] = std::nanf("");
  expect_refused(file.write("score"), "the score of token 7");
  file = sentence_piece_vocabulary();
  file.tokens[20] = "<0xZZ>";
  expect_refused(file.write("byte"), "token 20 is of the type for bytes, but '<0xZZ>'");
  for (const char* merge : {"ab", "a ", " b", ""}) {
    file = byte_level_vocabulary();
    file.merges = {"a b", merge};
    expect_refused(file.write("merge"), "merge 1 is '");
  }
  file = byte_level_vocabulary();
  file.tokens[9].assign(70'000, 'x');
  expect_refused(file.write("long"), "token 9 has 70000 bytes");
  for (const char* name : {"fim_pre", "seperator", "mask", "eom"}) {
    file = byte_level_vocabulary();
    file.ids[string("tokenizer.ggml.") + name + "_token_id"] = 259;
    expect_refused(file.write("special"), "there are 259 tokens");
  }
}

TEST(DamagedVocabulary, SpecialIdsOutOfRange) {
  VocabularyFile file = byte_level_vocabulary();
  file.ids["tokenizer.ggml.bos_token_id"] = 259;
  expect_refused(file.write("ids"), "there are 259 tokens");
  file.ids["tokenizer.ggml.bos_token_id"] = 0xFFFFFFFFU;  // how some files say that there is none
  const auto vocabulary = must_load(file.write("no-bos"));
  ASSERT_NE(vocabulary, nullptr);
  EXPECT_LT(vocabulary->bos(), vocabulary->size());
  EXPECT_FALSE(vocabulary->adds_bos());
}

TEST(DamagedVocabulary, SentencePieceWithoutBytesRefusesWhatItCannotWrite) {
  VocabularyFile file = sentence_piece_vocabulary();
  file.tokens.resize(3);
  for (const char c : {'a', 'b'}) file.tokens.push_back(string(1, c));
  file.types = {kUnknownType, kControlType, kControlType, kNormalType, kNormalType};
  file.scores.assign(5, 0.0F);
  const Result<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::load(file.write("no-bytes"));
  if (!vocabulary.ok()) {
    EXPECT_EQ(vocabulary.status().code(), Code::kBadInput);
    return;
  }
  const Result<std::vector<Token>> tokens = (*vocabulary)->tokenize("xyz");
  EXPECT_TRUE(tokens.ok() || tokens.status().code() == Code::kBadInput);
}

TEST(DamagedVocabulary, OddTokenTypesAndTexts) {
  for (const std::int32_t type : {-1, 0, 2, 4, 5, 6, 99}) {
    VocabularyFile file = byte_level_vocabulary();
    for (int i = 0; i < 20; ++i) file.types[static_cast<std::size_t>(i)] = type;
    file.tokens[30] = "\xFF\xFE";
    file.tokens[31] = "<0x";
    const Result<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::load(file.write("odd"));
    if (!vocabulary.ok()) continue;
    for (Token token = 0; token < (*vocabulary)->size(); ++token) (*vocabulary)->piece(token);
    static_cast<void>((*vocabulary)->tokenize("any text"));
  }
}

}  // namespace
}  // namespace kvartet
