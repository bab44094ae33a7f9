#include "hub/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>

#include "base/log.h"

namespace tessera::hub {
namespace {

constexpr int kMostRedirects = 10;
constexpr std::int64_t kLargestFile = std::int64_t{1} << 42;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t out = 0;
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, out);
  return parsed.ec == std::errc() && parsed.ptr == end && out >= 0 ? std::optional(out) : std::nullopt;
}

/// Retry-After in seconds; as a date it is left to our own waits.
std::chrono::milliseconds asked_pause(const Response& response) {
  constexpr std::int64_t kDay = 86'400;
  return std::chrono::seconds(std::min(number(response.header("retry-after")).value_or(0), kDay));
}

std::string without_weak_marks(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  etag.erase(std::remove(etag.begin(), etag.end(), '"'), etag.end());
  return etag;
}

std::string page_of(const Settings& settings, const RepositoryName& name) {
  return settings.endpoint + (name.kind == Kind::kDataset ? "/datasets/" : "/") + name.id;
}

const char* kind_word(const RepositoryName& name) {
  return name.kind == Kind::kDataset ? "data set" : "model";
}

[[noreturn]] void refuse(const Response& response, const RepositoryName& name, const std::string& what,
                         const Settings& settings) {
  const std::string code = response.header("x-error-code"), page = page_of(settings, name);
  const bool has_token = !settings.token.empty();
  const std::string token =
      has_token ? "the token that is set (HF_TOKEN or its file) may not read it" : "give a token in HF_TOKEN";
  std::string message;
  if (code == "GatedRepo" || (response.status == 403 && code.empty())) {
    message =
        fmt::format("{} is for those alone who accepted its terms: accept them at {}, and {}", what, page,
                    has_token ? "see to it that the token in HF_TOKEN is of that account and may read it" : token);
  } else if (code == "RevisionNotFound") {
    message = fmt::format("the {} '{}' has no revision '{}' at {}", kind_word(name), name.id, name.revision, page);
  } else if (response.status == 404 && code == "EntryNotFound") {
    message = fmt::format("{} does not exist at {}", what, page);
  } else if (response.status == 404 || code == "RepoNotFound" || response.status == 401) {
    message = fmt::format(
        "'{}' is neither a file or folder here nor a {} at {}; if that is private or for those alone who accepted its "
        "terms, {}",
        name.id, kind_word(name), settings.endpoint, token);
  } else {
    throw DataError(
        fmt::format("{}: {} answers with status {}{}", what, settings.endpoint, response.status, response.said()),
        name.id);
  }
  throw Refused(message + response.said(), name.id);
}

[[noreturn]] void no_hub(const Settings& settings, const std::string& what) {
  throw DataError(
      fmt::format("{} does not answer as a Hub does: {}; see HF_ENDPOINT and the proxy", settings.endpoint, what));
}

}  // namespace

Client::Client(const Settings& settings)
    : settings_(settings), origin_(origin_of(settings.endpoint)), http_(settings.stall) {}

Response Client::send(Request request, const Sink& sink) {
  for (int hop = 0; hop < kMostRedirects; ++hop) {
    Request now = request;
    const std::string origin = origin_of(now.url);
    now.headers.emplace_back("Accept-Encoding: identity");
    if (origin == origin_ && !settings_.token.empty())
      now.headers.push_back("Authorization: Bearer " + settings_.token);
    Response response = http_.exchange(now, sink);
    hide_token(response);
    if (response.status == 429 || response.status >= 500)
      throw Unavailable(fmt::format("{} answers with status {}{}", origin, response.status, response.said()),
                        asked_pause(response));
    const std::string location = response.header("location");
    if (!is_redirect(response.status) || location.empty()) return response;
    request.url = redirected(request.url, location);
    const std::string next = origin_of(request.url);
    if (origin.starts_with("https:") && !next.starts_with("https:"))
      throw DataError(fmt::format("{} redirects to {}, which is not encrypted", origin, next));
    if (request.method == "HEAD" && next != origin) return response;  // of a file that lies elsewhere this says all
  }
  throw DataError(fmt::format("{}: more than {} redirects, one after the other", settings_.endpoint, kMostRedirects));
}

