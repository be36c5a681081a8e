// A folder of kept prefills: prompts whose exact rows a later cache can be built from without another pass of the model.
//
// Nothing here fails a prefill. A file that is of no use (damaged, of another version or machine, another prompt's) is reported
// and its prompt computed anew, which replaces it; a prompt that cannot be kept is counted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "engine/prefill_file.h"
#include "model/vocabulary.h"

namespace kvartet {

struct KeptPrefillOptions {
  std::string directory;
  std::string model;                                   // the fingerprint of its file
  std::string program;                                 // name and version of who computes
  FileSystem* files = nullptr;                         // where the directory is; null: the real one
  std::function<void(const Status&)> on_refusal = {};  // is told of every file that is of no use; may be empty
};

class KeptPrefills {
 public:
  // Caches choose rows by the softmax of a window of the last queries. As many queries as this are kept at least: methods use 32
  // by default. A cache that asks for more finds the file of no use, and the new one has what it asks for.
  static constexpr int kQueries = 128;

  explicit KeptPrefills(KeptPrefillOptions options);

  std::string path_of(std::span<const Token> prompt) const;
  // The model and the program, in front of what the engine adds about its arithmetic.
  std::string made_by() const;

  // What keeping would take.
  struct Plan {
    int prompts = 0;               // different ones
    int there = 0;                 // of them have a file, which may still turn out to be of no use
    std::uint64_t bytes = 0;       // of all files
    std::uint64_t new_bytes = 0;   // of those that are not there
    std::uint64_t free_bytes = 0;  // on that disk
  };
  Result<Plan> plan(const ModelShape& shape, std::span<const std::vector<Token>> prompts) const;
  // Makes the folder; if there is something to write, also removes what killed runs left there, and sees that the folder can be
  // written to and has the space. kExhausted, kIo.
  Status prepare(const Plan& plan);

  // --- for the engine

  // Null: nothing of use is there. `queries`: as many of the last ones are needed at least.
  std::unique_ptr<PrefillFileReader> open(const PrefillOrigin& origin, int queries);
  void refuse(const Status& why);  // of a file that was opened
  void count_read() { ++tally_.read; }

  // Null: it cannot be kept, which was counted.
  std::unique_ptr<PrefillFileWriter> create(const PrefillOrigin& origin, int queries);
  void count_kept(const Status& status);

  struct Tally {
    int read = 0;          // prompts that needed no model pass
    int kept = 0;          // files written
    int refused = 0;       // files of no use
    int not_kept = 0;      // prompts that could not be kept
    Status first_failure;  // why the first of them could not
  };
  const Tally& tally() const { return tally_; }

 private:
  FileSystem& files() const;

  KeptPrefillOptions options_;
  Tally tally_;
};

}  // namespace kvartet
