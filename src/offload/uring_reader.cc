// io_uring without a thread of its own: who starts a job gives its requests to the system at once, and whoever waits collects
// what is complete, checks it and copies rows out. A hop to another thread and back would cost two wake-ups per layer.
#include <fmt/format.h>
#include <liburing.h>
#include <linux/mman.h>  // MADV_COLLAPSE
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "offload/page_buffer.h"
#include "offload/page_reader.h"

namespace kvartet {
namespace {

// Asks for huge pages: where the slots lie in one piece of memory, a request of several pages is one piece for the disk, not one
// per page, and takes a third less time. Where the system has none to give, reads are as right as before.
void in_one_piece([[maybe_unused]] std::span<std::byte> memory) {
#ifdef MADV_COLLAPSE
  constexpr std::uintptr_t kHuge = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  for (std::uintptr_t at = begin / kHuge * kHuge; at < end; at += kHuge) {
    const bool mostly_ours = std::min(at + kHuge, end) - std::max(at, begin) > kHuge / 2;
    if (mostly_ours) static_cast<void>(::madvise(reinterpret_cast<void*>(at), kHuge, MADV_COLLAPSE));
  }
#endif
}

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
    in_one_piece(memory_.bytes());
    return {};
  }

  ~UringReader() override {
    if (!opened_) return;
    std::unique_lock lock(mutex_);
    // Only jobs that nobody waited for are left; the system must not write to buffers that are gone.
    while (free_.size() != slots_.size() || !queue_.empty()) work(lock);
    io_uring_queue_exit(&ring_);
  }

