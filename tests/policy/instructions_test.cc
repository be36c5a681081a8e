// bench/instructions is a judge: a slower kernel fails it, whatever cannot be compared is told in one sentence. A script stands
// in for valgrind, so that the figures are ours.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace kvartet::policy {
namespace {

struct Judged {
  int code = -1;
  std::string text;  // both streams
  bool says(const std::string& word) const { return text.find(word) != std::string::npos; }
};

class Instructions : public testing::Test {
 protected:
  Instructions() {
    std::string name = testing::TempDir() + "kvartet_instructions_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
    program("kernels", "");
    // Its arguments end with --callgrind-out-file=FILE and the program; one dump per kernel, as callgrind writes them.
    program("valgrind",
            "for a in \"$@\"; do case $a in --callgrind-out-file=*) out=${a#*=};; esac; done\n"
            "n=0; while read -r name count; do n=$((n+1))\n"
            "printf 'desc: Trigger: Client Request: %s\\ntotals: %s\\n' \"$name\" \"$count\" > \"$out.$n\"\n"
            "done < \"$COUNTS\"\nprintf 'desc: Trigger: Program termination\\ntotals: 9\\n' > \"$out.last\"\n"
            "echo \"counted $OF\"\n");
    count("AVX2, g++ 12.2", "score/a 1000\nscore/b 2000\n");
  }
  ~Instructions() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void file(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  std::string record() const {
    std::ifstream in(path("record.txt"));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void count(const std::string& of, const std::string& counts) {
    of_ = of;
    file("counts", counts);
  }
  Judged judge(const std::string& more = "") const {
    const std::string command = "PATH='" + folder_ + "':$PATH COUNTS='" + path("counts") + "' OF='" + of_ + "' python3 " +
                                KVARTET_SOURCE_DIR + "/bench/instructions --program '" + path("kernels") + "' --file '" +
                                path("record.txt") + "' " + more + " 2>&1";
    Judged judged;
    FILE* const pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return judged;
    for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) judged.text += static_cast<char>(c);
    const int status = pclose(pipe);
    if (WIFEXITED(status)) judged.code = WEXITSTATUS(status);
    return judged;
  }

 private:
  void program(const std::string& name, const std::string& body) const {
    file(name, "#!/bin/sh\n" + body);
    chmod(path(name).c_str(), 0755);
  }

  std::string folder_;
  std::string of_;
};

TEST_F(Instructions, ASlowerKernelFails) {
  ASSERT_EQ(judge("--record").code, 0);
  EXPECT_EQ(judge().code, 0);
  count("AVX2, g++ 12.2", "score/a 1019\nscore/b 1500\n");
  const Judged better = judge();
  EXPECT_EQ(better.code, 0) << better.text;
  EXPECT_TRUE(better.says("score/b takes 1500")) << better.text;
  EXPECT_FALSE(better.says("score/a takes")) << better.text;
  count("AVX2, g++ 12.2", "score/a 1021\nscore/b 2000\n");
  const Judged slower = judge();
  EXPECT_EQ(slower.code, 1);
  EXPECT_TRUE(slower.says("score/a takes 1021, recorded are 1000 (+2.1%)")) << slower.text;
}

TEST_F(Instructions, AKernelOnOneSideFails) {
  ASSERT_EQ(judge("--record").code, 0);
  count("AVX2, g++ 12.2", "score/a 1000\n");
  EXPECT_EQ(judge().code, 1);
  EXPECT_TRUE(judge().says("score/b is not counted any more"));
  count("AVX2, g++ 12.2", "score/a 1000\nscore/b 2000\nscore/c 5\n");
  EXPECT_EQ(judge().code, 1);
  EXPECT_TRUE(judge().says("score/c is not in the record"));
}

// Another CPU's kernels are others, and so are another compiler's: that says nothing about a change.
TEST_F(Instructions, OtherKernelsAreNotCompared) {
  ASSERT_EQ(judge("--record").code, 0);
  count("SSE4, g++ 12.2", "score/a 9000\nscore/b 9000\n");
  const Judged other = judge();
  EXPECT_EQ(other.code, 0);
  EXPECT_TRUE(other.says("not compared: the record is of AVX2, g++ 12.2, and this is SSE4, g++ 12.2")) << other.text;
}

TEST_F(Instructions, ADamagedRecordIsOneSentence) {
  ASSERT_EQ(judge("--record").code, 0);
  const std::string sound = record();
  for (const std::string& damaged :
       {std::string(), sound.substr(0, sound.size() - 6), sound + "score/c\n", sound + "score/c -5\n", sound + "score/a 1000\n",
        sound + "<<<<<<< HEAD\n", sound + "score/c 0\n", std::string("score/a 1000\n"), std::string(5000, '\xff')}) {
    file("record.txt", damaged);
    const Judged judged = judge();
    EXPECT_EQ(judged.code, 1) << damaged;
    EXPECT_TRUE(judged.says("record") && judged.says("--record")) << judged.text;
    EXPECT_FALSE(judged.says("Traceback")) << judged.text;
  }
  std::filesystem::remove(path("record.txt"));
  const Judged missing = judge();
  EXPECT_EQ(missing.code, 1);
  EXPECT_TRUE(missing.says("cannot be read") && !missing.says("Traceback")) << missing.text;
  EXPECT_EQ(judge("--record").code, 0);
  EXPECT_EQ(record(), sound);
}

TEST_F(Instructions, NothingCountedIsNoRecord) {
  ASSERT_EQ(judge("--record").code, 0);
  const std::string sound = record();
  count("AVX2, g++ 12.2", "");
  for (const char* flag : {"", "--record"}) {
    const Judged judged = judge(flag);
    EXPECT_EQ(judged.code, 1);
    EXPECT_TRUE(judged.says("counted nothing") && !judged.says("Traceback")) << judged.text;
  }
  EXPECT_EQ(record(), sound);
}

}  // namespace
}  // namespace kvartet::policy
