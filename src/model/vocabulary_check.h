// The guard in front of libllama's vocabulary reader, which trusts tables, ids and texts more than a stranger's file deserves.
#pragma once

#include "core/status.h"
#include "model/gguf_file.h"

namespace kvartet {

// The vocabulary is what libllama loads without an abort and speaks without silent losses: a known kind of tokenizer; tokens
// present, distinct and of sensible length; their types, scores and merges of the right type and number; byte tokens that name a
// byte; special tokens in range. Returns its size. kBadInput otherwise, naming the key or token.
Result<int> check_vocabulary(const GgufFile& file);

// Its size alone, for those who load no vocabulary.
Result<int> vocabulary_size(const GgufFile& file);

}  // namespace kvartet
