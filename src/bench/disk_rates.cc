#include "bench/disk_rates.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/bytes_text.h"
#include "core/counted.h"
#include "core/rng.h"
#include "offload/page_buffer.h"
#include "offload/page_reader.h"

namespace kvartet {
namespace {

constexpr std::uint64_t kPage = RandomAccessFile::kDirectAlignment;
constexpr std::uint64_t kStretch = 128 * 1024;  // of the reads in order, and of what is written at once
constexpr std::uint64_t kLeastBytes = std::uint64_t{16} << 20;
constexpr int kBatch = 128;

DiskRate rate_of(std::vector<double> rounds) {
  std::sort(rounds.begin(), rounds.end());
  const double median = rounds[rounds.size() / 2];
  return {median, median > 0 ? (rounds.back() - rounds.front()) / 2 / median : 0};
}

class DiskMeter {
 public:
  explicit DiskMeter(const DiskRequest& request) : request_(request), arena_(Arena::create()) {}

  Result<DiskRates> run() {
    KV_TRY(write_file());
    KV_TRY(open_readers());
    DiskRates rates;
    rates.direct = file_->direct();
    rates.medium = fmt::format("{}, {} the page cache", reader_name_, rates.direct ? "past" : "through");
    std::vector<double> random;
    std::vector<double> in_order;
    for (int round = 0; round < request_.rounds; ++round) {
      KV_ASSIGN(const double reads, random_round(round));
      random.push_back(reads);
      KV_ASSIGN(const double bytes, round_in_order());
      in_order.push_back(bytes);
    }
    rates.directory = request_.directory;
    rates.reads_per_s = rate_of(random);
    rates.bytes_per_s = rate_of(in_order);
    return rates;
  }

 private:
  std::uint64_t pages() const { return bytes_ / kPage; }

  Status check_cancelled() const {
    if (request_.cancel == nullptr || !request_.cancel->load()) return {};
    return cancelled("interrupted before the disk was measured");
  }

  Status write_file() {
    KV_ASSIGN(const std::uint64_t free, request_.files->free_bytes(request_.directory));
    bytes_ = std::min(request_.file_bytes, free / 4) / kStretch * kStretch;
    if (bytes_ < std::min(kLeastBytes, request_.file_bytes)) {
      return exhausted(fmt::format("{} has {} free, too little to measure its disk; name another folder with --tier-dir",
                                   request_.directory, bytes_text(free)));
    }
    const std::string path = fmt::format("{}/kvartet-calibrate-{}.rows", request_.directory, ::getpid());
    KV_ASSIGN(file_, request_.files->open_random(path, {.create = true, .nameless = true, .try_direct = true}));
    KV_ASSIGN(const PageBuffer buffer, PageBuffer::create(*arena_, kStretch));
    const Rng rng(31);
    sums_.reserve(pages());
    for (std::uint64_t at = 0; at < bytes_; at += kStretch) {
      KV_TRY(check_cancelled());
      // Bytes that no drive can compress away.
      for (std::size_t i = 0; i < kStretch; i += sizeof(std::uint64_t)) {
        const std::uint64_t word = rng.at((at + i) / sizeof(std::uint64_t));
        std::memcpy(buffer.bytes().data() + i, &word, sizeof(word));
      }
      for (std::uint64_t p = 0; p < kStretch; p += kPage) sums_.push_back(page_checksum(buffer.bytes().subspan(p, kPage)));
      KV_TRY(file_->write_at(at, buffer.bytes()));
    }
    return file_->sync();
  }

  Status open_readers() {
    PageReaderOptions options;
    options.extent_bytes = kStretch;
    options.queue_depth = kBatch;
    Result<std::unique_ptr<PageReader>> uring = make_uring_reader(*file_, *arena_, options);
    if (uring.ok()) {
      reader_ = std::move(*uring);
      reader_name_ = "io_uring";
      return {};
    }
    if (uring.status().code() != Code::kIo) return uring.status();
    KV_ASSIGN(reader_, make_pread_reader(*file_, *arena_, options));
    reader_name_ = fmt::format("pread on {}", counted(options.threads, "thread"));
    return {};
  }

  // Reads the extents [offset, offset + bytes) and waits for all of them; their pages are checked, and a word of each is kept.
  Status read(std::span<const std::uint64_t> offsets, std::uint64_t bytes) {
    auto job = std::make_shared<ReadJob>();
    job->page_bytes = kPage;
    job->row_bytes = sizeof(std::uint64_t);
    job->path = "the calibration's file";
    job->place = "calibration";
    words_.resize(offsets.size());
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      job->extents.push_back({.offset = offsets[i],
                              .bytes = static_cast<std::uint32_t>(bytes),
                              .first_piece = static_cast<std::uint32_t>(i),
                              .pieces = 1,
                              .first_sum = static_cast<std::uint32_t>(job->sums.size())});
      job->pieces.push_back({.at = 0, .out = reinterpret_cast<std::byte*>(&words_[i])});
      for (std::uint64_t p = 0; p < bytes / kPage; ++p) job->sums.push_back(sums_[offsets[i] / kPage + p]);
    }
    reader_->start(job);
    return reader_->wait(*job);
  }

  Result<double> random_round(int round) {
    Rng rng(33, static_cast<std::uint64_t>(round));
    std::vector<std::uint64_t> offsets(kBatch);
    const double begin = request_.clock->seconds();
    double seconds = 0;
    std::int64_t done = 0;
    do {
      KV_TRY(check_cancelled());
      for (std::uint64_t& offset : offsets) offset = kPage * rng.below(pages());
      KV_TRY(read(offsets, kPage));
      done += kBatch;
      seconds = request_.clock->seconds() - begin;
    } while (seconds < request_.seconds && done < (1 << 16));
    return static_cast<double>(done) / std::max(seconds, 1e-9);
  }

  Result<double> round_in_order() {
    std::vector<std::uint64_t> offsets;
    const double begin = request_.clock->seconds();
    std::uint64_t at = 0;
    double seconds = 0;
    while (at < bytes_ && seconds < 2 * request_.seconds) {
      KV_TRY(check_cancelled());
      offsets.clear();
      for (int i = 0; i < kBatch && at < bytes_; ++i, at += kStretch) offsets.push_back(at);
      KV_TRY(read(offsets, kStretch));
      seconds = request_.clock->seconds() - begin;
    }
    return static_cast<double>(at) / std::max(seconds, 1e-9);
  }

  const DiskRequest& request_;
  std::shared_ptr<Arena> arena_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint32_t> sums_;  // one per page
  std::vector<std::uint64_t> words_;
  std::unique_ptr<RandomAccessFile> file_;
  std::unique_ptr<PageReader> reader_;  // goes before the file
  std::string reader_name_;
};

}  // namespace

Result<DiskRates> measure_disk(const DiskRequest& request) {
  DiskRequest placed = request;
  KV_ASSIGN(placed.directory, folder_or_temporary(request.directory));
  return DiskMeter(placed).run();
}

}  // namespace kvartet
