#pragma once
// One HTML file that shows runs: curves, memory, time, answers, settings. It loads nothing: style, script and values
// are in it, and an XML parser reads it.
#include <string>
#include <vector>

#include "report/run_record.h"

namespace tessera::report {

enum class PageKind { kFinal, kLive };  // kLive: a browser reads it again from time to time

std::string html_page(const std::vector<RunRecord>& runs, PageKind kind = PageKind::kFinal);

}  // namespace tessera::report
