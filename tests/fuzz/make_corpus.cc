// Writes the first files of the fuzzers' corpus: sound inputs of every form and a few with one defect, all made by the tests'
// own small writers. Files of findings are added by hand and stay.
//
//   build/release/fuzz_corpus tests/fuzz/corpus
#include <sqlite3.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "bench/metrics/metric.h"
#include "bench/tasks/longbench.h"
#include "bench/tasks/task.h"
#include "cache/spec.h"
#include "model/tiny_model.h"
#include "model/vocabulary_fixture.h"
#include "results/store.h"

namespace kvartet::fuzz {
namespace {

namespace fs = std::filesystem;

class Corpus {
 public:
  Corpus(const std::string& root, const std::string& target) : folder_(root + "/" + target) { fs::create_directories(folder_); }
  void add(const std::string& name, const std::string& bytes) const {
    std::ofstream file(folder_ + "/" + name, std::ios::binary);
    file << bytes;
    if (!file.flush().good()) std::fprintf(stderr, "cannot write %s/%s\n", folder_.c_str(), name.c_str());
  }

 private:
  std::string folder_;
};

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// --- model files

TinyModelOptions smallest(const std::string& architecture) {
  TinyModelOptions o;
  o.architecture = architecture;
  o.layers = 1;
  o.hidden = 32;
  o.ffn = 32;
  o.heads = 2;
  o.kv_heads = 1;
  o.tied = true;
  o.weights = TinyWeights::kQ4_0;
  if (architecture == "gemma3") o.window = 64;
  return o;
}

// A dozen tokens: what libllama does with a vocabulary shows on a small one too.
VocabularyFile few_tokens() {
  VocabularyFile file;
  for (const char* text : {"a", "b", "c", "d", "e", "ab", "cd", "\xC4\xA0", "\xC4\x8A"}) file.add(text, kNormalType);
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) file.add(text, kControlType);
  file.merges = {"a b", "c d"};
  file.ids["tokenizer.ggml.bos_token_id"] = 11;
  file.ids["tokenizer.ggml.eos_token_id"] = 10;
  file.flags["tokenizer.ggml.add_bos_token"] = true;
  file.chat_template = "<|im_start|>";
  return file;
}

VocabularyFile few_pieces() {
  VocabularyFile file;
  file.model = "llama";
  file.pre.clear();
  file.merges.reset();
  file.add("<unk>", kUnknownType);
  file.add("<s>", kControlType);
  file.add("</s>", kControlType);
  for (const char* text : {"<0x0A>", "<0x20>", "<0x61>"}) file.add(text, kByteType);
  for (const char* text : {"\xE2\x96\x81", "a", "b", "ab",
                           "\xE2\x96\x81"
                           "a"})
    file.add(text, kNormalType);
  for (std::size_t i = 0; i < file.tokens.size(); ++i) file.scores.push_back(-static_cast<float>(i));
  file.flags["tokenizer.ggml.add_bos_token"] = true;
  file.chat_template = "[INST] <<SYS>> [/INST]";
  return file;
}

void write_gguf(const std::string& root) {
  const Corpus corpus(root, "gguf");
  const std::string scratch = (fs::temp_directory_path() / "kvartet_corpus.gguf").string();
  for (const char* architecture : {"llama", "qwen2", "qwen3", "qwen3moe", "gemma3"}) {
    const Status written = write_tiny_model(scratch, smallest(architecture));
    if (!written.ok()) std::fprintf(stderr, "%s\n", written.message().c_str());
    corpus.add(architecture, read_bytes(scratch));
  }
  fs::remove(scratch);
  const std::string tokens = read_bytes(few_tokens().write("corpus-tokens"));
  corpus.add("few_tokens", tokens);
  corpus.add("few_pieces", read_bytes(few_pieces().write("corpus-pieces")));
  corpus.add("cut", tokens.substr(0, tokens.size() * 2 / 3));
  corpus.add("empty", "");
  VocabularyFile damaged = few_tokens();
  damaged.tokens[3] = damaged.tokens[1];
  corpus.add("duplicate_token", read_bytes(damaged.write("corpus-duplicate")));
  damaged = few_tokens();
  damaged.ids["tokenizer.ggml.eos_token_id"] = 77;
  corpus.add("end_out_of_range", read_bytes(damaged.write("corpus-end")));
  damaged = few_pieces();
  damaged.tokens[4] = "<0";
  corpus.add("byte_without_name", read_bytes(damaged.write("corpus-byte")));
  damaged = few_tokens();
  damaged.ids["general.alignment"] = 64;  // ggml's writer takes no other than a power of two
  std::string aligned = read_bytes(damaged.write("corpus-alignment"));
  aligned[aligned.find("general.alignment") + std::string("general.alignment").size() + 4] = 3;  // behind the type
  corpus.add("alignment", aligned);
}

// --- specs

void write_specs(const std::string& root) {
  const Corpus corpus(root, "spec");
  for (const MethodInfo& method : methods()) corpus.add(method.name, parse_spec(method.name)->canonical);
  const char* const others[] = {"snapkv:budget=0.25+kivi:bits=4/2",
                                "q8_0/kivi:bits=2",
                                "kivi:bits=4,keep=0-1.28-29",
                                "turboquant:bits=2.5,variant=prod",
                                "snapkv:budget=99999999999999999999",
                                "kivy",
                                "kivi:bits=4,bits=2",
                                "+",
                                "select:budget=64,tier=disk",
                                "needle",
                                "multineedle:k=4",
                                "longbench/hotpotqa",
                                "longbench/dureader",
                                "ruler/vt",
                                "a/b.jsonl:max_new=64"};
  int number = 0;
  for (const char* text : others) corpus.add("more_" + std::to_string(++number), text);
}

// --- JSON lines

void write_json_lines(const std::string& root) {
  const Corpus corpus(root, "json_lines");
  const std::string record =
      R"({"_id": "q1", "input": "Which?", "context": "The door is green.", "answers": ["green", "Green"], "all_classes": ["green", "red"], "length": 4})";
  const std::string prediction =
      R"({"id": 1, "pred": "It is green.\nYes", "answers": ["green"], "all_classes": ["green", "red"], "length": 4100})";
  const auto chosen = [](char reader, std::size_t index) {
    std::string bytes(1, reader);
    bytes += static_cast<char>(index);
    return bytes;
  };
  corpus.add("fields", "r " + record + "\n" + prediction + "\n");
  corpus.add("dirty",
             "r \xEF\xBB\xBF" + record +
                 "\r\n\r\n{\"answers\": null}\n[1]\n{\"answers\": [1e999]}\n{\"a\":\"\xff\"}\n{\"answers\": {\"b\": [[]]}}");
  corpus.add("utf16", std::string("r \xFF\xFE{\0}\0", 8));
  for (std::size_t m = 0; m < metrics().size(); ++m) {
    const std::string name(metrics()[m].name);
    const bool json = name == "json" || name == "structured" || name.starts_with("text2json");
    const std::string answers = json                  ? R"(["[{\"name\": \"Ada\", \"age\": 3}]"])"
                                : name == "retrieval" ? R"(["Paragraph 3"])"
                                                      : R"(["corn: 12", "Paragraph 3 of 3"])";
    const std::string text =
        R"({"input": "", "context": "c", "pred": "[{\"name\": \"Ada\"}] corn: 12 3", "all_classes": ["corn"], "answers": )" +
        answers + "}\n";
    corpus.add("own_" + name, chosen('o', m) + text);
    corpus.add("pred_" + name, chosen('p', longbench_sets().size() + m) + text);
  }
  for (std::size_t s = 0; s < longbench_sets().size(); s += 5) {
    corpus.add("longbench_" + std::to_string(s), chosen('l', s) + record);
    corpus.add("longbench_pred_" + std::to_string(s), chosen('p', s) + prediction);
  }
  corpus.add("prompts", R"(c0{"qasper": "Read {context} and answer: {input}"})");
  corpus.add("lengths", R"(c1{"qasper": 128})");
  corpus.add("needles",
             R"(d {"needle": "n", "retrieval_question": "q", "arg1": "a", "arg2": "b", "language": "English", "text": "t"})");
  corpus.add(
      "loong",
      R"(d {"type": "paper", "language": "en", "question": "q", "instruction": "i", "prompt_template": "{docs}", "answer": {"a": [1]}, "doc": ["d"]})");
  corpus.add("longproc", R"(d [{"html_path": "a.html", "gt": "x\ty"}])");
}

// --- results

void write_results(const std::string& root) {
  const Corpus corpus(root, "results");
  const std::string sound =
      "r\nt\nc\nc|ordinal=i2|spec=kivi:bits=4\ns\ns|sample=b|ordinal=i1\no\no|sample=b|score=f0\no|spec=kivi:bits=4|score=f0\n"
      "o|spec=kivi:bits=4|sample=b|error=out of memory\n";
  corpus.add("rows", sound);
  corpus.add("another_model", "r|model_hash=x\nr|run=i2|process=i8\n" + sound);
  corpus.add("endless_figures", sound + "o|spec=q8_0|score=f1e999\n");
  corpus.add("wrong_types",
             "r|cores=many\nt\nc\ns|context=long|answers=i5|depths=[[]]\no|context=long|token_gaps_ms=[1,\"x\"]|run=n\n");
  corpus.add("damaged_lists", "r\nt\nc\ns\no\na|token_gaps_ms=[1,2\n");
  corpus.add("huge",
             "r\nt\nc\ns|prompt_tokens=i9223372036854775807\no|f16_bytes=i9223372036854775807|allocated_bytes=i1|rows_kept="
             "f1e300|ttft_s=f1e300\n");
  corpus.add("markup",
             "r|model_name=<script>\nt|task=</script>|metric=f1\nc\ns|task=</script>|question=<b>&\no|task=</"
             "script>|prediction=\xff<!--\n");

  // One real store, with the smallest pages so that it stays small.
  const std::string folder = (fs::temp_directory_path() / "kvartet_corpus_store").string();
  fs::remove_all(folder);
  {
    RunRecord run;
    run.identity = {
        .model_hash = "h", .model_name = "tiny", .model_shape = "2 layers", .seed = 1, .parameters = "p", .version = "0.1.0"};
    run.machine = {.cpu = "c", .cores = 2, .memory_bytes = 1000, .compiler = "g++"};
    run.started = "2025-01-31T12:00:00Z";
    Result<Store> store = Store::open(FileSystem::real(), folder, run);
    SampleRecord sample;
    sample.key = {"needle", 900, "a"};
    sample.answers_json = "[\"42\"]";
    Outcome outcome;
    outcome.key = sample.key;
    outcome.spec = "full";
    outcome.prediction = "42";
    outcome.score = 1;
    const bool made =
        store.ok() && store->add_task("needle", "contains").ok() && store->finish_sample(sample, {&outcome, 1}).ok();
    if (!made) std::fprintf(stderr, "cannot make a store in %s\n", folder.c_str());
  }
  const std::string path = folder + "/" + kStoreFile;
  sqlite3* database = nullptr;
  sqlite3_open(path.c_str(), &database);
  sqlite3_exec(database, "PRAGMA page_size = 512; VACUUM", nullptr, nullptr, nullptr);
  const std::string store = read_bytes((sqlite3_close(database), path));
  corpus.add("store", store);
  corpus.add("half_a_store", store.substr(0, store.size() / 2));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace kvartet::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_corpus FOLDER\n");
    return 2;
  }
  const std::string root = argv[1];
  kvartet::fuzz::write_gguf(root);
  kvartet::fuzz::write_specs(root);
  kvartet::fuzz::write_json_lines(root);
  kvartet::fuzz::write_results(root);
  return 0;
}