  void start(std::shared_ptr<ReadJob> job) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(job), 0});
    feed();
  }

  Status wait(ReadJob& job) override {
    std::unique_lock lock(mutex_);
    while (!job.done()) work(lock);
    lock.unlock();
    return job.wait();
  }

  std::size_t allocated_bytes() const override { return memory_.allocated(); }

 private:
  static constexpr std::chrono::milliseconds kLookOn{2};
  static constexpr std::size_t kSubmitted = 4;  // at once: the disk begins while the next ones are still being submitted
  static constexpr std::size_t kDelivered = 8;  // at once: what is left is for the other threads that wait

  struct Request {
    std::shared_ptr<ReadJob> job;
    std::size_t extent = 0;
  };
  struct Slot {
    Request request;
    std::byte* data = nullptr;
    std::int64_t got = 0;  // as the system said it
  };

  // One of the things that bring jobs nearer to their end: deliver what has been read, or collect what is complete, or let
  // another thread that does so go on. Returns with the lock held.
  void work(std::unique_lock<std::mutex>& lock) {
    if (!read_.empty()) {
      deliver(lock);
    } else if (!collecting_ && under_way_ > 0) {
      collect(lock);
    } else if (under_way_ == 0 && !unsubmitted_.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the system took nothing: it is short of memory
      submit();
    } else {
      let_others(lock);
    }
  }

  // A thread that sleeps is woken late, and often on the core of the one that wakes it, where both then share: so it looks on
  // for about as long as a layer's reads take before it does.
  template <typename Ready>
  static void look_on(const Ready& ready) {
    const auto until = std::chrono::steady_clock::now() + kLookOn;
    while (!ready()) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > until) return;
    }
  }

  void let_others(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t seen = changes_.load();
    lock.unlock();
    look_on([&] { return changes_.load() != seen; });
    lock.lock();
    changed_.wait(lock, [&] { return changes_.load() != seen; });
  }

  void tell_others() {
    changes_.fetch_add(1);
    changed_.notify_all();
  }

  // Waits until a read is complete, or several. One thread at a time; meanwhile others may start more.
  void collect(std::unique_lock<std::mutex>& lock) {
    collecting_ = true;
    lock.unlock();
    look_on([&] { return io_uring_cq_ready(&ring_) != 0; });
    io_uring_cqe* first = nullptr;
    static_cast<void>(io_uring_wait_cqe(&ring_, &first));  // interrupted: the caller comes back
    lock.lock();
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring_, &done) == 0) {
      const auto slot = static_cast<std::size_t>(io_uring_cqe_get_data64(done));
      slots_[slot].got = done->res;
      io_uring_cqe_seen(&ring_, done);
      --under_way_;
      read_.push_back(slot);
    }
    collecting_ = false;
    if (!unsubmitted_.empty()) submit();
    tell_others();
  }

  // Takes a few of the slots that have been read: other threads that wait take others.
  void deliver(std::unique_lock<std::mutex>& lock) {
    std::array<std::size_t, kDelivered> mine{};
    const std::size_t count = std::min(kDelivered, read_.size());
    for (std::size_t i = 0; i < count; ++i) {
      mine[i] = read_.front();
      read_.pop_front();
    }
    lock.unlock();
    for (std::size_t i = 0; i < count; ++i) deliver(slots_[mine[i]]);
    lock.lock();
    for (std::size_t i = 0; i < count; ++i) free_.push_back(mine[i]);
    if (!queue_.empty()) feed();
    tell_others();
  }

  void deliver(Slot& slot) {
    const Request request = std::move(slot.request);
    const PageExtent& extent = request.job->extents[request.extent];
    const std::span<std::byte> data(slot.data, extent.bytes);
    Status status = read_rest(extent, data, slot.got);
    if (status.ok()) status = request.job->deliver(request.extent, data);
    request.job->finish_extent(request.extent, std::move(status));
  }

  // Fills free slots with requests and gives them to the system.
  void feed() {
    while (!free_.empty() && !queue_.empty()) {
      Request& next = queue_.front();
      Request request = {next.job, next.extent};
      if (++next.extent == request.job->extents.size()) queue_.pop_front();
      if (refused_ == 0) {
        prepare(std::move(request));
        if (unsubmitted_.size() == kSubmitted) submit();
      } else {
        request.job->finish_extent(request.extent,
                                   file_.finish_read(request.job->extents[request.extent].offset, 1, refused_).status());
      }
    }
    if (!unsubmitted_.empty()) submit();
  }

  void prepare(Request request) {
    const std::size_t slot = free_.back();
    free_.pop_back();
    const PageExtent& extent = request.job->extents[request.extent];
    std::byte* data = memory_.bytes().data() + slot * slot_bytes_;
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // there is one: as many as slots
    io_uring_prep_read(entry, file_.descriptor(), data, extent.bytes, extent.offset);
    io_uring_sqe_set_data64(entry, slot);
    slots_[slot] = {std::move(request), data, 0};
    unsubmitted_.push_back(slot);
  }

  // What the system does not take now, for want of memory, is offered again when a read is complete; what it will never take is
  // given up.
  void submit() {
    while (!unsubmitted_.empty()) {
      const int result = io_uring_submit(&ring_);
      if (result > 0) {
        const std::ptrdiff_t taken = std::min<std::ptrdiff_t>(result, std::ssize(unsubmitted_));
        unsubmitted_.erase(unsubmitted_.begin(), unsubmitted_.begin() + taken);
        under_way_ += static_cast<std::size_t>(taken);
        continue;
      }
      if (result == -EINTR) continue;
      if (result != 0 && result != -EAGAIN && result != -EBUSY) refuse(result);
      return;
    }
  }

  // Entries stay in the ring, so it must not be submitted again: their slots are used by others by then.
  void refuse(int error) {
    refused_ = error;
    for (const std::size_t slot : unsubmitted_) {
      slots_[slot].got = error;
      read_.push_back(slot);
    }
    unsubmitted_.clear();
  }

  // A read that came back short or interrupted, or was given up because the thread that started it has ended, is finished in the
  // plain way, from a border that direct files accept.
  Status read_rest(const PageExtent& extent, std::span<std::byte> data, std::int64_t got) {
    std::size_t good = 0;
    if (got != -EINTR && got != -EAGAIN && got != -ECANCELED) {
      KV_ASSIGN(good, file_.finish_read(extent.offset, data.size(), got));
    }
    if (good == data.size()) return {};
    good = good / RandomAccessFile::kDirectAlignment * RandomAccessFile::kDirectAlignment;
    return file_.read_at(extent.offset + good, data.subspan(good));
  }

  RandomAccessFile& file_;
  PageBuffer memory_;
  std::size_t slot_bytes_;
  io_uring ring_{};
  bool opened_ = false;

  std::mutex mutex_;  // of all that follows, and of the ring's submission side; the other side is the collecting thread's
  std::condition_variable changed_;
  std::atomic<std::uint64_t> changes_ = 0;  // changed under the mutex, looked at without
  std::vector<Slot> slots_;                 // a slot that is read and taken from read_ belongs to the thread that took it
  std::vector<std::size_t> free_;
  std::vector<std::size_t> unsubmitted_;  // in the ring; the system has not taken them yet; in order
  std::size_t under_way_ = 0;             // taken by the system and not collected
  std::deque<std::size_t> read_;          // collected and not delivered
  std::deque<Request> queue_;             // with the next extent to read
  bool collecting_ = false;
  int refused_ = 0;  // why the system takes nothing any more, -errno
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
