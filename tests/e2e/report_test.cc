// kvartet report: the page as a file, several folders as one, what is refused, and the page in a real browser.
#include <sqlite3.h>

#include "report/report_fixture.h"
#include "results/fingerprint.h"
#include "results/store.h"
#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class Report : public testing::Test {
 protected:
  // A folder as `kvartet bench` leaves it, with the outcomes of some caches.
  std::string folder(const std::string& name, const std::vector<std::string>& specs, const RunRecord& run = made_run(),
                     int samples = 12) const {
    const StoredResults results = made_results(samples);
    Result<Store> store = Store::open(FileSystem::real(), folder_.path(name), run);
    EXPECT_TRUE(store.ok()) << store.status().message();
    for (const StoredTask& task : results.tasks) EXPECT_TRUE(store->add_task(task.task, task.metric).ok());
    for (const SampleRecord& sample : results.samples) {
      std::vector<Outcome> outcomes;
      for (const Outcome& o : results.outcomes) {
        if (o.key == sample.key && std::find(specs.begin(), specs.end(), o.spec) != specs.end()) outcomes.push_back(o);
      }
      EXPECT_TRUE(store->finish_sample(sample, outcomes).ok());
    }
    return folder_.path(name);
  }
  std::string page() const { return folder_.path("report.html"); }

  const std::vector<std::string> kAll = {"full", "kivi:bits=4,group=32,residual=128", "kivi:bits=2,group=32,residual=128"};
  ScratchFolder folder_;
};

TEST_F(Report, WritesOneFileAndSaysSo) {
  const std::string results = folder("out", kAll);
  const Finished f = run({"report", results, "-o", page()});
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.out, "");
  EXPECT_NE(f.err.find("report.html"), std::string::npos);
  EXPECT_TRUE(read_text(page()).ends_with("</html>\n"));
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(page()).parent_path()))
    EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos) << entry.path();
  EXPECT_LT(std::filesystem::file_size(page()), 400'000U);
}

TEST_F(Report, JsonAndPageHoldTheSameRows) {
  const std::string results = folder("out", kAll);
  const Finished f = run({"report", results, "--json", "-o", page()});
  ASSERT_TRUE(is_ok(f));
  const std::string text = read_text(page());
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = text.find(begin) + begin.size();
  EXPECT_EQ(Json::parse(text.substr(at, text.find("</script>", at) - at))["rows"], f.json()["rows"]);
  EXPECT_EQ(f.json()["rows"].size(), 6U);
}

TEST_F(Report, PutsFoldersTogether) {
  const std::string a = folder("a", {kAll[0], kAll[1]});
  RunRecord later = made_run();
  later.started = "2025-02-01T12:00:00Z";
  const std::string b = folder("b", {kAll[2]}, later);
  const Finished both = run({"report", a, b, "--json"});
  ASSERT_TRUE(is_ok(both));
  EXPECT_EQ(both.json()["rows"], run({"report", folder("whole", kAll), "--json"}).json()["rows"]);
  EXPECT_EQ(both.json()["runs"].size(), 2U);
}

TEST_F(Report, RefusesFoldersThatDoNotMatch) {
  const std::string a = folder("a", kAll);
  RunRecord other = made_run();
  other.identity.seed = 7;
  EXPECT_TRUE(is_refused(run({"report", a, folder("b", kAll, other)}), 2, "seed"));
  other = made_run();
  other.identity.model_hash = "feed";
  EXPECT_TRUE(is_refused(run({"report", a, folder("c", kAll, other), "-o", page()}), 2, "feed"));
  other = made_run();
  other.identity.version = "7.7.7";
  EXPECT_TRUE(is_refused(run({"report", a, folder("d", kAll, other)}), 2, "7.7.7"));
  other = made_run();
  other.identity.parameters = "rows=2";
  EXPECT_TRUE(is_refused(run({"report", a, folder("e", kAll, other)}), 2, "rows=2"));
  EXPECT_FALSE(std::filesystem::exists(page()));
}

TEST_F(Report, RefusesWhatIsNoResults) {
  EXPECT_TRUE(is_refused(run({"report", folder_.path("nowhere"), "-o", page()}), 3, "nowhere"));
  std::filesystem::create_directory(folder_.path("empty"));
  EXPECT_TRUE(is_refused(run({"report", folder_.path("empty"), "-o", page()}), 3, "empty"));
  EXPECT_TRUE(is_refused(run({"report", folder("no-sample", kAll, made_run(), 0), "-o", page()}), 3, "no-sample"));

  std::filesystem::create_directory(folder_.path("text"));
  folder_.file("text/results.sqlite", std::string(5000, 'x'));
  EXPECT_TRUE(is_refused(run({"report", folder_.path("text"), "-o", page()}), 3, "results.sqlite"));

  std::filesystem::create_directory(folder_.path("foreign"));
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((folder_.path("foreign") + "/results.sqlite").c_str(), &database), SQLITE_OK);
  sqlite3_exec(database, "CREATE TABLE cakes(name)", nullptr, nullptr, nullptr);
  sqlite3_close(database);
  EXPECT_TRUE(is_refused(run({"report", folder_.path("foreign"), "-o", page()}), 3, "another program"));

  const std::string cut = folder("cut", kAll);
  std::filesystem::resize_file(cut + "/results.sqlite", std::filesystem::file_size(cut + "/results.sqlite") / 2);
  EXPECT_TRUE(is_refused(run({"report", cut, "-o", page()}), 3, "results.sqlite"));
  EXPECT_FALSE(std::filesystem::exists(page()));
}

