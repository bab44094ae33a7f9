#pragma once
// One exchange over HTTP, through libcurl.
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::hub {

/// What may pass if one waits: no connection, a connection that was cut, a server that says so.
class Unavailable : public Error {
 public:
  explicit Unavailable(const std::string& message, std::chrono::milliseconds wait = {}) : Error(message), wait(wait) {}
  std::chrono::milliseconds wait;  // that the server asked for; 0: it did not
  bool is_unknown_host = false;    // no name server knows it, or none is reached
};

/// A part of a file, as the body of a PUT.
struct FilePart {
  std::string file;
  std::int64_t begin = 0, size = 0;
};

struct Request {
  std::string method = "GET", url;
  std::vector<std::string> headers = {};  // "Name: value"
  std::string body = {};                  // of a POST
  FilePart part = {};                     // of a PUT
};

struct Response {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // what no sink took

  /// Empty where there is none.
  std::string header(const std::string& name) const;
  /// What the server says of an error, as " (it says: ...)" in one line of plain characters; empty: nothing.
  std::string said() const;
};

/// Takes a piece of the body of an answer with status 2xx, whose head it gets. What it throws ends the exchange.
using Sink = std::function<void(const Response& head, std::string_view piece)>;

/// A connection that is kept between exchanges. For one thread.
class Http {
 public:
  explicit Http(std::chrono::seconds stall);
  /// Redirects are not followed. Unavailable: no answer, or half of one. DataError: a certificate that does not hold, a
  /// body without a sink that is larger than 64 MiB.
  Response exchange(const Request& request, const Sink& sink = {});

 private:
  struct Close {
    void operator()(void* handle) const;
  };
  std::unique_ptr<void, Close> handle_;
  std::chrono::seconds stall_;
};

/// "https://host:443": who is talked to. DataError for what is neither http nor https.
std::string origin_of(const std::string& url);
/// What a Location header of `url`'s answer leads to.
std::string redirected(const std::string& url, const std::string& location);
/// As a part of an address; a path keeps its slashes.
std::string url_path(std::string_view path);
std::string url_word(std::string_view word);

}  // namespace tessera::hub
