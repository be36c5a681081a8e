// One function per parser that meets a stranger's bytes. The fuzzers call it with bytes of their own, corpus_test.cc with the
// kept ones. Whatever the bytes are, it returns: a promise that does not hold is a KV_CHECK, and so is a crash below it.
#pragma once

#include <span>
#include <string_view>

namespace kvartet::fuzz {

void feed_gguf(std::string_view bytes);        // a model file: guard, metadata, vocabulary, tensors' places
void feed_spec(std::string_view bytes);        // a cache or task spec
void feed_json_lines(std::string_view bytes);  // records, predictions, data sets; the first two bytes choose the reader
void feed_results(std::string_view bytes);     // a results store, as an SQLite file or as a script of rows

struct Target {
  std::string_view name;  // of its corpus folder, and of its program behind "fuzz_"
  void (*feed)(std::string_view bytes);
};
std::span<const Target> targets();

}  // namespace kvartet::fuzz
