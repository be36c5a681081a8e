// docs/formats/kept-prefill.md: what was written is read, to the bit; anything else is refused.
#include "engine/prefill_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/faulty_file_system.h"
#include "engine/prefill_file_fixture.h"

namespace kvartet {
namespace {

constexpr int kTokens = 37;
constexpr int kKeptQueries = 20;
const char* const kPath = "a.prefill";
constexpr PrefillFileReader::Wanted kEverything = {.key_pre = true, .queries = true, .column_sums = true};

ModelShape two_layers() {
  ModelShape shape;
  shape.hidden = 24;
  shape.layers = {{.heads = 4, .kv_heads = 2, .head_dim = 8}, {.heads = 4, .kv_heads = 1, .head_dim = 8, .window = 16}};
  return shape;
}

class PrefillFile : public ::testing::Test {
 protected:
  PrefillFile() {
    for (int t = 0; t < kTokens; ++t) tokens_.push_back(7 * t);
    for (std::size_t l = 0; l < shape_.layers.size(); ++l) layers_.emplace_back(shape_.layers[l], kTokens, kKeptQueries, l + 1);
    for (int i = 0; i < shape_.hidden; ++i) hidden_.push_back(0.25F * static_cast<float>(i));
  }

  PrefillOrigin origin() const { return {&shape_, tokens_, "model m, test"}; }

  Status write(FileSystem& files) const {
    KV_ASSIGN(const auto writer, PrefillFileWriter::create(files, kPath, origin(), kKeptQueries));
    for (const int layer : {1, 0}) KV_TRY(writer->write_layer(layer, layers_[static_cast<std::size_t>(layer)].view()));
    return writer->finish({hidden_.data(), 1, hidden_.size()}, 1.5);
  }

  // Everything in the file, as one list.
  static Result<std::vector<float>> read(FileSystem& files, const PrefillOrigin& origin) {
    KV_ASSIGN(const auto reader, PrefillFileReader::open(files, kPath, origin));
    std::vector<float> all;
    const auto add = [&](const std::vector<float>& more) { all.insert(all.end(), more.begin(), more.end()); };
    for (int layer = 0; layer < origin.shape->layer_count(); ++layer) {
      KV_ASSIGN(const ExactLayer exact, reader->read_layer(layer, kEverything));
      for (const auto& rows : {exact.key, exact.key_pre, exact.value, exact.last_queries}) add(floats_in(rows));
      add({exact.column_sums.begin(), exact.column_sums.end()});
    }
    KV_ASSIGN(const MatView<const float> hidden, reader->read_hidden());
    add({hidden.data, hidden.data + hidden.cols});
    return all;
  }
  Result<std::vector<float>> read(FileSystem& files) const { return read(files, origin()); }

  std::vector<float> written() const {
    std::vector<float> all;
    for (const OwnedLayer& layer : layers_) {
      for (const auto* part : {&layer.key, &layer.key_pre, &layer.value, &layer.queries, &layer.sums})
        all.insert(all.end(), part->begin(), part->end());
    }
    all.insert(all.end(), hidden_.begin(), hidden_.end());
    return all;
  }

