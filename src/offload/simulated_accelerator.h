// Stands for an accelerator until one is at hand: memory that the host cannot touch, behind a link of a given speed.
//
// A load or store of the host into this memory ends the process. Copies take effect as late as allowed, when they are waited
// for, so that nobody gets away with using what has not been waited for. Time is simulated: compute is advance(), a copy
// occupies the link for latency + bytes / speed, and waiting moves the clock to the end of the copy if it is not there yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/clock.h"
#include "offload/byte_budget.h"
#include "offload/device.h"

namespace kvartet {

struct LinkSpeed {
  double gb_per_s = 25;        // PCIe 4.0 x16 in practice; 55: PCIe 5.0
  double latency_s = 0.00001;  // per copy
};

// What moving `bytes` in `copies` copies costs.
inline double link_seconds(const LinkSpeed& link, std::uint64_t bytes, std::uint64_t copies) {
  return static_cast<double>(copies) * link.latency_s + static_cast<double>(bytes) / (link.gb_per_s * 1e9);
}

class SimulatedAccelerator : public Device, public Clock {
 public:
  static std::shared_ptr<SimulatedAccelerator> create(const LinkSpeed& link, std::uint64_t memory_bytes);
  ~SimulatedAccelerator() override;

  Result<DeviceBuffer> allocate(std::size_t bytes) override;
  Result<CopyTicket> begin_copy(std::span<const CopyPiece> pieces) override;
  Status wait(CopyTicket ticket) override;
  bool host_can_touch() const override { return false; }
  std::size_t allocated_bytes() const override { return memory_.used(); }

  double seconds() const override { return now_; }
  void advance(double seconds) { now_ += seconds; }    // the host or the device computes
  double link_busy_seconds() const { return busy_; }   // sum over all copies
  std::uint64_t link_bytes() const { return bytes_; }  // what crossed; copies within the device do not

 private:
  struct Region {
    std::size_t size;
    std::byte* alias;  // the same memory where the simulation may touch it
  };
  struct Copy {
    std::uint64_t number;
    std::vector<CopyPiece> pieces;
    double end;
  };
  SimulatedAccelerator(const LinkSpeed& link, std::uint64_t memory_bytes) : link_(link), memory_(memory_bytes) {}
  void release(std::byte* data, std::size_t size) override;
  std::byte* alias_of(const std::byte* address) const;  // null: not of this device

  LinkSpeed link_;
  ByteBudget memory_;
  std::map<const std::byte*, Region> regions_;
  std::deque<Copy> pending_;
  std::uint64_t started_ = 0;
  double now_ = 0;
  double link_free_ = 0;
  double busy_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvartet
