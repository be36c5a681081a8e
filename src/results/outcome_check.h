// Whether stored figures can be: what a stranger's store must pass, and our own before it is written.
#pragma once

#include <string_view>

#include "results/records.h"

namespace kvartet {

// A score in [0, 1], a likelihood that is one, times, rates and counts of this world, and a list of such times between tokens.
// Beyond them, axes have no ticks and sums no meaning. A failed outcome's figures mean nothing and are not looked at.
bool has_possible_figures(const Outcome& outcome);
bool has_possible_figures(const SoloRun& run);

// A list of where the facts of a sample stand.
bool has_possible_depths(const SampleRecord& sample);

// A sample's reference answers are a list of texts, and so are its classes, or "null".
bool has_possible_texts(const SampleRecord& sample);

// ["a", "b"]: JSON texts of valid UTF-8, and no other kind of value.
bool is_list_of_texts(std::string_view json);

// "[1, 2.5]", or nothing at all: what is not known. Each number in [least, most].
bool is_list_of_numbers(std::string_view json, double least, double most);

}  // namespace kvartet
