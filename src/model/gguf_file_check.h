// The guard in front of ggml's GGUF reader: ggml trusts offsets and sizes more than a stranger's file deserves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gguf.h>

#include "core/status.h"

namespace kvartet {

// Walks the whole header (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3): every length and
// count against the bytes that are there, every tensor against the end of the file. kBadInput says what is wrong and where.
Status check_gguf_bytes(std::span<const std::byte> file, const std::string& path);

// The same of the header alone: the file may end anywhere behind its tensor records.
struct GgufHeader {
  // A header that ggml reads as the file's own, in which every array of strings is one of as many kOmittedTexts: to copy and to
  // index a vocabulary takes ggml longer than all the rest.
  std::vector<std::byte> bytes;
  std::uint64_t whole_file = 0;  // where the data of the last tensor ends
};
inline constexpr gguf_type kOmittedTexts = GGUF_TYPE_INT8;
Result<GgufHeader> read_gguf_header(std::span<const std::byte> file, const std::string& path);

}  // namespace kvartet
