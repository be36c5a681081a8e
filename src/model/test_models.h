// Where the model tests get their models.
#pragma once

#include <string>

#include "model/tiny_model.h"

namespace kvartet {

// Writes a tiny model into the tests' folder and gives its path.
std::string tiny_model_file(const TinyModelOptions& options);
// A path in the tests' folder, distinct for every test.
std::string test_file(const std::string& name);
// SmolLM2: KVARTET_MODEL, models/smollm2.gguf, or the file of the Python package. "": none is there.
std::string real_model_file();

}  // namespace kvartet
