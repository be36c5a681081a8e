// pread on a few threads: each takes the next extent, so as many reads are under way as there are threads.
#include <fmt/format.h>

#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "offload/page_buffer.h"
#include "offload/page_reader.h"

namespace kvartet {
namespace {

class PreadReader : public PageReader {
 public:
  PreadReader(RandomAccessFile& file, PageBuffer memory, const PageReaderOptions& options)
      : file_(file), memory_(std::move(memory)), slot_bytes_(options.extent_bytes) {}

  // Apart from the constructor because the system may refuse a thread.
  Status open(int threads) {
    try {
      for (int i = 0; i < threads; ++i) {
        threads_.emplace_back([this, i] { run(memory_.bytes().data() + static_cast<std::size_t>(i) * slot_bytes_); });
      }
    } catch (const std::system_error& error) {
      return exhausted(fmt::format("cannot start {} threads that read: {}", threads, error.what()));
    }
    return {};
  }

  ~PreadReader() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void start(std::shared_ptr<ReadJob> job) override {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(job), 0});
    }
    work_.notify_all();
  }

  std::size_t allocated_bytes() const override { return memory_.allocated(); }

 private:
  struct Request {
    std::shared_ptr<ReadJob> job;
    std::size_t extent = 0;
  };

  void run(std::byte* memory) {
    Request request;
    while (next_request(&request)) {
      const PageExtent& extent = request.job->extents[request.extent];
      const std::span<std::byte> data(memory, extent.bytes);
      Status status = file_.read_at(extent.offset, data);
      if (status.ok()) status = request.job->deliver(request.extent, data);
      request.job->finish_extent(request.extent, std::move(status));
      request.job.reset();
    }
  }

  // False: time to stop.
  bool next_request(Request* request) {
    std::unique_lock lock(mutex_);
    work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return false;
    Request& next = jobs_.front();
    *request = next;
    if (++next.extent == request->job->extents.size()) jobs_.pop_front();
    return true;
  }

  RandomAccessFile& file_;
  PageBuffer memory_;
  std::size_t slot_bytes_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Request> jobs_;  // with the next extent to read
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<PageReader>> make_pread_reader(RandomAccessFile& file, Arena& arena, const PageReaderOptions& options) {
  KV_ASSIGN(PageBuffer memory, PageBuffer::create(arena, options.extent_bytes * static_cast<std::size_t>(options.threads)));
  auto reader = std::make_unique<PreadReader>(file, std::move(memory), options);
  KV_TRY(reader->open(options.threads));
  return std::unique_ptr<PageReader>(std::move(reader));
}

}  // namespace kvartet
