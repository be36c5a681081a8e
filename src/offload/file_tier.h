// tier=mmap and tier=disk: rows in pages of a file, whole pages only; the rows of the last, unfinished page of each head stay
// in memory until it is full.
//
// A page holds rows of one head, so that neighbours in the sequence are neighbours on disk. Its checksum stays in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "offload/page_buffer.h"
#include "offload/page_reader.h"
#include "offload/row_file.h"
#include "offload/row_tier.h"

namespace kvartet {

enum class DiskReader { kUring, kPread };

struct FileTierOptions {
  Tier tier = Tier::kDisk;
  FileSystem* fs = nullptr;                 // null: the real one
  std::string directory = {};               // for a file that is not kept; "": the current folder
  std::string keep_as = {};                 // "": the file has no name and vanishes with the process
  std::shared_ptr<ByteBudget> budget = {};  // of the disk, maybe shared; null: without a cap
  bool try_direct = true;                   // tier=disk: past the page cache where the file system can
  DiskReader reader = DiskReader::kUring;
  PageReaderOptions reading = {};
};

// Whole pages of 4 KiB that hold at least one row.
std::size_t page_bytes_for(std::size_t row_bytes);
inline int rows_per_page(std::size_t row_bytes) { return static_cast<int>(page_bytes_for(row_bytes) / row_bytes); }

class FileTier : public RowTier {
 public:
  static Result<std::unique_ptr<FileTier>> create(std::vector<LayerRowShape> layers, std::shared_ptr<Arena> fast,
                                                  const FileTierOptions& options);
  // A kept file, for reading only: append is kUsage.
  static Result<std::unique_ptr<FileTier>> open_kept(const std::string& path, std::shared_ptr<Arena> fast,
                                                     const FileTierOptions& options);

  Status append(int layer, std::span<const std::span<const std::byte>> rows_by_head) override;
  Result<std::unique_ptr<PendingReads>> begin_read(int layer, std::span<const RowRead> reads) override;
  bool lends() const override { return options_.tier == Tier::kMmap; }
  Result<LentRows> lend(int layer, int kv_head, std::span<const std::int32_t> rows, const std::byte** where) const override;
  std::unique_ptr<RowTier> fork() const override;
  int rows(int layer, int kv_head) const override { return head(layer, kv_head).rows; }
  TierBytes bytes() const override;
  MediumTraffic traffic() const override { return traffic_; }
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const override;
  Status keep() override;
  std::string medium() const override { return medium_; }
  std::vector<LayerRowShape> shapes() const;

  static TierBytes predict(std::span<const LayerRowShape> layers, const FileTierOptions& options, int rows);

 private:
  // Pages [first_page, first_page + pages) of a head, one behind the other in the file.
  struct Run {
    int first_page = 0;
    int pages = 0;
    std::uint64_t offset = 0;
    std::shared_ptr<PageRun> place = {};
    std::shared_ptr<Buffer> sums = {};      // [pages] uint32
    std::shared_ptr<PageMarks> marks = {};  // tier=mmap; shared by forks, as the pages are
  };
  struct Head {
    std::vector<Run> runs;
    std::shared_ptr<Buffer> tail;  // a page's worth of rows; null until the first row
    int rows = 0;
    int paged_rows = 0;  // those that lie in the file
  };
  struct Layer {
    LayerRowShape shape;
    std::size_t page_bytes = 0;
    int page_rows = 0;
    std::vector<Head> heads;
  };
  struct StagedHead {
    Run run;  // pages == 0: no page becomes full
  };
  class JobReads;
  class Requests;
  static constexpr std::uint64_t kPage = RowFile::kUnit;

  FileTier(std::vector<LayerRowShape> layers, std::shared_ptr<Arena> fast, const FileTierOptions& options);
  const Head& head(int layer, int kv_head) const {
    return layers_[static_cast<std::size_t>(layer)].heads[static_cast<std::size_t>(kv_head)];
  }
  Status open_reader();
  std::shared_ptr<PageMarks> marks_for(int pages) const;
  Status own_tail(const Layer& layer, Head& head);
  Result<StagedHead> stage(const Layer& layer, Head& head, std::span<const std::byte> rows);
  Status write_run(const Layer& layer, const Head& head, const Run& run, std::span<const std::byte> rows);
  void commit(const Layer& layer, Head& head, StagedHead staged, std::span<const std::byte> rows);
  static const Run& run_of(const Head& head, int page);
  std::shared_ptr<ReadJob> job_for(int layer) const;
  std::shared_ptr<ReadJob> plan(int layer, std::span<const RowRead> reads) const;
  std::string index() const;
  Status read_index(const std::string& index);

  std::vector<Layer> layers_;
  std::shared_ptr<Arena> fast_;
  FileTierOptions options_;
  std::shared_ptr<RowFile> file_;
  std::shared_ptr<PageReader> reader_;  // after file_: goes first. Forks share it.
  MediumTraffic traffic_;
  std::string medium_;
  bool closed_ = false;  // kept: takes no more rows
};

}  // namespace kvartet
