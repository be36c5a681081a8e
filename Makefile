# The way in: `make demo` shows the product, `make test` judges it. Both install what is missing, and only that.
.DEFAULT_GOAL := build
.PHONY: setup models program build demo test test-full fuzz format tidy clean

TEST_JOBS ?= 2
SECONDS ?= 60
CLANG_FORMAT ?= clang-format-19
CLANG_TIDY ?= clang-tidy-19

setup:            # Debian packages, .venv, model, essays
	@scripts/setup

models: setup     # a second real model, Gemma 3 of 270 M (240 MB), for fidelity tables and slow tests
	@scripts/models

program: setup    # build/release/kvartet alone
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target kvartet

build: setup      # the program and every test
	@cmake --preset release >/dev/null
	@cmake --build --preset release

demo: program     # the benchmark of the README, into results/demo
	@scripts/demo

test: build       # the quick set: at most 10 minutes on two cores after building
	@ctest --preset release -j $(TEST_JOBS)

test-full: test   # the slow oracle tests, instruction counts (needs valgrind), and the quick set under three sanitizers
	@KVARTET_SLOW=1 ctest --preset release -R Oracle
	@cmake --build --preset release --target kernel_instructions
	@bench/instructions
	@cmake --preset asan >/dev/null
	@cmake --build --preset asan
	@ctest --preset asan -j $(TEST_JOBS)
	@cmake --preset tsan >/dev/null
	@cmake --build --preset tsan
	@ctest --preset tsan -j $(TEST_JOBS)

fuzz: setup       # the fuzzers of every parser for SECONDS each, all at once; needs clang++-19 and libclang-rt-19-dev
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz
	@scripts/fuzz $(SECONDS)

format:           # rewrites the sources in the project's style
	@git ls-files --cached --others --exclude-standard 'src/*.cc' 'src/*.h' 'tests/*.cc' 'tests/*.h' | xargs $(CLANG_FORMAT) -i

tidy: build       # clang-tidy over the library and the program
	@git ls-files --cached --others --exclude-standard 'src/*.cc' | grep -vE '_(test|bench)\.cc$$' | xargs -P 2 -n 4 $(CLANG_TIDY) --quiet -p build/release

clean:            # builds only; setup's .venv and models/ stay
	@rm -rf build
