#include "hub/curl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw DataError(fmt::format("libcurl.so.4 lacks {}; install a newer one (7.62)", name));
}

Curl load() {
  void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw DataError(
        fmt::format("libcurl is needed to download, and cannot be loaded ({}); install it (libcurl4 on Debian), "
                    "or name a folder",
                    ::dlerror()));
  Curl out{};
  find(library, "curl_global_init", out.global_init);
  find(library, "curl_easy_init", out.easy_init);
  find(library, "curl_easy_setopt", out.easy_setopt);
  find(library, "curl_easy_perform", out.easy_perform);
  find(library, "curl_easy_reset", out.easy_reset);
  find(library, "curl_easy_cleanup", out.easy_cleanup);
  find(library, "curl_easy_strerror", out.easy_strerror);
  find(library, "curl_slist_append", out.slist_append);
  find(library, "curl_slist_free_all", out.slist_free_all);
  find(library, "curl_url", out.url);
  find(library, "curl_url_set", out.url_set);
  find(library, "curl_url_get", out.url_get);
  find(library, "curl_url_cleanup", out.url_cleanup);
  find(library, "curl_free", out.free);
  out.global_init(CURL_GLOBAL_DEFAULT);
  return out;
}

}  // namespace

const Curl& curl() {
  static const Curl loaded = load();
  return loaded;
}

}  // namespace tessera::hub