TEST_F(Report, APageThatCannotBeWrittenLeavesTheOldOne) {
  const std::string results = folder("out", kAll);
  EXPECT_TRUE(is_refused(run({"report", results, "-o", folder_.path("out")}), 2, "folder"));
  EXPECT_TRUE(is_refused(run({"report", results, "-o", "/dev/null"}), 2, "ordinary file"));
  const std::string store = results + "/results.sqlite";
  const std::string before = read_text(store);
  EXPECT_TRUE(is_refused(run({"report", results, "-o", store}), 2, "overwrite"));
  EXPECT_EQ(read_text(store), before);
  EXPECT_TRUE(is_refused(run({"report", results, "-o", folder_.path("nowhere/report.html")}), 5, "nowhere"));

  folder_.file("report.html", "the old page");
  Surroundings small;
  small.file_size = 10'000;
  const Finished f = run({"report", results, "-o", page()}, small);
  EXPECT_NE(f.code, 0);
  EXPECT_TRUE(is_refused(f, f.code, "report.html"));
  EXPECT_EQ(read_text(page()), "the old page");
}

// ---- in a browser ----

std::string browser() {
  const char* path = std::getenv("PATH");
  const std::string places = path == nullptr ? "" : path;
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}) {
    std::size_t begin = 0;
    while (begin <= places.size()) {
      const std::size_t end = std::min(places.find(':', begin), places.size());
      const std::string file = places.substr(begin, end - begin) + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
      begin = end + 1;
    }
  }
  return "";
}

// What a page's scripts leave of it. Frames of files may look into each other, so a page of ours can try the report out.
std::string dom_of(const ScratchFolder& scratch, const std::string& program, const std::string& file) {
  const std::string command = "timeout 60 '" + program +
                              "' --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --allow-file-access-from-files" +
                              " --user-data-dir='" + scratch.path("profile") +
                              "' --virtual-time-budget=4000 --dump-dom 'file://" + file + "' > '" + scratch.path("dom") +
                              "' 2> '" + scratch.path("dom-errors") + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_text(scratch.path("dom-errors"));
  return read_text(scratch.path("dom"));
}

