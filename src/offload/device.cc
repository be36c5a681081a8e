#include "offload/device.h"

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace kvartet {
namespace {

class HostDevice : public Device {
 public:
  explicit HostDevice(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  Result<DeviceBuffer> allocate(std::size_t bytes) override {
    KV_ASSIGN(Buffer buffer, arena_->allocate(bytes));
    std::byte* data = buffer.data();
    const std::lock_guard lock(mutex_);
    buffers_.emplace(data, std::move(buffer));
    return DeviceBuffer(shared_from_this(), data, bytes);
  }
  Result<CopyTicket> begin_copy(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
    return CopyTicket{};
  }
  Status wait(CopyTicket) override { return {}; }
  bool host_can_touch() const override { return true; }
  std::size_t allocated_bytes() const override { return arena_->allocated_bytes(); }

 private:
  void release(std::byte* data, std::size_t) override {
    const std::lock_guard lock(mutex_);
    buffers_.erase(data);
  }
  std::shared_ptr<Arena> arena_;
  std::mutex mutex_;
  std::unordered_map<std::byte*, Buffer> buffers_;
};

}  // namespace

DeviceBuffer::DeviceBuffer(std::shared_ptr<Device> device, std::byte* data, std::size_t size)
    : device_(std::move(device)), data_(data), size_(size) {}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}
DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr) device_->release(data_, size_);
}

std::shared_ptr<Device> Device::host(std::shared_ptr<Arena> arena) { return std::make_shared<HostDevice>(std::move(arena)); }

}  // namespace kvartet
