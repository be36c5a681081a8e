// The kvartet program as its user meets it: started as a process, judged by its output, its errors and its exit code.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace kvartet::e2e {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  ASSERT_TRUE(file.flush().good()) << path;
}

// A folder of its own for every test; gone with the test.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = testing::TempDir() + "kvartet_e2e_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }
  // Writes a file into the folder and gives its path.
  std::string file(const std::string& name, const std::string& text) const {
    write_text(path(name), text);
    return path(name);
  }

 private:
  std::string path_;
};

struct Surroundings {
  rlim_t address_space = RLIM_INFINITY;  // bytes, as ulimit -v
  rlim_t file_size = RLIM_INFINITY;      // bytes a file may have; writes beyond fail as on a full disk
  bool obey_permissions = false;         // root, too, is stopped by a read-only folder
  std::string output = {};               // where standard output goes instead of into the result
  std::string errors = {};               // and standard error
};

struct Finished {
  int code = -1;   // exit code; -1: ended by a signal
  int signal = 0;  // 0: ended by itself
  std::string out;
  std::string err;
  // Lives as long as this, so that a loop may walk through a part of it.
  Json& json() const& {
    if (!parsed_) {
      parsed_ = Json::parse(out, nullptr, false);  // the whole text must be one document
      EXPECT_FALSE(parsed_->is_discarded()) << "not one JSON document: " << out;
    }
    return *parsed_;
  }
  Json json() const&& { return json(); }

  mutable std::optional<Json> parsed_ = {};
};

// A started program. Its output goes to files, so that nothing blocks however much it says.
class Program {
 public:
  explicit Program(const Arguments& arguments, const Surroundings& surroundings = {}) : surroundings_(surroundings) {
    const std::string binary = std::string(KVARTET_BINARY_DIR) + "/kvartet";
    std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const std::string out = surroundings_.output.empty() ? streams_.path("out") : surroundings_.output;
    const std::string err = surroundings_.errors.empty() ? streams_.path("err") : surroundings_.errors;
    const std::string home = streams_.path("home");
    process_ = fork();
    if (process_ == 0) {
      become(out, err, home);
      execv(binary.c_str(), argv.data());
      _exit(127);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (process_ > 0) {
      kill(SIGKILL);
      static_cast<void>(wait());
    }
  }

  void kill(int signal) const { ::kill(process_, signal); }
  pid_t process() const { return process_; }
  std::string out_so_far() const { return read_text(streams_.path("out")); }
  bool running() {
    if (process_ <= 0) return false;
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  Finished wait() {
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {}
    process_ = -1;
    Finished f;
    if (WIFEXITED(status)) f.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) f.signal = WTERMSIG(status);
    if (surroundings_.output.empty()) f.out = read_text(streams_.path("out"));
    if (surroundings_.errors.empty()) f.err = read_text(streams_.path("err"));
    return f;
  }

 private:
  // In the child, before the program takes over: only calls that are safe after fork.
  void become(const std::string& out, const std::string& err, const std::string& home) const {
    const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int err_fd = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY, 0644);
    const int none = open("/dev/null", O_RDONLY);
    dup2(none, STDIN_FILENO);
    dup2(out_fd, STDOUT_FILENO);
    dup2(err_fd, STDERR_FILENO);
    unsetenv("OMP_WAIT_POLICY");              // the program warns about it
    setenv("KVARTET_SELF_CHECK", "off", 0);   // random models fail it, and it writes into the user's folder; its own tests set it
    setenv("KVARTET_HOME", home.c_str(), 0);  // nor does the planner's memory belong there
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_AS, surroundings_.address_space);
    limit(RLIMIT_FSIZE, surroundings_.file_size);
    if (surroundings_.file_size != RLIM_INFINITY) signal(SIGXFSZ, SIG_IGN);  // then write fails with EFBIG
    if (surroundings_.obey_permissions) {
      prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
      prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH);
    }
  }
  static void limit(int what, rlim_t value) {
    if (value == RLIM_INFINITY) return;
    const rlimit both = {value, value};
    setrlimit(static_cast<__rlimit_resource_t>(what), &both);
  }

  Surroundings surroundings_;
  ScratchFolder streams_;
  pid_t process_ = -1;
};

inline Finished run(const Arguments& arguments, const Surroundings& surroundings = {}) {
  return Program(arguments, surroundings).wait();
}

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The rest of standard error behind the lines in which bench tells how far it is: "needle at 900 tokens: sample 1 of 60; 0 %".
inline std::string after_progress(std::string err) {
  static const std::regex line("^[^\\n]* at [0-9]+ tokens: sample [0-9]+ of [0-9]+; [0-9]+ %[^\\n]*\\n");
  std::smatch found;
  while (std::regex_search(err, found, line, std::regex_constants::match_continuous)) err = found.suffix();
  return err;
}

// What every error must be: no signal, the right code, one line "kvartet: ..." of printable text.
inline testing::AssertionResult is_sentence(const Finished& f, int code, const std::string& about = "") {
  const auto failure = [&](const std::string& what) {
    return testing::AssertionFailure() << what << "; exit code " << f.code << ", signal " << f.signal << ", standard error:\n"
                                       << f.err << "standard output:\n"
                                       << f.out.substr(0, 2000);
  };
  if (f.signal != 0) return failure("ended by a signal");
  if (f.code != code) return failure("exit code is not " + std::to_string(code));
  const std::string err = after_progress(f.err);
  if (!err.starts_with("kvartet: ")) return failure("standard error does not begin with 'kvartet: '");
  if (std::count(err.begin(), err.end(), '\n') != 1 || err.back() != '\n') return failure("not exactly one line");
  const auto control = [](char c) { return c != '\n' && (static_cast<unsigned char>(c) < 32 || c == 127); };
  if (std::any_of(err.begin(), err.end(), control)) return failure("control characters in the sentence");
  if (err.find("unexpected:") != std::string::npos) return failure("an exception, not a sentence");
  if (err.find(about) == std::string::npos) return failure("does not mention '" + about + "'");
  return testing::AssertionSuccess();
}

// The same for errors that come before any result: nothing on standard output.
inline testing::AssertionResult is_refused(const Finished& f, int code, const std::string& about = "") {
  if (!f.out.empty()) return testing::AssertionFailure() << "standard output is not empty:\n" << f.out << f.err;
  return is_sentence(f, code, about);
}

inline testing::AssertionResult is_ok(const Finished& f) {
  if (f.code == 0 && f.signal == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "exit code " << f.code << ", signal " << f.signal << ", standard error:\n" << f.err;
}

}  // namespace kvartet::e2e
