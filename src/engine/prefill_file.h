// A kept prefill as a file: what one prompt gave to the caches, layer after layer, so that later caches need no model pass.
//
// The layout is docs/formats/kept-prefill.md. Floats are those of the prefill, bit for bit. One layer is in memory at a time. The
// file has a name of its own (engine/unfinished_file.h) until it is whole, and every part has a checksum that is verified when it
// is read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "model/exact_layer.h"
#include "model/vocabulary.h"

namespace kvartet {

// What a file was made from, and what it must have been made from to be of use: all of it is compared, nothing by hash alone.
struct PrefillOrigin {
  const ModelShape* shape = nullptr;
  std::span<const Token> tokens = {};
  std::string made_by = {};  // model, program and arithmetic: equal texts, equal bits
};

// Queries are kept of layers without a sliding window, the last `queries` of them.
struct PrefillFileSize {
  std::size_t tokens = 0;
  std::size_t queries = 0;
  std::size_t made_by_bytes = 0;
};
std::uint64_t prefill_file_bytes(const ModelShape& shape, const PrefillFileSize& size);

class PrefillFileWriter {
 public:
  // Takes all of its disk space at once. Several may write the same file, each its own: the last to finish gives it its content.
  // kExhausted: there is not enough; kIo: the system refuses.
  static Result<std::unique_ptr<PrefillFileWriter>> create(FileSystem& files, const std::string& path,
                                                           const PrefillOrigin& origin, int queries);
  virtual ~PrefillFileWriter() = default;  // a file that was not finished is removed

  // Layers in any order, each once, with all parts.
  virtual Status write_layer(int layer, const ExactLayer& exact) = 0;
  // hidden: [1, hidden], of the last token. Makes all of it durable and gives the file its name.
  virtual Status finish(MatView<const float> hidden, double prefill_seconds) = 0;
};

class PrefillFileReader {
 public:
  // kBadInput: no such file, of another version, model, program or prompt, cut short, damaged; kIo: it cannot be read.
  static Result<std::unique_ptr<PrefillFileReader>> open(FileSystem& files, const std::string& path, const PrefillOrigin& origin);
  virtual ~PrefillFileReader() = default;

  virtual int queries() const = 0;             // kept of the last ones; fewer than the tokens
  virtual double prefill_seconds() const = 0;  // of the run that computed it

  // Keys and values always; the rest only where it is wanted.
  struct Wanted {
    bool key_pre = false;
    bool queries = false;
    bool column_sums = false;
  };
  // Valid until the next call. kBadInput: damaged; kIo: cannot be read.
  virtual Result<ExactLayer> read_layer(int layer, const Wanted& wanted) = 0;
  virtual Result<MatView<const float>> read_hidden() = 0;  // [1, hidden]
};

}  // namespace kvartet
