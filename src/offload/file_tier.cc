#include "offload/file_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvartet {
namespace {

constexpr std::size_t kWriteBytes = 131072;
constexpr std::size_t kUnit = RowFile::kUnit;
// As much is read along between two pages rather than with another request, which costs as much as four or five pages.
constexpr std::size_t kBetweenBytes = 3 * kUnit;

std::span<const std::uint32_t> sums_of(const Buffer& buffer) {
  return {reinterpret_cast<const std::uint32_t*>(buffer.data()), buffer.size() / sizeof(std::uint32_t)};
}

std::size_t largest_page(std::span<const LayerRowShape> layers) {
  std::size_t bytes = kUnit;
  for (const LayerRowShape& layer : layers) bytes = std::max(bytes, page_bytes_for(layer.row_bytes));
  return bytes;
}

PageReaderOptions reading_of(const FileTierOptions& options, std::span<const LayerRowShape> layers) {
  PageReaderOptions reading = options.reading;
  reading.extent_bytes = std::max(reading.extent_bytes / kUnit * kUnit, largest_page(layers));
  return reading;
}

std::size_t write_buffer_bytes(std::span<const LayerRowShape> layers) { return std::max(kWriteBytes, largest_page(layers)); }

std::string place_of(int layer) { return fmt::format("layer {}", layer); }

}  // namespace

std::size_t page_bytes_for(std::size_t row_bytes) { return (row_bytes + kUnit - 1) / kUnit * kUnit; }

class FileTier::JobReads : public PendingReads {
 public:
  JobReads(std::shared_ptr<RowFile> file, std::shared_ptr<PageReader> reader, std::shared_ptr<ReadJob> job)
      : file_(std::move(file)), reader_(std::move(reader)), job_(std::move(job)) {}
  ~JobReads() override { static_cast<void>(reader_->wait(*job_).ok()); }
  Status wait() override { return reader_->wait(*job_); }

 private:
  std::shared_ptr<RowFile> file_;  // what is read outlives the tier if need be
  std::shared_ptr<PageReader> reader_;
  std::shared_ptr<ReadJob> job_;
};

FileTier::FileTier(std::vector<LayerRowShape> layers, std::shared_ptr<Arena> fast, const FileTierOptions& options)
    : fast_(std::move(fast)), options_(options) {
  options_.reading = reading_of(options, layers);
  for (const LayerRowShape& shape : layers) {
    layers_.push_back({shape, page_bytes_for(shape.row_bytes), rows_per_page(shape.row_bytes),
                       std::vector<Head>(static_cast<std::size_t>(shape.kv_heads))});
  }
}

namespace {

RowFileOptions file_options(const FileTierOptions& options) {
  return {.fs = options.fs == nullptr ? &FileSystem::real() : options.fs,
          .directory = options.directory,
          .keep_as = options.keep_as,
          .budget = options.budget == nullptr ? std::make_shared<ByteBudget>() : options.budget,
          .try_direct = options.try_direct && options.tier == Tier::kDisk};
}

}  // namespace

Result<std::unique_ptr<FileTier>> FileTier::create(std::vector<LayerRowShape> layers, std::shared_ptr<Arena> fast,
                                                   const FileTierOptions& options) {
  std::unique_ptr<FileTier> tier(new FileTier(std::move(layers), std::move(fast), options));
  KV_ASSIGN(tier->file_, RowFile::create(file_options(options)));
  KV_TRY(tier->open_reader());
  return tier;
}

Result<std::unique_ptr<FileTier>> FileTier::open_kept(const std::string& path, std::shared_ptr<Arena> fast,
                                                      const FileTierOptions& options) {
  std::unique_ptr<FileTier> tier(new FileTier({}, std::move(fast), options));
  std::string index;
  KV_ASSIGN(tier->file_, RowFile::open(file_options(options), path, &index));
  KV_TRY(tier->read_index(index));
  tier->options_.reading = reading_of(options, tier->shapes());
  KV_TRY(tier->open_reader());
  return tier;
}

std::unique_ptr<RowTier> FileTier::fork() const {
  std::unique_ptr<FileTier> other(new FileTier({}, fast_, options_));
  other->options_.reading = options_.reading;
  other->layers_ = layers_;
  other->file_ = file_;
  other->reader_ = reader_;
  other->medium_ = medium_;
  other->closed_ = closed_;
  return other;
}

