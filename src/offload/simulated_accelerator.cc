#include "offload/simulated_accelerator.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace kvartet {

std::shared_ptr<SimulatedAccelerator> SimulatedAccelerator::create(const LinkSpeed& link, std::uint64_t memory_bytes) {
  return std::shared_ptr<SimulatedAccelerator>(new SimulatedAccelerator(link, memory_bytes));
}

SimulatedAccelerator::~SimulatedAccelerator() { KV_CHECK(regions_.empty()); }  // every buffer keeps its device alive

// One piece of memory at two addresses: the one handed out faults, the other is the copy engine's.
Result<DeviceBuffer> SimulatedAccelerator::allocate(std::size_t bytes) {
  KV_TRY(memory_.charge(bytes, "device memory"));
  const auto failed = [&](const char* what) {
    memory_.release(bytes);
    return exhausted(
        fmt::format("cannot {} {} bytes for a simulated accelerator: {}", what, bytes, std::generic_category().message(errno)));
  };
  const int fd = ::memfd_create("kvartet-accelerator", MFD_CLOEXEC);
  if (fd < 0) return failed("create");
  void* handed_out = MAP_FAILED;
  void* alias = MAP_FAILED;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    handed_out = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    alias = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ::close(fd);
  if (handed_out == MAP_FAILED || alias == MAP_FAILED) {
    if (handed_out != MAP_FAILED) ::munmap(handed_out, bytes);
    if (alias != MAP_FAILED) ::munmap(alias, bytes);
    return failed("map");
  }
  auto* data = static_cast<std::byte*>(handed_out);
  regions_.emplace(data, Region{bytes, static_cast<std::byte*>(alias)});
  return DeviceBuffer(shared_from_this(), data, bytes);
}

void SimulatedAccelerator::release(std::byte* data, std::size_t size) {
  const auto region = regions_.find(data);
  KV_CHECK(region != regions_.end() && region->second.size == size);
  ::munmap(region->second.alias, size);
  ::munmap(data, size);
  regions_.erase(region);
  memory_.release(size);
}

std::byte* SimulatedAccelerator::alias_of(const std::byte* address) const {
  auto region = regions_.upper_bound(address);
  if (region == regions_.begin()) return nullptr;
  --region;
  if (address >= region->first + region->second.size) return nullptr;
  return region->second.alias + (address - region->first);
}

Result<CopyTicket> SimulatedAccelerator::begin_copy(std::span<const CopyPiece> pieces) {
  if (pieces.empty()) return CopyTicket{};
  std::uint64_t crossing = 0;
  for (const CopyPiece& piece : pieces) {
    const bool to_device = alias_of(piece.to) != nullptr;
    const bool from_device = alias_of(piece.from) != nullptr;
    KV_CHECK(to_device || from_device);
    if (to_device != from_device) crossing += piece.bytes;
  }
  double end = now_;
  if (crossing != 0) {
    const double takes = link_seconds(link_, crossing, 1);
    link_free_ = std::max(now_, link_free_) + takes;
    busy_ += takes;
    bytes_ += crossing;
    end = link_free_;
  }
  if (!pending_.empty()) end = std::max(end, pending_.back().end);  // copies end in order
  pending_.push_back({++started_, {pieces.begin(), pieces.end()}, end});
  return CopyTicket{started_};
}

Status SimulatedAccelerator::wait(CopyTicket ticket) {
  while (!pending_.empty() && pending_.front().number <= ticket.number) {
    const Copy copy = std::move(pending_.front());
    pending_.pop_front();
    for (const CopyPiece& piece : copy.pieces) {
      std::byte* to = alias_of(piece.to);
      const std::byte* from = alias_of(piece.from);
      std::memcpy(to == nullptr ? piece.to : to, from == nullptr ? piece.from : from, piece.bytes);
    }
    now_ = std::max(now_, copy.end);
  }
  return {};
}

}  // namespace kvartet
