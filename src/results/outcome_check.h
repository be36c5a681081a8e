// Whether the figures of an outcome can be: what a stranger's store must pass, and our own before it is written.
#pragma once

#include "results/records.h"

namespace kvartet {

// A score in [0, 1], a likelihood that is one, times, rates and counts of this world. Beyond them, axes have no ticks and sums no
// meaning. A failed outcome's figures mean nothing and are not looked at.
bool has_possible_figures(const Outcome& outcome);

}  // namespace kvartet