std::vector<LayerRowShape> FileTier::shapes() const {
  std::vector<LayerRowShape> shapes;
  for (const Layer& layer : layers_) shapes.push_back(layer.shape);
  return shapes;
}

// What reads the file is decided here, and said in medium(): a slower way is never taken silently.
Status FileTier::open_reader() {
  if (options_.tier == Tier::kMmap) {
    KV_ASSIGN(reader_, make_mmap_reader(file_->file()));
    medium_ = "memory map";
    return {};
  }
  const char* cache = file_->file().direct() ? "past the page cache" : "through the page cache";
  std::string refused;
  if (options_.reader == DiskReader::kUring) {
    auto uring = make_uring_reader(file_->file(), *fast_, options_.reading);
    if (uring.ok()) {
      reader_ = std::move(uring).value();
      medium_ = fmt::format("io_uring, {}", cache);
      return {};
    }
    if (uring.status().code() != Code::kIo) return std::move(uring).status();
    refused = fmt::format(" (no io_uring: {})", uring.status().message());
  }
  KV_ASSIGN(reader_, make_pread_reader(file_->file(), *fast_, options_.reading));
  medium_ = fmt::format("pread on {} threads{}, {}", options_.reading.threads, refused, cache);
  return {};
}

std::shared_ptr<PageMarks> FileTier::marks_for(int pages) const {
  return options_.tier == Tier::kMmap ? std::make_shared<PageMarks>(static_cast<std::size_t>(pages)) : nullptr;
}

// A tail that is there and that no fork shares.
Status FileTier::own_tail(const Layer& layer, Head& head) {
  if (head.tail != nullptr && head.tail.use_count() == 1) return {};
  KV_ASSIGN(Buffer tail, fast_->allocate(layer.page_bytes));
  if (head.tail != nullptr) std::memcpy(tail.data(), head.tail->data(), tail.size());
  head.tail = std::make_shared<Buffer>(std::move(tail));
  return {};
}

Result<FileTier::StagedHead> FileTier::stage(const Layer& layer, Head& head, std::span<const std::byte> rows) {
  StagedHead staged;
  if (rows.empty()) return staged;
  KV_TRY(own_tail(layer, head));
  const int in_tail = head.rows - head.paged_rows;
  const int total = in_tail + static_cast<int>(rows.size() / layer.shape.row_bytes);
  const int pages = total / layer.page_rows;
  if (pages == 0) return staged;
  staged.run.first_page = head.paged_rows / layer.page_rows;
  staged.run.pages = pages;
  KV_ASSIGN(Buffer sums, fast_->allocate(static_cast<std::size_t>(pages) * sizeof(std::uint32_t)));
  staged.run.sums = std::make_shared<Buffer>(std::move(sums));
  KV_ASSIGN(staged.run.place, file_->allocate(static_cast<std::size_t>(pages) * layer.page_bytes));
  staged.run.offset = staged.run.place->offset();
  staged.run.marks = marks_for(pages);
  KV_TRY(write_run(layer, head, staged.run, rows));
  return staged;
}

// The run's pages, first from the tail, then from `rows`; as few writes as the buffer allows.
Status FileTier::write_run(const Layer& layer, const Head& head, const Run& run, std::span<const std::byte> rows) {
  KV_ASSIGN(const PageBuffer buffer, PageBuffer::create(*fast_, write_buffer_bytes(shapes())));
  const std::size_t used = static_cast<std::size_t>(layer.page_rows) * layer.shape.row_bytes;
  std::span<const std::byte> tail;
  if (head.tail != nullptr)
    tail = head.tail->bytes().first(static_cast<std::size_t>(head.rows - head.paged_rows) * layer.shape.row_bytes);
  auto* sums = reinterpret_cast<std::uint32_t*>(run.sums->data());
  const std::size_t pages_at_once = buffer.bytes().size() / layer.page_bytes;
  for (std::size_t first = 0; first < static_cast<std::size_t>(run.pages); first += pages_at_once) {
    const std::size_t count = std::min(pages_at_once, static_cast<std::size_t>(run.pages) - first);
    const std::span<std::byte> batch = buffer.bytes().first(count * layer.page_bytes);
    for (std::size_t i = 0; i < count; ++i) {
      const std::span<std::byte> page = batch.subspan(i * layer.page_bytes, layer.page_bytes);
      const std::size_t from_tail = std::min(tail.size(), used);
      const std::size_t from_rows = std::min(rows.size(), used - from_tail);
      if (from_tail != 0) std::memcpy(page.data(), tail.data(), from_tail);
      if (from_rows != 0) std::memcpy(page.data() + from_tail, rows.data(), from_rows);
      const std::size_t filled = from_tail + from_rows;
      std::memset(page.data() + filled, 0, page.size() - filled);
      tail = tail.subspan(from_tail);
      rows = rows.subspan(from_rows);
      sums[first + i] = page_checksum(page);
    }
    KV_TRY(file_->write(run.offset + first * layer.page_bytes, batch));
    traffic_.bytes_written += batch.size();
  }
  return {};
}

