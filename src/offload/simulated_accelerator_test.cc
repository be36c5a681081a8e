#include "offload/simulated_accelerator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "offload/row_store_fixture.h"

namespace kvartet {
namespace {

constexpr LinkSpeed kLink = {.gb_per_s = 25, .latency_s = 0.00001};

std::vector<std::byte> read_back(SimulatedAccelerator& device, const DeviceBuffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  const CopyPiece piece = {bytes.data(), buffer.data(), bytes.size()};
  auto ticket = device.begin_copy({&piece, 1});
  EXPECT_TRUE(ticket.ok());
  EXPECT_TRUE(device.wait(*ticket).ok());
  return bytes;
}

TEST(SimulatedAccelerator, TheHostMayNotTouchItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = SimulatedAccelerator::create(kLink, 1 << 20);
  auto buffer = device->allocate(100);
  ASSERT_TRUE(buffer.ok());
  EXPECT_DEATH(static_cast<void>(*const_cast<volatile std::byte*>(buffer->data())), "");
}

TEST(SimulatedAccelerator, ItsMemoryIsCountedAndCapped) {
  const auto device = SimulatedAccelerator::create(kLink, 1000);
  {
    auto a = device->allocate(600);
    ASSERT_TRUE(a.ok());
    EXPECT_EQ(device->allocate(401).status().code(), Code::kExhausted);
    auto b = device->allocate(400);
    ASSERT_TRUE(b.ok());
    EXPECT_EQ(device->allocated_bytes(), 1000u);
  }
  EXPECT_EQ(device->allocated_bytes(), 0u);
}

TEST(SimulatedAccelerator, ACopyTakesItsTimeAndIsNotThereBefore) {
  const auto device = SimulatedAccelerator::create(kLink, 1 << 20);
  auto buffer = device->allocate(100000);
  ASSERT_TRUE(buffer.ok());
  std::vector<std::byte> source(100000, std::byte{7});
  const CopyPiece piece = {buffer->data(), source.data(), source.size()};
  auto ticket = device->begin_copy({&piece, 1});
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(device->seconds(), 0);
  std::fill(source.begin(), source.end(), std::byte{8});  // too early: the copy has not been waited for, and sees it
  ASSERT_TRUE(device->wait(*ticket).ok());
  EXPECT_DOUBLE_EQ(device->seconds(), 0.00001 + 100000 / 25e9);
  EXPECT_EQ(read_back(*device, *buffer)[99999], std::byte{8});
}

RowStoreOptions accelerator_options(const std::shared_ptr<SimulatedAccelerator>& device, double cache_share) {
  return {.layers = {{.kv_heads = 4, .row_bytes = 512}, {.kv_heads = 4, .row_bytes = 512}},
          .fast = Arena::create(),
          .slow = Arena::create(),
          .cache_share = cache_share,
          .device = device};
}

// Points the fetches of a selection to device memory.
std::vector<DeviceBuffer> on_device(SimulatedAccelerator& device, Selection& s) {
  std::vector<DeviceBuffer> buffers;
  for (std::size_t h = 0; h < s.fetches.size(); ++h) {
    auto buffer = device.allocate(s.out[h].size());
    EXPECT_TRUE(buffer.ok());
    s.fetches[h].out = buffer->data();
    buffers.push_back(std::move(buffer).value());
  }
  return buffers;
}

TEST(SimulatedAccelerator, FetchedRowsArriveOnTheDevice) {
  for (const double share : {0.0, 0.1, 1.0}) {
    const auto device = SimulatedAccelerator::create(kLink, 64 << 20);
    auto store = RowStore::create(accelerator_options(device, share));
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(append_rows(*store, 0, 1000).ok());
    for (int step = 0; step < 5; ++step) {
      Selection s = random_selection(*store, 0, 0.05, static_cast<std::uint64_t>(step / 2));
      const std::vector<DeviceBuffer> buffers = on_device(*device, s);
      ASSERT_TRUE(store->fetch(0, s.fetches).ok());
      for (std::size_t h = 0; h < buffers.size(); ++h) s.out[h] = read_back(*device, buffers[h]);
      EXPECT_EQ(wrong_byte(*store, 0, s), "");
    }
    const RowTraffic traffic = store->traffic();
    EXPECT_EQ(traffic.bytes_fetched, traffic.rows_fetched * 512);
    EXPECT_EQ(traffic.rows_hit > 0, share > 0);
  }
}

// T-CACHE over a link: same selection twice, nothing crosses the second time.
TEST(SimulatedAccelerator, TheLinkCarriesWhatTheCountersSay) {
  const auto device = SimulatedAccelerator::create(kLink, 64 << 20);
  auto store = RowStore::create(accelerator_options(device, 0.25));
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE(append_rows(*store, 0, 1000).ok());
  Selection s = random_selection(*store, 0, 0.05, 1);
  const std::vector<DeviceBuffer> buffers = on_device(*device, s);
  store->begin_step();
  ASSERT_TRUE(store->fetch(0, s.fetches).ok());
  EXPECT_EQ(device->link_bytes(), store->traffic().bytes_fetched_this_step);
  EXPECT_GT(device->link_bytes(), 0u);
  store->begin_step();
  const std::uint64_t before = device->link_bytes();
  ASSERT_TRUE(store->fetch(0, s.fetches).ok());
  EXPECT_EQ(device->link_bytes(), before);
  EXPECT_EQ(store->traffic().bytes_fetched_this_step, 0u);
  // Cache slots and `out` are all the device memory there is, and the store counts its part of it.
  std::size_t out_bytes = 0;
  for (const DeviceBuffer& buffer : buffers) out_bytes += buffer.size();
  EXPECT_EQ(store->bytes().fast.allocated + out_bytes, device->allocated_bytes());
}

// Fetching the next layer during this one's compute: a step costs the longer of the two, not their sum.
TEST(SimulatedAccelerator, ReadsOfOneLayerOverlapTheComputeOfAnother) {
  constexpr int kSteps = 10;
  for (const double gb_per_s : {25.0, 55.0}) {
    for (const double compute_s : {0.000002, 0.0001}) {
      const auto device = SimulatedAccelerator::create({.gb_per_s = gb_per_s, .latency_s = 0.000005}, 64 << 20);
      auto store = RowStore::create(accelerator_options(device, 0));
      ASSERT_TRUE(store.ok());
      for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(append_rows(*store, layer, 1000).ok());
      Selection s[2] = {random_selection(*store, 0, 0.2, 1), random_selection(*store, 1, 0.2, 2)};
      const std::vector<DeviceBuffer> buffers[2] = {on_device(*device, s[0]), on_device(*device, s[1])};
      auto ticket = store->begin_fetch(0, s[0].fetches);
      ASSERT_TRUE(ticket.ok());
      for (int i = 0; i < kSteps; ++i) {
        ASSERT_TRUE(store->wait(std::move(ticket).value()).ok());
        ticket = store->begin_fetch((i + 1) % 2, s[(i + 1) % 2].fetches);
        ASSERT_TRUE(ticket.ok());
        device->advance(compute_s);
      }
      const double transfer = device->link_busy_seconds() / (kSteps + 1);  // per layer, nearly equal ones
      const double serial = kSteps * (transfer + compute_s);
      const double overlapped = transfer + (kSteps - 1) * std::max(transfer, compute_s) + compute_s;
      EXPECT_NEAR(device->seconds(), overlapped, 0.05 * overlapped);
      EXPECT_LT(device->seconds(), serial);
      ASSERT_TRUE(store->wait(std::move(ticket).value()).ok());
    }
  }
}

}  // namespace
}  // namespace kvartet
