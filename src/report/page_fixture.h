// Pages made from results, for the tests of the report.
#pragma once

#include <string>

#include "report/page.h"
#include "report/report_fixture.h"

namespace kvartet {

inline std::string page_of(const StoredResults& results, const PageRequest& request = {}) {
  return report_page(results, report_rows(results), request);
}

}  // namespace kvartet
