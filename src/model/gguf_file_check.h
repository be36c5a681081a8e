// The guard in front of ggml's GGUF reader: ggml trusts offsets and sizes more than a stranger's file deserves.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/status.h"

namespace kvartet {

// Walks the whole header (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3): every length and
// count against the bytes that are there, every tensor against the end of the file. kBadInput says what is wrong and where.
Status check_gguf_bytes(std::span<const std::byte> file, const std::string& path);

}  // namespace kvartet