  ModelShape shape_ = two_layers();
  std::vector<Token> tokens_;
  std::vector<OwnedLayer> layers_;
  std::vector<float> hidden_;
  MemoryFileSystem files_;
};

TEST_F(PrefillFile, GivesBackWhatWasWritten) {
  ASSERT_TRUE(write(files_).ok());
  const auto all = read(files_);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(*all, written());
  EXPECT_EQ(files_.list("").value(), std::vector<std::string>{kPath});
  const auto reader = PrefillFileReader::open(files_, kPath, origin());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->queries(), kKeptQueries);
  EXPECT_EQ((*reader)->prefill_seconds(), 1.5);
}

TEST_F(PrefillFile, ReadsOnlyWhatIsWanted) {
  ASSERT_TRUE(write(files_).ok());
  const auto reader = PrefillFileReader::open(files_, kPath, origin());
  ASSERT_TRUE(reader.ok());
  const auto exact = (*reader)->read_layer(0, {});
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(floats_in(exact->key), layers_[0].key);
  EXPECT_EQ(floats_in(exact->value), layers_[0].value);
  EXPECT_EQ(exact->key_pre.data, nullptr);
  EXPECT_EQ(exact->last_queries.tokens, 0U);
  EXPECT_TRUE(exact->column_sums.empty());
}

TEST_F(PrefillFile, HasThePredictedSize) {
  ASSERT_TRUE(write(files_).ok());
  const std::uint64_t bytes = files_.read_file(kPath)->size();
  EXPECT_EQ(bytes, prefill_file_bytes(shape_, {kTokens, kKeptQueries, origin().made_by.size()}));
  EXPECT_EQ(bytes % 64, 0U);
}

// The formula of the format's page.
TEST_F(PrefillFile, TakesTheBytesOfItsPage) {
  std::uint64_t formula = 0;
  for (const LayerShape& s : shape_.layers) {
    formula += 12U * 1000U * static_cast<unsigned>(s.kv_heads * s.head_dim);
    if (s.window == 0) formula += 4U * static_cast<unsigned>(s.heads) * (128U * static_cast<unsigned>(s.head_dim) + 1000U);
  }
  const std::uint64_t bytes = prefill_file_bytes(shape_, {.tokens = 1000, .queries = 128, .made_by_bytes = 100});
  EXPECT_GT(bytes, formula);
  EXPECT_LT(bytes, formula + 4 * 1000 + 2000);  // the token ids, the header, padding
}

// Every single byte: either it is padding, or the file is refused.
TEST_F(PrefillFile, NoFlippedBitPasses) {
  ASSERT_TRUE(write(files_).ok());
  const std::string whole = files_.read_file(kPath).value();
  const std::size_t header = 48 + 4 * kTokens + 2 * 56 + 8 + origin().made_by.size() + 8;
  const std::size_t floats = written().size();
  std::size_t padding = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string spoilt = whole;
    spoilt[at] = static_cast<char>(spoilt[at] ^ (1 << (at % 8)));
    overwrite(files_, kPath, spoilt);
    const auto all = read(files_);
    if (all.ok()) {
      ++padding;
      EXPECT_EQ(*all, written()) << at;
    } else {
      EXPECT_EQ(all.status().code(), Code::kBadInput) << at;
      EXPECT_NE(all.status().message().find(kPath), std::string::npos) << all.status().message();
    }
  }
  EXPECT_EQ(padding, whole.size() - header - 4 * floats);
}

TEST_F(PrefillFile, NoShorterOrLongerFilePasses) {
  ASSERT_TRUE(write(files_).ok());
  const std::string whole = files_.read_file(kPath).value();
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 1 + bytes / 9) {
    overwrite(files_, kPath, whole.substr(0, bytes));
    EXPECT_EQ(read(files_).status().code(), Code::kBadInput) << bytes;
  }
  overwrite(files_, kPath, whole + "x");
  EXPECT_NE(read(files_).status().message().find("bytes"), std::string::npos);
}

TEST_F(PrefillFile, SaysWhatItIsInstead) {
  ASSERT_TRUE(write(files_).ok());
  const std::string whole = files_.read_file(kPath).value();
  const auto refusal = [&](const PrefillOrigin& wanted) {
    const auto all = read(files_, wanted);
    EXPECT_EQ(all.status().code(), Code::kBadInput);
    return all.status().message();
  };
  PrefillOrigin other = origin();
  other.made_by = "model n, test";
  EXPECT_NE(refusal(other).find("[model m, test], but this is [model n, test]"), std::string::npos);
  const std::vector<Token> fewer(tokens_.begin(), tokens_.end() - 1);
  other = origin();
  other.tokens = fewer;
  EXPECT_NE(refusal(other).find("another prompt"), std::string::npos);
  std::vector<Token> changed = tokens_;
  changed[30] ^= 1;
  other.tokens = changed;
  EXPECT_NE(refusal(other).find("another prompt"), std::string::npos);
  ModelShape wider = shape_;
  wider.layers[1].window = 17;
  other = origin();
  other.shape = &wider;
  EXPECT_NE(refusal(other).find("another shape"), std::string::npos);

  std::string later = whole;
  later[8] = 2;
  overwrite(files_, kPath, later);
  EXPECT_NE(refusal(origin()).find("has version 2, but this program reads version 1"), std::string::npos);
  overwrite(files_, kPath, std::string(whole.size(), '\0'));
  EXPECT_NE(refusal(origin()).find("does not begin with KVPREF"), std::string::npos);
}

