// The short name of how one side is written, for rates and tables: "f16", "q8_0", "kivi4.32".
#pragma once

#include <string>

#include "quantize/tile_format.h"

namespace kvartet {

std::string format_label(const FormatRequest& request);

}  // namespace kvartet
