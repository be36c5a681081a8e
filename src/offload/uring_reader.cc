// io_uring: one thread submits, waits, checks and copies, so that the reads go on while others compute.
#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "offload/page_buffer.h"
#include "offload/page_reader.h"

namespace kvartet {
namespace {

class UringReader : public PageReader {
 public:
  UringReader(RandomAccessFile& file, PageBuffer memory, const PageReaderOptions& options)
      : file_(file), memory_(std::move(memory)), slot_bytes_(options.extent_bytes) {
    slots_.resize(static_cast<std::size_t>(options.queue_depth));
    for (std::size_t i = slots_.size(); i > 0; --i) free_.push_back(i - 1);
  }

  // Apart from the constructor because the system may refuse.
  Status open() {
    const int result = io_uring_queue_init(static_cast<unsigned>(slots_.size()), &ring_, 0);
    if (result < 0) return io_error(std::generic_category().message(-result));
    opened_ = true;
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      return exhausted(fmt::format("cannot start a thread that reads: {}", error.what()));
    }
    return {};
  }

  ~UringReader() override {
    if (!opened_) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_one();
    if (thread_.joinable()) thread_.join();
    io_uring_queue_exit(&ring_);
  }

  void start(std::shared_ptr<ReadJob> job) override {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(job), 0});
    }
    work_.notify_one();
  }

  std::size_t allocated_bytes() const override { return memory_.allocated(); }

 private:
  struct Request {
    std::shared_ptr<ReadJob> job;
    std::size_t extent = 0;
  };
  struct Slot {
    Request request;
    std::byte* data = nullptr;
  };

  void run() {
    while (true) {
      if (!take_work()) return;
      if (free_.size() == slots_.size()) continue;  // all was refused
      submit();
      io_uring_cqe* done = nullptr;
      while (io_uring_peek_cqe(&ring_, &done) == 0) {
        const auto slot = static_cast<std::size_t>(io_uring_cqe_get_data64(done));
        const std::int64_t got = done->res;
        io_uring_cqe_seen(&ring_, done);
        complete(slot, got);
      }
    }
  }

  // Waits until a read is complete, or gives up what the system will never take.
  void submit() {
    const int result = refused_ == 0 ? io_uring_submit_and_wait(&ring_, 1) : refused_;
    if (result >= 0) {
      unsubmitted_.erase(unsubmitted_.begin(), unsubmitted_.begin() + std::min<std::ptrdiff_t>(result, std::ssize(unsubmitted_)));
      return;
    }
    if (result == -EINTR) return;
    if (result != -EAGAIN && result != -EBUSY) refuse(result);
    // Completions still come for what was submitted: a thread that sleeps in the system receives them.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  // Entries stay in the ring, so it must not be submitted again: their slots are used by others by then.
  void refuse(int error) {
    refused_ = error;
    for (const std::size_t slot : unsubmitted_) complete(slot, error);
    unsubmitted_.clear();
  }

  // Fills free slots with requests. With none under way it sleeps until there are some, or until it is time to stop.
  // False: time to stop.
  bool take_work() {
    std::unique_lock lock(mutex_);
    if (free_.size() == slots_.size()) work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    while (!free_.empty() && !jobs_.empty()) {
      Request& next = jobs_.front();
      Request request = {next.job, next.extent};
      if (++next.extent == request.job->extents.size()) jobs_.pop_front();
      if (refused_ == 0) {
        prepare(std::move(request));
      } else {
        request.job->finish_extent(request.extent,
                                   file_.finish_read(request.job->extents[request.extent].offset, 1, refused_).status());
      }
    }
    return !stopping_ || free_.size() != slots_.size();
  }

  void prepare(Request request) {
    const std::size_t slot = free_.back();
    free_.pop_back();
    const PageExtent& extent = request.job->extents[request.extent];
    std::byte* data = memory_.bytes().data() + slot * slot_bytes_;
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // there is one: as many as slots
    io_uring_prep_read(entry, file_.descriptor(), data, extent.bytes, extent.offset);
    io_uring_sqe_set_data64(entry, slot);
    slots_[slot] = {std::move(request), data};
    unsubmitted_.push_back(slot);
  }

  void complete(std::size_t index, std::int64_t got) {
    Slot slot = std::move(slots_[index]);
    const PageExtent& extent = slot.request.job->extents[slot.request.extent];
    const std::span<std::byte> data(slot.data, extent.bytes);
    Status status = read_rest(extent, data, got);
    if (status.ok()) status = slot.request.job->deliver(slot.request.extent, data);
    free_.push_back(index);
    slot.request.job->finish_extent(slot.request.extent, std::move(status));
  }

  // A read that came back short or interrupted is finished in the plain way, from a border that direct files accept.
  Status read_rest(const PageExtent& extent, std::span<std::byte> data, std::int64_t got) {
    std::size_t good = 0;
    if (got != -EINTR && got != -EAGAIN) {
      KV_ASSIGN(good, file_.finish_read(extent.offset, data.size(), got));
    }
    if (good == data.size()) return {};
    good = good / RandomAccessFile::kDirectAlignment * RandomAccessFile::kDirectAlignment;
    return file_.read_at(extent.offset + good, data.subspan(good));
  }

  RandomAccessFile& file_;
  PageBuffer memory_;
  std::size_t slot_bytes_;
  std::vector<Slot> slots_;               // of the thread
  std::vector<std::size_t> free_;         // of the thread
  std::vector<std::size_t> unsubmitted_;  // of the thread: slots in the ring that the system has not taken yet, in order
  int refused_ = 0;                       // of the thread: why the system takes nothing any more, -errno
  io_uring ring_{};
  bool opened_ = false;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Request> jobs_;  // with the next extent to read
  bool stopping_ = false;
};

}  // namespace

Result<std::unique_ptr<PageReader>> make_uring_reader(RandomAccessFile& file, Arena& arena, const PageReaderOptions& options) {
  if (file.descriptor() < 0) return io_error("the file has no descriptor");
  KV_ASSIGN(PageBuffer memory, PageBuffer::create(arena, options.extent_bytes * static_cast<std::size_t>(options.queue_depth)));
  auto reader = std::make_unique<UringReader>(file, std::move(memory), options);
  KV_TRY(reader->open());
  return std::unique_ptr<PageReader>(std::move(reader));
}

}  // namespace kvartet
