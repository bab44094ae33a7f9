#pragma once
// Style and script of the page.

namespace tessera::report {

extern const char* const kPageStyle;
/// Shows the values under the pointer. Without < and &, so that it is XML as it stands.
extern const char* const kPageScript;
/// Of a live page.
extern const char* const kReloadScript;

}  // namespace tessera::report