void FileTier::commit(const Layer& layer, Head& head, StagedHead staged, std::span<const std::byte> rows) {
  if (rows.empty()) return;
  const std::size_t row_bytes = layer.shape.row_bytes;
  const auto in_tail = static_cast<std::size_t>(head.rows - head.paged_rows);
  head.rows += static_cast<int>(rows.size() / row_bytes);
  if (staged.run.pages == 0) {
    std::memcpy(head.tail->data() + in_tail * row_bytes, rows.data(), rows.size());
    return;
  }
  head.paged_rows += staged.run.pages * layer.page_rows;
  head.runs.push_back(std::move(staged.run));
  const std::size_t left = static_cast<std::size_t>(head.rows - head.paged_rows) * row_bytes;
  if (left != 0) std::memcpy(head.tail->data(), rows.data() + rows.size() - left, left);
}

Status FileTier::append(int layer_index, std::span<const std::span<const std::byte>> rows_by_head) {
  if (closed_) return usage_error(fmt::format("'{}' is a kept file of rows and takes no more of them", file_->path()));
  Layer& layer = layers_[static_cast<std::size_t>(layer_index)];
  std::vector<StagedHead> staged;
  for (std::size_t h = 0; h < rows_by_head.size(); ++h) {
    KV_ASSIGN(StagedHead head, stage(layer, layer.heads[h], rows_by_head[h]));
    staged.push_back(std::move(head));
  }
  for (std::size_t h = 0; h < rows_by_head.size(); ++h) commit(layer, layer.heads[h], std::move(staged[h]), rows_by_head[h]);
  return {};
}

const FileTier::Run& FileTier::run_of(const Head& head, int page) {
  const auto after = std::upper_bound(head.runs.begin(), head.runs.end(), page,
                                      [](int p, const Run& candidate) { return p < candidate.first_page; });
  return *std::prev(after);
}

std::shared_ptr<ReadJob> FileTier::job_for(int layer) const {
  auto job = std::make_shared<ReadJob>();
  job->page_bytes = layers_[static_cast<std::size_t>(layer)].page_bytes;
  job->row_bytes = layers_[static_cast<std::size_t>(layer)].shape.row_bytes;
  job->path = file_->path();
  job->place = place_of(layer);
  return job;
}

// A layer's rows as requests: which pages to read, near ones together, and where in them the rows are.
class FileTier::Requests {
 public:
  // No request takes more than `longest` bytes.
  Requests(const Layer& layer, std::size_t longest, ReadJob* job) : layer_(layer), longest_(longest), job_(*job) {}

  // A row that lies in the file. Neighbours of one page are read once.
  void add(const Head& head, const RowRead& read) {
    const int page = read.row / layer_.page_rows;
    find_run(head, page);
    const auto in_run = static_cast<std::size_t>(page - run_->first_page);
    const std::uint64_t offset = run_->offset + in_run * layer_.page_bytes;
    if (offset != last_page_) add_page(in_run, offset);
    PageExtent& extent = job_.extents.back();
    const std::size_t at =
        offset - extent.offset + static_cast<std::size_t>(read.row % layer_.page_rows) * layer_.shape.row_bytes;
    job_.pieces.push_back({static_cast<std::uint32_t>(at), read.out});
    ++extent.pieces;
  }

 private:
  void find_run(const Head& head, int page) {
    if (head_ == &head && page >= run_->first_page && page < run_->first_page + run_->pages) return;
    run_ = &run_of(head, page);
    head_ = &head;
  }

