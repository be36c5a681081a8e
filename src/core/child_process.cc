#include "core/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/clock.h"

extern char** environ;

namespace kvartet {
namespace {

constexpr int kLookMilliseconds = 50;  // how often the limit and the wish to cancel are looked at

Status refused(const char* what) {
  return io_error(fmt::format("A process cannot be started: {} failed ({}).", what, std::strerror(errno)));
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = other.fd_;
      other.fd_ = -1;
    }
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read;
  Descriptor write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return refused("a pipe");
  Pipe out;
  out.read = Descriptor(ends[0]);
  out.write = Descriptor(ends[1]);
  return out;
}

// A file in memory rather than a pipe: it holds everything at once, so nobody has to feed it, and no child that ends early can
// break it.
Result<Descriptor> input_file(std::string_view text) {
  Descriptor file(memfd_create("kvartet-input", MFD_CLOEXEC));
  if (file.get() < 0) return refused("a file in memory");
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return refused("writing the input");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0) return refused("rewinding the input");
  return file;
}

// A started process; killed and waited for when it is still there at the end.
class Process {
 public:
  explicit Process(pid_t id) : id_(id) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (id_ > 0) static_cast<void>(stop());
  }
  // The status of wait(2) once it has ended.
  bool ended(int* status) {
    const pid_t got = waitpid(id_, status, WNOHANG);
    if (got == id_) id_ = -1;
    return got != 0 && !(got < 0 && errno == EINTR);
  }
  int stop() {
    int status = 0;
    kill(id_, SIGKILL);
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {}
    id_ = -1;
    return status;
  }

 private:
  pid_t id_;
};

Result<pid_t> start(const std::vector<std::string>& command, int in, int out, int err) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  pid_t id = -1;
  // Not fork: this process may have threads and gigabytes.
  const int code = posix_spawn(&id, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0) return io_error(fmt::format("The program {} cannot be started: {}.", command.front(), std::strerror(code)));
  return id;
}

// What is there to be read now; false at the end of the stream.
bool drain(int fd, std::string* into) {
  std::array<char, 65536> buffer;
  const ssize_t got = read(fd, buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  into->append(buffer.data(), static_cast<std::size_t>(got));
  return got > 0;
}

void keep_the_end(std::string* text) {
  if (text->size() > kChildErrorBytes) text->erase(0, text->size() - kChildErrorBytes);
}

}  // namespace

Result<ChildResult> run_child(const ChildRequest& request) {
  KV_CHECK(!request.command.empty());
  KV_ASSIGN(const Descriptor input, input_file(request.input));
  KV_ASSIGN(Pipe out, make_pipe());
  KV_ASSIGN(Pipe err, make_pipe());
  KV_ASSIGN(const pid_t id, start(request.command, input.get(), out.write.get(), err.write.get()));
  Process process(id);
  out.write.close();
  err.write.close();

  const double begin = Clock::real().seconds();
  ChildResult result;
  int status = 0;
  bool open_out = true;
  bool open_err = true;
  for (;;) {
    std::array<pollfd, 2> streams = {{{open_out ? out.read.get() : -1, POLLIN, 0}, {open_err ? err.read.get() : -1, POLLIN, 0}}};
    // With both streams closed this is a pause until the process itself has ended.
    poll(streams.data(), streams.size(), open_out || open_err ? kLookMilliseconds : 1);
    if (streams[0].revents != 0) open_out = drain(out.read.get(), &result.out);
    if (streams[1].revents != 0) open_err = drain(err.read.get(), &result.err);
    keep_the_end(&result.err);
    if (result.out.size() > kChildOutputBytes)
      return io_error(
          fmt::format("{} wrote more than {} MiB and was stopped.", request.command.front(), kChildOutputBytes >> 20));
    if (!open_out && !open_err && process.ended(&status)) break;
    if (request.cancel != nullptr && request.cancel->load()) return cancelled("interrupted");
    if (request.limit_s > 0 && Clock::real().seconds() - begin > request.limit_s) {
      result.timed_out = true;
      status = process.stop();
      break;
    }
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

std::string how_it_ended(const ChildResult& result, double limit_s) {
  if (result.timed_out) return fmt::format("took longer than {:.0f} s and was stopped", limit_s);
  if (result.signal != 0) return fmt::format("was ended by signal {} ({})", result.signal, strsignal(result.signal));
  std::string_view last = result.err;
  while (!last.empty() && last.back() == '\n') last.remove_suffix(1);
  last = last.substr(last.rfind('\n') + 1);  // npos + 1 is 0
  return fmt::format("ended with exit code {}{}{}", result.exit_code, last.empty() ? "" : ": ", last);
}

}  // namespace kvartet
