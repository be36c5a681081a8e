#!/usr/bin/env python3
"""Writes src/bench/metrics/unicode_tables.cc: what Python's str methods and re say about every code point.

LongBench's metrics are Python; scores agree only if lower-casing, white space and word borders do. The tables are read
off the running Python, so they are exact for its Unicode version. Run from the project's root:

    python3 scripts/make_unicode_tables.py > src/bench/metrics/unicode_tables.cc
"""
import re
import unicodedata

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def ranges(predicate):
    found = []
    for c in POINTS:
        if not predicate(chr(c)):
            continue
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def sigma_becomes_final(before):
    return (before + "\u03a3").lower().endswith("\u03c2")


def sigma_ignorable(ch):  # skipped when Python looks for the letter in front of a capital sigma
    return sigma_becomes_final("a" + ch) and not sigma_becomes_final(ch)


def lower_runs():
    """Runs (first, last, step, delta): lower(c) = c + delta for c = first, first + step, ..., last."""
    runs = []
    for c in POINTS:
        low = chr(c).lower()
        if low == chr(c) or len(low) != 1:  # only U+0130 has two: in the code
            assert len(low) == 1 or c == 0x130
            continue
        delta = ord(low) - c
        if runs and runs[-1][3] == delta:
            first, last, step, _ = runs[-1]
            gap = c - last
            if first == last and gap in (1, 2):
                runs[-1] = [first, c, gap, delta]
                continue
            if first != last and gap == step:
                runs[-1][1] = c
                continue
        runs.append([c, c, 1, delta])
    return runs


def print_ranges(name, comment, found):
    print(f"// {comment}")
    print(f"const CodePointRange {name}_data[] = {{")
    for at in range(0, len(found), 6):
        print("    " + " ".join(f"{{0x{a:x}, 0x{b:x}}}," for a, b in found[at:at + 6]))
    print("};")
    print(f"const std::span<const CodePointRange> {name} = {name}_data;\n")


def fingerprint():
    """FNV-1a over what Python says of each code point: the test computes the same from the tables."""
    h = 0xCBF29CE484222325
    for c in POINTS:
        ch = chr(c)
        flags = ch.isspace() * 1 + bool(re.match(r"\w", ch)) * 2 + bool(re.match(r"\d", ch)) * 4
        flags += sigma_becomes_final(ch) * 8 + sigma_becomes_final("a" + ch) * 16
        for value in [flags] + [ord(x) for x in ch.lower()]:
            h = ((h ^ value) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def main():
    print(f"// Written by scripts/make_unicode_tables.py; Unicode {unicodedata.unidata_version}. Do not edit.")
    print("// clang-format off")
    print('#include "bench/metrics/unicode_tables.h"\n')
    print("namespace kvartet::unicode_tables {\n")
    print_ranges("kSpace", "str.isspace()", ranges(str.isspace))
    print_ranges("kWord", r"\w of re", ranges(lambda ch: bool(re.match(r"\w", ch))))
    print_ranges("kDigit", r"\d of re", ranges(lambda ch: bool(re.match(r"\d", ch))))
    print_ranges("kSigmaIgnorable", "skipped around a capital sigma", ranges(sigma_ignorable))
    print_ranges("kSigmaCased", "letters after which a capital sigma is final",
                 ranges(lambda ch: sigma_becomes_final(ch) and not sigma_ignorable(ch)))
    print("// str.lower(), one code point to one")
    print("const LowerRun kLower_data[] = {")
    runs = lower_runs()
    for at in range(0, len(runs), 4):
        print("    " + " ".join(f"{{0x{a:x}, 0x{b:x}, {s}, {d}}}," for a, b, s, d in runs[at:at + 4]))
    print("};")
    print("const std::span<const LowerRun> kLower = kLower_data;\n")
    print(f"const std::uint64_t kFingerprint = 0x{fingerprint():016x}ULL;\n")
    print("}  // namespace kvartet::unicode_tables")


if __name__ == "__main__":
    main()
