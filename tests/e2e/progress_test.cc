// The line in which a command tells a terminal how far it is.
#include <stdlib.h>

#include <thread>

#include "bench_fixture.h"

namespace kvartet::e2e {
namespace {

// A terminal for a program's standard error, read all the time: a program waits for a terminal that nobody reads.
class Terminal {
 public:
  Terminal() : screen_(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (screen_ < 0 || grantpt(screen_) != 0 || unlockpt(screen_) != 0) return;
    device_ = ptsname(screen_);
    line_ = open(device_.c_str(), O_RDWR | O_NOCTTY);
    reader_ = std::thread([this] {
      char bytes[4096];
      for (ssize_t n; (n = read(screen_, bytes, sizeof(bytes))) > 0;) shown_.append(bytes, static_cast<std::size_t>(n));
    });
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    static_cast<void>(shown());
    if (screen_ >= 0) close(screen_);
  }
  const std::string& device() const { return device_; }  // "": there are no terminals here
  // All that was written, once every program that writes has ended.
  const std::string& shown() {
    if (line_ >= 0) close(line_);
    line_ = -1;
    if (reader_.joinable()) reader_.join();
    return shown_;
  }

 private:
  int screen_ = -1;
  int line_ = -1;  // without it the screen would end before the program begins
  std::string device_;
  std::string shown_;
  std::thread reader_;
};

class ProgressLine : public BenchFixture {
 protected:
  ProgressLine() { surroundings_.errors = terminal_.device(); }
  void SetUp() override {
    if (terminal_.device().empty()) GTEST_SKIP() << "no terminal can be made here";
  }

  Terminal terminal_;
  Surroundings surroundings_;
};

TEST_F(ProgressLine, IsTakenAwayWithoutAWordAtTheEnd) {
  ASSERT_EQ(run(bench_arguments("out", {"--samples", "2", "--json"}), surroundings_).code, 0);
  const std::string shown = terminal_.shown();
  EXPECT_NE(shown.find("sample 1 of 4"), std::string::npos) << shown;
  EXPECT_TRUE(shown.ends_with("\r\x1b[K")) << shown;
}

// "100 %" would say that all was run.
TEST_F(ProgressLine, OfAnInterruptedRunDoesNotSayThatItIsComplete) {
  Program program(bench_arguments("cut", {"--samples", "30", "--json"}), surroundings_);
  wait_for_samples(program, "cut", 2);
  program.kill(SIGINT);
  ASSERT_EQ(program.wait().code, 130);
  const std::string shown = terminal_.shown();
  EXPECT_NE(shown.find("\r\x1b[Kkvartet: interrupted"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("100 %"), std::string::npos) << shown;
}

}  // namespace
}  // namespace kvartet::e2e