  void add_page(std::size_t in_run, std::uint64_t offset) {
    std::size_t pages = growth(offset);
    if (pages == 0) {
      job_.extents.push_back(
          {offset, 0, static_cast<std::uint32_t>(job_.pieces.size()), 0, static_cast<std::uint32_t>(job_.sums.size())});
      pages = 1;
    }
    job_.extents.back().bytes += static_cast<std::uint32_t>(pages * layer_.page_bytes);
    for (std::size_t i = in_run + 1 - pages; i <= in_run; ++i) job_.sums.push_back(sums_of(*run_->sums)[i]);
    if (run_->marks != nullptr) job_.marks.push_back({run_->marks.get(), static_cast<std::uint32_t>(in_run)});
    last_page_ = offset;
    last_run_ = run_;
  }

  // By how many pages the last request grows to hold the one at `offset`; 0: that one takes another request.
  std::size_t growth(std::uint64_t offset) const {
    if (job_.extents.empty()) return 0;
    const PageExtent& last = job_.extents.back();
    const std::uint64_t end = last.offset + last.bytes;
    const bool near = offset == end || (run_ == last_run_ && offset > end && offset - end <= kBetweenBytes);
    if (!near || last.bytes + (offset - end) + layer_.page_bytes > longest_) return 0;
    return (offset - end) / layer_.page_bytes + 1;
  }

  const Layer& layer_;
  std::size_t longest_;
  ReadJob& job_;
  const Head* head_ = nullptr;
  const Run* run_ = nullptr;
  const Run* last_run_ = nullptr;  // of last_page_
  std::uint64_t last_page_ = 0;    // offset of the page read last; 0 is never one
};

// Rows of a tail are copied at once.
std::shared_ptr<ReadJob> FileTier::plan(int layer_index, std::span<const RowRead> reads) const {
  const Layer& layer = layers_[static_cast<std::size_t>(layer_index)];
  const std::size_t row_bytes = layer.shape.row_bytes;
  std::shared_ptr<ReadJob> job = job_for(layer_index);
  job->pieces.reserve(reads.size());
  job->extents.reserve(reads.size());
  job->sums.reserve(reads.size());
  if (options_.tier == Tier::kMmap) job->marks.reserve(reads.size());
  Requests requests(layer, options_.tier == Tier::kMmap ? layer.page_bytes : options_.reading.extent_bytes, job.get());
  for (const RowRead& read : reads) {
    const Head& head = layer.heads[static_cast<std::size_t>(read.kv_head)];
    if (read.row >= head.paged_rows) {
      std::memcpy(read.out, head.tail->data() + static_cast<std::size_t>(read.row - head.paged_rows) * row_bytes, row_bytes);
    } else {
      requests.add(head, read);
    }
  }
  return job;
}

Result<std::unique_ptr<PendingReads>> FileTier::begin_read(int layer, std::span<const RowRead> reads) {
  std::shared_ptr<ReadJob> job = plan(layer, reads);
  traffic_.reads += job->extents.size();
  traffic_.bytes_read += job->bytes();
  if (!job->extents.empty()) reader_->start(job);
  return std::unique_ptr<PendingReads>(std::make_unique<JobReads>(file_, reader_, std::move(job)));
}

// Pages that nobody has checked yet are checked first.
Result<LentRows> FileTier::lend(int layer_index, int kv_head, std::span<const std::int32_t> rows, const std::byte** where) const {
  if (!lends()) return LentRows{};
  const Layer& layer = layers_[static_cast<std::size_t>(layer_index)];
  const Head& from = head(layer_index, kv_head);
  const std::size_t row_bytes = layer.shape.row_bytes;
  LentRows lent{.lent = true, .traffic = {.reads = rows.size(), .bytes_read = rows.size() * row_bytes}};
  KV_ASSIGN(lent.mapped, reader_->mapped());
  std::shared_ptr<ReadJob> unchecked;
  std::uint64_t end = 0;
  const Run* run = nullptr;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= from.paged_rows) {
      where[i] = from.tail->data() + static_cast<std::size_t>(rows[i] - from.paged_rows) * row_bytes;
      continue;
    }
    const int page = rows[i] / layer.page_rows;
    if (run == nullptr || page >= run->first_page + run->pages) run = &run_of(from, page);
    const auto in_run = static_cast<std::size_t>(page - run->first_page);
    const std::uint64_t offset = run->offset + in_run * layer.page_bytes;
    where[i] = lent.mapped.data() + offset + static_cast<std::size_t>(rows[i] % layer.page_rows) * row_bytes;
    end = std::max(end, offset + layer.page_bytes);
    if (run->marks->has(in_run)) continue;
    if (unchecked == nullptr) unchecked = job_for(layer_index);
    if (!unchecked->extents.empty() && unchecked->extents.back().offset == offset) continue;
    unchecked->extents.push_back({.offset = offset,
                                  .bytes = static_cast<std::uint32_t>(layer.page_bytes),
                                  .first_sum = static_cast<std::uint32_t>(unchecked->sums.size())});
    unchecked->sums.push_back(sums_of(*run->sums)[in_run]);
    unchecked->marks.push_back({run->marks.get(), static_cast<std::uint32_t>(in_run)});
  }
  if (end > lent.mapped.size()) return cut_short(file_->path(), lent.mapped.size(), end).within(place_of(layer_index));
  if (unchecked != nullptr) {
    KV_TRY(reader_->check(*unchecked).within(unchecked->place));
    lent.traffic.bytes_read += unchecked->bytes();
  }
  return lent;
}

