#!/usr/bin/env python3
"""Second opinion for our ROUGE-L: the Python package `rouge` 1.0.1 on random texts.

    python3 scripts/check_rouge.py            # does the committed fixture still hold what the package says?
    python3 scripts/check_rouge.py --write    # write the fixture anew

Needs `pip install rouge==1.0.1`; says so and exits 0 when it is missing. The C++ test compares our implementation with
the same fixture (src/bench/metrics/testdata/rouge_cases.json).
"""
import argparse
import json
import pathlib
import random
import sys

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "src/bench/metrics/testdata/rouge_cases.json"
WORDS = ["rain", "river", "the", "The", "a", "of", "bridge", "Bridge,", "seven", "7", "mayor", "mayor's", "-", "café", "Ærø",
         "новый", "東京", "!", "e", "mc2"]
GAPS = [" "] * 12 + ["  ", "\n", "\n\n", "\t", ".", ". ", ".\n", " . ", "..", "...", ". . ", "\u00a0", "\u3000"]
HAND_MADE = [
    ("", ""), ("", "a"), ("a", ""), (".", "a"), ("a", "..."), (" ", "a"), (" ", " "), ("\n", "."), ("a b. ", "a b."),
    ("b a", "a b"), ("a b a b", "b a b a"), ("a.b.c", "c.b.a"), ("3.5 of 7", "3. 5 of 7"), ("the the the the", "the cat"),
]


def random_text(rng, most_words):
    text = rng.choice(["", "", " ", "\n", "."])
    for _ in range(rng.randint(0, most_words)):
        text += rng.choice(WORDS) + rng.choice(GAPS)
    return text


def random_cases(rng):
    cases = list(HAND_MADE)
    for most_words in [3] * 30 + [12] * 50 + [80] * 30 + [300] * 4:
        cases.append((random_text(rng, most_words), random_text(rng, most_words)))
    for _ in range(10):  # a reference and a shuffled copy: ties everywhere
        words = [rng.choice(WORDS) for _ in range(20)]
        cases.append((" ".join(rng.sample(words, len(words))), " ".join(words)))
    return cases


def longbench_rouge(rouge, hypothesis, reference):
    try:
        return rouge.get_scores([hypothesis], [reference], avg=True)["rouge-l"]["f"]
    except Exception:  # as LongBench: whatever goes wrong scores 0
        return 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the fixture instead of comparing with it")
    arguments = parser.parse_args()
    try:
        from rouge import Rouge
    except ImportError:
        print("skipped: the Python package rouge is not installed (pip install rouge==1.0.1)")
        return 0

    rouge = Rouge()
    if arguments.write:
        cases = [{"hypothesis": h, "reference": r, "f": longbench_rouge(rouge, h, r)} for h, r in random_cases(random.Random(1))]
        lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
        FIXTURE.parent.mkdir(exist_ok=True)
        FIXTURE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        print(f"wrote {len(cases)} cases to {FIXTURE}")
        return 0

    cases = json.loads(FIXTURE.read_text(encoding="utf-8"))
    wrong = [c for c in cases if abs(longbench_rouge(rouge, c["hypothesis"], c["reference"]) - c["f"]) > 1e-12]
    for case in wrong:
        print("differs:", json.dumps(case, ensure_ascii=False))
    print(f"{len(cases)} cases, {len(wrong)} differ")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