// Whatever fails, under the final name stands nothing or the whole.
TEST_F(PrefillFile, WritingFailsAtEveryOperation) {
  for (const bool lasting : {false, true}) {
    for (long n = 1;; ++n) {
      MemoryFileSystem memory;
      FaultyFileSystem faulty(memory);
      faulty.arm({.nth = n, .lasting = lasting, .code = Code::kExhausted});
      const Status status = write(faulty);
      if (!faulty.failed()) {
        EXPECT_TRUE(status.ok());
        EXPECT_GT(n, 12);
        break;
      }
      EXPECT_EQ(status.code(), Code::kExhausted) << n;
      EXPECT_FALSE(memory.exists(kPath)) << n;
      EXPECT_TRUE(lasting || memory.list("")->empty()) << n;  // lasting: the removal failed too
      ASSERT_TRUE(write(memory).ok());
      EXPECT_EQ(*read(memory), written()) << n;
    }
  }
}

TEST_F(PrefillFile, ReadingFailsAtEveryOperation) {
  ASSERT_TRUE(write(files_).ok());
  for (long n = 1;; ++n) {
    FaultyFileSystem faulty(files_);
    faulty.arm({.nth = n});
    const auto all = read(faulty);
    if (!faulty.failed()) {
      EXPECT_TRUE(all.ok());
      EXPECT_GT(n, 8);
      break;
    }
    EXPECT_EQ(all.status().code(), Code::kIo) << n;
  }
}

// Names survive a power cut, contents only if they were synced.
TEST_F(PrefillFile, APowerCutLeavesNothingOrTheWhole) {
  ASSERT_TRUE(write(files_).ok());
  files_.crash();
  EXPECT_EQ(*read(files_), written());
  {
    const auto writer = PrefillFileWriter::create(files_, kPath, origin(), kKeptQueries);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->write_layer(0, layers_[0].view()).ok());
    files_.crash();
    EXPECT_EQ(*read(files_), written());
  }
  EXPECT_EQ(files_.list("").value(), std::vector<std::string>{kPath});
}

// Two runs that compute the same prompt at once: each has a file of its own, and the last one stays.
TEST_F(PrefillFile, TwoWritersOfOnePromptDoNotMeet) {
  const auto one = PrefillFileWriter::create(files_, kPath, origin(), kKeptQueries);
  const auto other = PrefillFileWriter::create(files_, kPath, origin(), kKeptQueries);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(files_.list("")->size(), 2U);
  for (const auto* writer : {&one, &other}) {
    for (const int layer : {0, 1}) {
      ASSERT_TRUE((**writer)->write_layer(layer, layers_[static_cast<std::size_t>(layer)].view()).ok());
    }
  }
  for (const auto* writer : {&one, &other}) {
    const Status status = (**writer)->finish({hidden_.data(), 1, hidden_.size()}, 1.5);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(*read(files_), written());
  }
  EXPECT_EQ(files_.list("").value(), std::vector<std::string>{kPath});
}

// What a killed writer leaves is never taken for a whole file, even under the name of one.
TEST_F(PrefillFile, AnUnfinishedFileIsRefused) {
  const auto writer = PrefillFileWriter::create(files_, kPath, origin(), kKeptQueries);
  ASSERT_TRUE(writer.ok());
  for (const int layer : {0, 1}) {
    ASSERT_TRUE((*writer)->write_layer(layer, layers_[static_cast<std::size_t>(layer)].view()).ok());
    EXPECT_FALSE(files_.exists(kPath));
    const std::vector<std::string> names = files_.list("").value();
    ASSERT_EQ(names.size(), 1U);
    overwrite(files_, kPath, files_.read_file(names[0]).value());
    EXPECT_EQ(read(files_).status().code(), Code::kBadInput);
    ASSERT_TRUE(files_.remove(kPath).ok());
  }
}

}  // namespace
}  // namespace kvartet
