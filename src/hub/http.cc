#include "hub/http.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <optional>

#include "base/open_file.h"
#include "hub/curl.h"

namespace tessera::hub {
namespace {

constexpr std::size_t kLargestBody = 64 << 20, kLargestHead = 1 << 20;
constexpr long kConnectSeconds = 10, kBufferBytes = 256 << 10;

struct Exchange {
  Response response;
  const Sink* sink = nullptr;
  std::size_t head_bytes = 0;
  std::exception_ptr failure;

  bool fail(std::exception_ptr why) {
    failure = std::move(why);
    return false;
  }
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::size_t on_header(const char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  std::string line(data, size * count);
  exchange.head_bytes += line.size();
  if (exchange.head_bytes > kLargestHead) return 0;
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  if (line.starts_with("HTTP/")) {  // of a next answer: "100 Continue" comes before the real one
    exchange.response = {};
    const auto space = line.find(' ');
    if (space != std::string::npos) exchange.response.status = std::atoi(line.c_str() + space);
  } else if (const auto colon = line.find(':'); colon != std::string::npos) {
    const auto value = line.find_first_not_of(" \t", colon + 1);
    exchange.response.headers[lower(line.substr(0, colon))] = value == std::string::npos ? "" : line.substr(value);
  }
  return size * count;
}

bool take(Exchange& exchange, std::string_view piece) {
  Response& response = exchange.response;
  try {
    if (*exchange.sink && response.status / 100 == 2) {
      (*exchange.sink)(response, piece);
    } else if (response.body.size() + piece.size() > kLargestBody) {
      throw DataError(fmt::format("the answer is larger than {} MiB", kLargestBody >> 20));
    } else {
      response.body.append(piece);
    }
    return true;
  } catch (...) {
    return exchange.fail(std::current_exception());
  }
}

std::size_t on_body(const char* data, std::size_t size, std::size_t count, void* user) {
  return take(*static_cast<Exchange*>(user), {data, size * count}) ? size * count : 0;
}

class PartReader {
 public:
  explicit PartReader(const FilePart& part) : part_(part), file_(part.file) {}
  std::size_t read(char* into, std::size_t size) {
    const auto wanted = std::min(static_cast<std::int64_t>(size), part_.size - done_);
    const ssize_t n = ::pread(file_.descriptor(), into, static_cast<std::size_t>(wanted), part_.begin + done_);
    if (n < 0) return CURL_READFUNC_ABORT;
    done_ += n;
    return static_cast<std::size_t>(n);
  }

 private:
  const FilePart& part_;
  OpenFile file_;
  std::int64_t done_ = 0;
};

std::size_t on_read(char* into, std::size_t size, std::size_t count, void* user) {
  return static_cast<PartReader*>(user)->read(into, size * count);
}

void* new_handle() {
  void* handle = curl().easy_init();
  TESSERA_CHECK(handle != nullptr, "libcurl gives no handle");
  return handle;
}

bool is_permanent(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
         code == CURLE_SSL_CACERT_BADFILE || code == CURLE_OUT_OF_MEMORY || code == CURLE_COULDNT_RESOLVE_PROXY;
}

class Url {
 public:
  explicit Url(const std::string& text) : url_(curl().url()) {
    if (curl().url_set(url_, CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
      curl().url_cleanup(url_);
      throw DataError(fmt::format("'{}' is no address of a server", text));
    }
  }
  ~Url() { curl().url_cleanup(url_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  void follow(const std::string& location) {
    if (curl().url_set(url_, CURLUPART_URL, location.c_str(), 0) != CURLUE_OK)
      throw DataError(fmt::format("the server redirects to '{}', which is no address", location));
  }
  std::string part(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl().url_get(url_, part, &text, flags) != CURLUE_OK) return {};
    std::string out(text);
    curl().free(text);
    return out;
  }

 private:
  CURLU* url_;
};

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || kept.find(c) != std::string_view::npos)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace

std::string Response::header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? "" : it->second;
}

std::string Response::said() const {
  std::string text = header("x-error-message").substr(0, 200);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text.empty() ? "" : " (it says: " + text + ")";
}

void Http::Close::operator()(void* handle) const {
  curl().easy_cleanup(handle);
}

Http::Http(std::chrono::seconds stall) : handle_(new_handle()), stall_(stall) {}

Response Http::exchange(const Request& request, const Sink& sink) {
  const Curl& c = curl();
  void* handle = handle_.get();
  c.easy_reset(handle);  // options go, connections stay
  Exchange exchange;
  exchange.sink = &sink;
  char reason[CURL_ERROR_SIZE] = "";
  curl_slist* headers = nullptr;
  for (const auto& header : request.headers) headers = c.slist_append(headers, header.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> free_headers(headers, c.slist_free_all);
  c.easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  c.easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
  c.easy_setopt(handle, CURLOPT_USERAGENT, "tessera");
  c.easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  c.easy_setopt(handle, CURLOPT_BUFFERSIZE, kBufferBytes);
  c.easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  c.easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  c.easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(stall_.count()));
  c.easy_setopt(handle, CURLOPT_ERRORBUFFER, reason);
  c.easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  c.easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
  c.easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  c.easy_setopt(handle, CURLOPT_WRITEDATA, &exchange);
  if (request.method == "HEAD") c.easy_setopt(handle, CURLOPT_NOBODY, 1L);
  if (request.method == "POST") {
    c.easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    c.easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.data());
  }
  std::optional<PartReader> reader;
  if (request.method == "PUT") {
    c.easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    c.easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.part.size));
    c.easy_setopt(handle, CURLOPT_READFUNCTION, on_read);
    c.easy_setopt(handle, CURLOPT_READDATA, &reader.emplace(request.part));
  }
  const CURLcode code = c.easy_perform(handle);
  if (exchange.failure) std::rethrow_exception(exchange.failure);
  if (code == CURLE_OK) return std::move(exchange.response);
  const std::string message =
      fmt::format("{}: {}", origin_of(request.url), *reason != 0 ? reason : c.easy_strerror(code));
  if (is_permanent(code)) throw DataError(message);
  Unavailable failure(message);
  failure.is_unknown_host = code == CURLE_COULDNT_RESOLVE_HOST;
  throw failure;
}

std::string origin_of(const std::string& url) {
  const Url parsed(url);
  const std::string scheme = parsed.part(CURLUPART_SCHEME);
  if (scheme != "https" && scheme != "http") throw DataError(fmt::format("'{}' is no address of a web server", url));
  return scheme + "://" + lower(parsed.part(CURLUPART_HOST)) + ":" + parsed.part(CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

std::string redirected(const std::string& url, const std::string& location) {
  Url parsed(url);
  parsed.follow(location);
  return parsed.part(CURLUPART_URL);
}

std::string url_path(std::string_view path) {
  return escaped(path, "-_.~/");
}

std::string url_word(std::string_view word) {
  return escaped(word, "-_.~");
}

}  // namespace tessera::hub
