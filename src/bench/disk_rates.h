// How fast the folder of tier=disk gives rows back: pages of 4 KiB at random, and long stretches in order, read by the readers
// that the tier itself uses (offload/page_reader.h), past the page cache where the file system can.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

struct DiskRequest {
  std::string directory;  // empty: the system's temporary folder
  FileSystem* files = &FileSystem::real();
  std::uint64_t file_bytes = std::uint64_t{256} << 20;  // at most; less where less than four times as much is free
  double seconds = 0.6;                                 // of one round of random reads, about
  int rounds = 3;
  const std::atomic<bool>* cancel = nullptr;
  const Clock* clock = &Clock::real();
};

struct DiskRate {
  double value = 0;   // median of the rounds
  double spread = 0;  // half their range over it
};

struct DiskRates {
  DiskRate reads_per_s;  // random pages, a batch of 128 at a time, as one layer of a step asks for them
  DiskRate bytes_per_s;  // in order
  bool direct = false;   // past the page cache; else memory was measured, not the disk
  std::string medium;    // "io_uring, past the page cache"
  std::string directory;
};

// The file has no name and vanishes with this call. kExhausted: less than 16 MiB are to be had; kIo; kCancelled.
Result<DiskRates> measure_disk(const DiskRequest& request);

}  // namespace kvartet
