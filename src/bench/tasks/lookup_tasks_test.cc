// codebase and contracts: every answer can be found by following the text, and by nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "bench/tasks/codebase.h"
#include "bench/tasks/contracts.h"
#include "bench/tasks/task_fixture.h"

namespace kvartet {
namespace {

class LookupTasks : public TaskFixture {};

// name -> what stands behind its "return".
std::map<std::string, std::string> functions_of(const std::string& code) {
  std::map<std::string, std::string> out;
  for (std::size_t at = code.find("def "); at != std::string::npos; at = code.find("def ", at + 1)) {
    const std::string name = code.substr(at + 4, code.find('(', at) - at - 4);
    const std::size_t body = code.find("return ", at) + 7;
    EXPECT_FALSE(out.contains(name)) << name << " is defined twice";
    out[name] = code.substr(body, code.find('\n', body) - body);
  }
  return out;
}

TEST_F(LookupTasks, CodebaseAnswersFollowFromTheCode) {
  for (const char* spec : {"codebase:k=8,hops=2", "codebase:k=5,hops=1"}) {
    for (const Sample& s : samples(spec, 1200, 4)) {
      const std::map<std::string, std::string> functions = functions_of(s.document + "\n");
      for (const std::string& answer : s.answers) {
        const std::string name = answer.substr(0, answer.find(": "));
        std::string value = functions.at(name);
        if (value.ends_with("()")) value = functions.at(value.substr(0, value.size() - 2));
        EXPECT_EQ(name + ": " + value, answer);
        EXPECT_NE(s.question.find(name), std::string::npos);
      }
      for (const auto& [name, body] : functions) {
        if (body.ends_with("()")) {
          EXPECT_TRUE(functions.contains(body.substr(0, body.size() - 2))) << body;
        }
      }
      EXPECT_GT(occurrences(s.document, "# file: "), 3U);
    }
  }
}

TEST_F(LookupTasks, ContractAnswersFollowFromTheClauses) {
  for (const Sample& s : samples("contracts:k=6", 1500, 4)) {
    std::map<std::string, std::string> clauses;  // by number
    std::map<std::string, std::string> number_of;
    for (std::size_t at = 0; at < s.document.size();) {
      const std::size_t end = std::min(s.document.find('\n', at), s.document.size());
      const std::string clause = s.document.substr(at, end - at);
      const std::string number = clause.substr(0, clause.find('.'));
      clauses[number] = clause;
      const std::string title = clause.substr(number.size() + 2, clause.find('.', number.size() + 1) - number.size() - 2);
      if (title != "Notice period" && clause.find("of clause") != std::string::npos) {
        EXPECT_TRUE(number_of.emplace(title, number).second) << title;
      }
      at = end + 1;
    }
    for (const std::string& answer : s.answers) {
      std::string subject = answer.substr(0, answer.find(": "));
      EXPECT_NE(s.question.find(subject), std::string::npos);
      subject[0] = static_cast<char>(subject[0] - 'a' + 'A');
      const std::string& ending = clauses.at(number_of.at(subject));
      const std::size_t reference = ending.find("of clause ") + 10;
      const std::string& notice = clauses.at(ending.substr(reference, ending.size() - reference - 1));
      const std::string days = answer.substr(answer.find(": ") + 2);
      EXPECT_NE(notice.find(fmt::format(" {} days of notice", days)), std::string::npos) << notice;
    }
  }
}

}  // namespace
}  // namespace kvartet