TEST_F(Report, WorksInABrowserAndOnAPhone) {
  const std::string program = browser();
  if (program.empty())
    GTEST_SKIP() << "no Chromium in PATH (Debian package: chromium), so the page was not looked at in a browser";
  ASSERT_TRUE(is_ok(run({"report", folder("out", kAll), "-o", page()})));
  const std::string trial = folder_.file("trial.html", R"html(<!DOCTYPE html><html><body>
<iframe id="f" src="report.html" style="width:390px;height:800px;border:0"></iframe><pre id="found"></pre>
<script>
window.addEventListener('load', () => {
  const inner = document.getElementById('f').contentDocument;
  const root = inner.documentElement;
  const visible = (css) => [...inner.querySelectorAll(css)].filter((e) => e.getClientRects().length > 0).length;
  const found = {};
  const region = inner.querySelector('.answer .scroll');
  const frame = region.getBoundingClientRect();
  const heads = [...region.querySelectorAll('thead th')];
  found.columns = heads.length;
  found.columnsInSight = heads.filter((th) => th.getBoundingClientRect().right <= frame.right + 1).length;
  found.saysThatItScrolls = region.classList.contains('wide') && getComputedStyle(region.querySelector('caption'), '::after').content;
  region.scrollLeft = region.scrollWidth;
  found.lastColumnReached = heads[heads.length - 1].getBoundingClientRect().right <= frame.right + 1;
  found.nameStays = Math.abs(region.querySelector('tbody th').getBoundingClientRect().left - frame.left) < 2;
  found.displays = [...new Set([...region.querySelectorAll('table, tr, th, td')].map((e) => getComputedStyle(e).display))].join(' ');
  found.wide = root.scrollWidth;
  found.filters = !inner.getElementById('filters').hidden;
  found.sections = visible('section.task');
  found.points = visible('#answers ~ * .point, .answer .point');
  const frontier = () => inner.querySelector('.answer .frontier').getAttribute('points').trim().split(' ').length;
  found.frontier = frontier();
  const box = (name, value) => [...inner.querySelectorAll('input')].find((i) => i.name === name && i.value.startsWith(value));
  box('context', '4096').click();
  found.sectionsWithoutOne = visible('section.task');
  box('spec', 'kivi:bits=2').click();
  found.frontierWithoutOne = frontier();
  found.rowsOfHidden = visible('tr[data-spec^="kivi:bits=2"]');
  found.status = inner.getElementById('shown').textContent;
  inner.querySelector('button[type=reset]').click();
  setTimeout(() => {
    found.sectionsAgain = visible('section.task');
    found.focusable = inner.querySelectorAll('.scroll[tabindex="0"]').length;
    document.getElementById('found').textContent = JSON.stringify(found);
  }, 50);
});
</script></body></html>)html");
  const std::string dom = dom_of(folder_, program, trial);
  const std::size_t at = dom.find("<pre id=\"found\">{");
  ASSERT_NE(at, std::string::npos) << dom.substr(0, 3000);
  const std::size_t begin = at + std::string("<pre id=\"found\">").size();
  const Json found = Json::parse(dom.substr(begin, dom.find("</pre>", begin) - begin));
  EXPECT_LE(found["wide"], 390) << "the page scrolls sideways on a phone";
  EXPECT_GE(found["columnsInSight"], 4) << "of " << found["columns"] << ": a table of names and nothing else";
  EXPECT_NE(found["saysThatItScrolls"].dump().find("scroll sideways"), std::string::npos) << found["saysThatItScrolls"];
  EXPECT_EQ(found["lastColumnReached"], true);
  EXPECT_EQ(found["nameStays"], true) << "which cache a row is of must stay in sight";
  EXPECT_EQ(found["displays"], "table table-row table-cell") << "other displays take the table from screen readers";
  EXPECT_EQ(found["filters"], true);
  EXPECT_EQ(found["sections"], 2);
  EXPECT_EQ(found["sectionsWithoutOne"], 1);
  EXPECT_EQ(found["sectionsAgain"], 2);
  EXPECT_GT(found["points"], 0);
  EXPECT_EQ(found["frontier"], 2);  // kivi:bits=2 is smallest; kivi:bits=4 is as good as full and smaller
  EXPECT_EQ(found["frontierWithoutOne"], 1);
  EXPECT_EQ(found["rowsOfHidden"], 0);
  EXPECT_EQ(found["status"], "2 of 5 choices are hidden.");
  EXPECT_GE(found["focusable"], 6);
}

// The planner's choices on a phone, with the frontier through all that could be chosen.
TEST_F(Report, ChoicesFitAPhone) {
  const std::string program = browser();
  if (program.empty())
    GTEST_SKIP() << "no Chromium in PATH (Debian package: chromium), so the page was not looked at in a browser";
  TinyModelOptions options = wide_heads();
  options.context = 8192;
  RunRecord with_model = made_run();
  with_model.identity.model_name = tiny_model(folder_, options);
  with_model.identity.model_hash = model_fingerprint(FileSystem::real(), with_model.identity.model_name).value();
  ASSERT_TRUE(is_ok(run({"report", folder("out", kAll, with_model), "-o", page()})));
  const std::string trial = folder_.file("trial.html", R"html(<!DOCTYPE html><html><body>
<iframe id="f" src="report.html" style="width:390px;height:800px;border:0"></iframe><pre id="found"></pre>
<script>
window.addEventListener('load', () => {
  const inner = document.getElementById('f').contentDocument;
  const visible = (css) => [...inner.querySelectorAll(css)].filter((e) => e.getClientRects().length > 0).length;
  const found = {
    wide: inner.documentElement.scrollWidth,
    kinds: visible('.decision'),
    rows: visible('.decision tbody tr'),
    dots: visible('.decision .dot'),
    frontier: inner.querySelector('.decision .frontier').getAttribute('points').trim().split(' ').length,
  };
  document.getElementById('found').textContent = JSON.stringify(found);
});
</script></body></html>)html");
  const std::string dom = dom_of(folder_, program, trial);
  const std::string mark = "<pre id=\"found\">";
  const std::size_t at = dom.find(mark + "{");
  ASSERT_NE(at, std::string::npos) << dom.substr(0, 3000);
  const Json found = Json::parse(dom.substr(at + mark.size(), dom.find("</pre>", at) - at - mark.size()));
  EXPECT_LE(found["wide"], 390) << "the page scrolls sideways on a phone";
  EXPECT_EQ(found["kinds"], 6);
  EXPECT_EQ(found["rows"], 6 * 2 * 4);  // kinds, lengths, caps
  EXPECT_GT(found["dots"], 20);
  EXPECT_GT(found["frontier"], 3);
}

}  // namespace
}  // namespace kvartet::e2e
