// The text that needles are hidden in: essays, one .txt file each, cut into sentences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/tasks/generated_document.h"
#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

// Sentences in order, essay after essay (file names sorted); each with the white space that follows it.
struct Haystack {
  std::vector<std::string> sentences;
};

// From `data_dir`/haystack when that exists, else from the folder `essays_dir`.
// kBadInput: no text there, or text that is not UTF-8.
Result<Haystack> load_haystack(FileSystem& files, const std::string& data_dir, const std::string& essays_dir);

// The sentences from `start` on, around the end if need be. The haystack must outlive the filler.
Filler essay_filler(const Haystack& haystack, std::size_t start);

// A border is white space behind . ! or ? (and closing quotes or brackets) and in front of something that can begin a
// sentence. Joined, the pieces are the text.
std::vector<std::string> split_sentences(const std::string& text);

}  // namespace kvartet
