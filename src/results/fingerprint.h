// Names for token sequences and model files that change when the content does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

// 16 hex digits: XXH64 (seed 0) over the ids as little-endian 32-bit integers.
std::string hash_tokens(std::span<const std::int32_t> tokens);

// 16 hex digits: XXH64 (seed 0) over the bytes.
std::string hash_bytes(std::string_view bytes);

// 16 hex digits for a model file: XXH64 over its size, its first and last MiB and 64 evenly spread pieces of 64 KiB.
// The first MiB holds the metadata; the pieces tell quantizations and fine-tunes apart without reading 100 GB.
// kBadInput: missing; kIo: unreadable.
Result<std::string> model_fingerprint(FileSystem& files, const std::string& path);

}  // namespace kvartet