/// A server may say in an error what it was sent.
void Client::hide_token(Response& response) const {
  const auto said = response.headers.find("x-error-message");
  if (said == response.headers.end() || settings_.token.empty()) return;
  constexpr std::string_view kInstead = "(token)";
  std::string& text = said->second;
  for (std::size_t at = 0; (at = text.find(settings_.token, at)) != std::string::npos; at += kInstead.size())
    text.replace(at, settings_.token.size(), kInstead);
}

Response Client::send_again(const Request& request, Question question) {
  for (Tries tries(settings_);;) {
    try {
      return send(request);
    } catch (const Unavailable& failure) {
      if (failure.is_unknown_host && question == Question::kFirst) throw;
      tries.wait_after(failure);
    }
  }
}

Listing Client::list(const RepositoryName& name) {
  const char* kind = name.kind == Kind::kDataset ? "datasets" : "models";
  const Response response = send_again(
      {.url = fmt::format("{}/api/{}/{}/revision/{}", settings_.endpoint, kind, name.id, url_word(name.revision))},
      Question::kFirst);
  if (response.status != 200) refuse(response, name, fmt::format("the {} '{}'", kind_word(name), name.id), settings_);
  try {
    return parse_listing(response.body);
  } catch (const DataError& wrong) {
    no_hub(settings_, fmt::format("'{}': {}", name.id, wrong.what()));
  }
}

std::string Client::file_url(const RepositoryName& name, const std::string& commit, const std::string& file) const {
  return fmt::format("{}/resolve/{}/{}", page_of(settings_, name), commit, url_path(file));
}

RemoteFile Client::describe(const RepositoryName& name, const std::string& commit, const std::string& file) {
  const Response response = send_again({.method = "HEAD", .url = file_url(name, commit, file)});
  const std::string what = fmt::format("'{}' of '{}'", file, name.id);
  if (response.status != 200 && !is_redirect(response.status)) refuse(response, name, what, settings_);
  const auto either = [&](const char* first, const char* second) {
    const std::string value = response.header(first);
    return value.empty() ? response.header(second) : value;
  };
  RemoteFile out{.path = file, .etag = without_weak_marks(either("x-linked-etag", "etag"))};
  if (!is_safe_etag(out.etag)) no_hub(settings_, what + " has no etag that can name a file");
  const auto size = number(either("x-linked-size", "content-length"));
  if (!size || *size > kLargestFile) no_hub(settings_, what + " has no size, or one beyond 4 TiB");
  out.size_bytes = *size;
  const std::string of = response.header("x-repo-commit");
  if (!of.empty() && of != commit) no_hub(settings_, what + " is of another commit than was asked for");
  return out;
}

void Client::download(const RepositoryName& name, const std::string& commit, const std::string& file,
                      std::int64_t begin, const Sink& sink) {
  Request request{.url = file_url(name, commit, file)};
  if (begin > 0) request.headers.push_back(fmt::format("Range: bytes={}-", begin));
  const Response response = send(request, sink);
  if (response.status != 200 && response.status != 206)
    refuse(response, name, fmt::format("'{}' of '{}'", file, name.id), settings_);
}

void Tries::wait_after(const Unavailable& failure) {
  const auto own = settings_.first_wait * (1 << done_);
  ++done_;
  if (failure.wait > settings_.longest_wait)
    throw Unavailable(fmt::format("{}; it asks to come back in {} seconds", failure.what(),
                                  std::chrono::duration_cast<std::chrono::seconds>(failure.wait).count()));
  if (done_ >= settings_.tries) throw Unavailable(fmt::format("{} (tried {} times)", failure.what(), done_));
  const auto wait = std::max(own, failure.wait);
  if (wait >= std::chrono::seconds(1))
    log_info(
        fmt::format("{}; trying again in {} s", failure.what(), std::chrono::ceil<std::chrono::seconds>(wait).count()));
  std::this_thread::sleep_for(wait);
}

}  // namespace tessera::hub
