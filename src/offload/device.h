// Where the fast tier lies: host memory, or an accelerator that the host cannot touch.
//
// Four things: allocate, start a copy, wait for it, account. A copy's pieces go to, from or within the device; copies of one
// device take effect in the order they were started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/arena.h"
#include "core/status.h"

namespace kvartet {

class Device;

// A block of device memory; gives it back when it dies. `data()` is an address for copies; the host may follow it only
// where Device::host_can_touch().
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::shared_ptr<Device> device, std::byte* data, std::size_t size);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

struct CopyTicket {
  std::uint64_t number = 0;  // of the copy, counted from 1; 0: nothing to wait for
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;
  virtual Result<DeviceBuffer> allocate(std::size_t bytes) = 0;  // kExhausted: cap or memory
  // Sources must keep their bytes, and nobody may use the targets, until the copy has been waited for.
  virtual Result<CopyTicket> begin_copy(std::span<const CopyPiece> pieces) = 0;
  virtual Status wait(CopyTicket ticket) = 0;
  virtual bool host_can_touch() const = 0;
  virtual std::size_t allocated_bytes() const = 0;

  // The device that is the host itself: memory from `arena`, copies done at once.
  static std::shared_ptr<Device> host(std::shared_ptr<Arena> arena);

 private:
  friend class DeviceBuffer;
  virtual void release(std::byte* data, std::size_t size) = 0;
};

}  // namespace kvartet