TierBytes FileTier::bytes() const {
  TierBytes total;
  total.slow.allocated += kUnit;  // the header
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      total.slow.live += static_cast<std::size_t>(head.paged_rows) * layer.shape.row_bytes;
      total.fast.live += static_cast<std::size_t>(head.rows - head.paged_rows) * layer.shape.row_bytes;
      if (head.tail != nullptr) total.fast.allocated += head.tail->size();
      for (const Run& run : head.runs) {
        total.slow.allocated += static_cast<std::size_t>(run.pages) * layer.page_bytes;
        total.fast.allocated += run.sums->size();
      }
    }
  }
  if (reader_ != nullptr) total.fast.allocated += reader_->allocated_bytes();
  return total;
}

TierBytes FileTier::predict(std::span<const LayerRowShape> layers, const FileTierOptions& options, int rows) {
  TierBytes total;
  total.slow.allocated = kUnit;
  for (const LayerRowShape& shape : layers) {
    const auto heads = static_cast<std::size_t>(shape.kv_heads);
    const auto pages = static_cast<std::size_t>(rows / rows_per_page(shape.row_bytes));
    const auto in_tail = static_cast<std::size_t>(rows % rows_per_page(shape.row_bytes));
    const std::size_t page_bytes = page_bytes_for(shape.row_bytes);
    total.slow.live += heads * (static_cast<std::size_t>(rows) - in_tail) * shape.row_bytes;
    total.slow.allocated += heads * pages * page_bytes;
    total.fast.live += heads * in_tail * shape.row_bytes;
    total.fast.allocated += heads * ((rows > 0 ? page_bytes : 0) + pages * sizeof(std::uint32_t));
  }
  if (options.tier == Tier::kDisk) {
    const PageReaderOptions reading = reading_of(options, layers);
    const int slots = options.reader == DiskReader::kUring ? reading.queue_depth : reading.threads;
    total.fast.allocated += PageBuffer::allocation(reading.extent_bytes * static_cast<std::size_t>(slots));
  }
  return total;
}

void FileTier::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  out->push_back({.name = prefix + "row file header", .tier = options_.tier, .bytes = {0, kUnit}});
  const auto memory = [&](std::string name, ByteAccount bytes, const std::byte* data) {
    out->push_back({.name = std::move(name), .tier = Tier::kRam, .bytes = bytes, .data = data});
  };
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    for (std::size_t h = 0; h < layer.heads.size(); ++h) {
      const Head& head = layer.heads[h];
      const std::string place = fmt::format("{}layer {} head {} slow rows", prefix, l, h);
      for (std::size_t r = 0; r < head.runs.size(); ++r) {
        const Run& run = head.runs[r];
        const int rows = std::min(run.pages * layer.page_rows, head.paged_rows - run.first_page * layer.page_rows);
        out->push_back({.name = fmt::format("{} run {}", place, r),
                        .tier = options_.tier,
                        .bytes = {static_cast<std::size_t>(rows) * layer.shape.row_bytes,
                                  static_cast<std::size_t>(run.pages) * layer.page_bytes}});
        memory(fmt::format("{} run {} checksums", place, r), {0, run.sums->size()}, run.sums->data());
      }
      if (head.tail == nullptr) continue;
      const std::size_t live = static_cast<std::size_t>(head.rows - head.paged_rows) * layer.shape.row_bytes;
      memory(place + " unfinished page", {live, head.tail->size()}, head.tail->data());
    }
  }
  if (reader_ != nullptr && reader_->allocated_bytes() != 0) {
    memory(prefix + "row file read buffers", {0, reader_->allocated_bytes()}, nullptr);
  }
}

}  // namespace kvartet
