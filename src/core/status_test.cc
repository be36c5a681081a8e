#include "core/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace kvartet {
namespace {

TEST(Status, DefaultIsOkAndSaysNothing) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
}

// DESIGN 6: 0 ok, 2 usage, 3 bad input, 4 out of memory, space or context, 5 I/O, 130 interrupted, 1 anything else.
TEST(Status, ExitCodesAreThoseOfTheCommandLine) {
  EXPECT_EQ(exit_code(Status().code()), 0);
  EXPECT_EQ(exit_code(usage_error("").code()), 2);
  EXPECT_EQ(exit_code(bad_input("").code()), 3);
  EXPECT_EQ(exit_code(exhausted("").code()), 4);
  EXPECT_EQ(exit_code(io_error("").code()), 5);
  EXPECT_EQ(exit_code(cancelled("").code()), 130);
  EXPECT_EQ(exit_code(internal_error("").code()), 1);
}

TEST(Status, WithinNamesThePlaceOfAnErrorOnly) {
  EXPECT_EQ(bad_input("no rows").within("layer 3").within("cache").message(), "cache: layer 3: no rows");
  EXPECT_EQ(Status().within("layer 3").message(), "");
}

Result<std::unique_ptr<int>> boxed(int value) {
  if (value < 0) return bad_input("negative");
  return std::make_unique<int>(value);
}

Result<int> sum(int a, int b) {
  KV_ASSIGN(const auto x, boxed(a));
  KV_ASSIGN(const auto y, boxed(b));
  return *x + *y;
}

Status both(const Status& first, int& steps) {
  ++steps;
  KV_TRY(first);
  ++steps;
  return {};
}

TEST(Result, CarriesMoveOnlyValues) {
  auto box = boxed(7);
  ASSERT_TRUE(box.ok());
  const std::unique_ptr<int> taken = std::move(box).value();
  EXPECT_EQ(*taken, 7);
}

TEST(Result, AssignReturnsTheFirstError) {
  EXPECT_EQ(sum(2, 3).value(), 5);
  EXPECT_EQ(sum(2, -3).status().message(), "negative");
  EXPECT_EQ(sum(-2, 3).status().code(), Code::kBadInput);
}

TEST(Result, TryStopsAtAnError) {
  int steps = 0;
  EXPECT_TRUE(both({}, steps).ok());
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(both(io_error("disk"), steps).code(), Code::kIo);
  EXPECT_EQ(steps, 3);
}

TEST(ResultDeathTest, TheValueOfAnErrorIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Result<int> none = bad_input("no number");
  EXPECT_DEATH(static_cast<void>(none.value()), "a bug: ok\\(\\) does not hold");
  EXPECT_DEATH(Result<int>{Status()}, "a bug:");
}

}  // namespace
}  // namespace kvartet
