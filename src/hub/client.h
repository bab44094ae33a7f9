#pragma once
// The Hub's HTTP interface: what is in a repository, and its files. For one thread.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/http.h"
#include "hub/listing.h"
#include "hub/name.h"
#include "hub/settings.h"

namespace tessera::hub {

/// What is known of a file before its bytes are here.
struct RemoteFile {
  std::string path, etag;
  std::int64_t size_bytes = 0;
};

/// There is no such repository or revision, or not for this token.
class Refused : public DataError {
 public:
  using DataError::DataError;
};

class Client {
 public:
  explicit Client(const Settings& settings);

  /// Each asks again where a failure may pass, and throws Unavailable when it did not; Refused for 401, 403, 404; a
  /// DataError that names the server for an answer that is not the Hub's.
  Listing list(const RepositoryName& name);
  RemoteFile describe(const RepositoryName& name, const std::string& commit, const std::string& file);
  /// The bytes from `begin` on; the sink looks at status 200 (all of them) or 206. Asked once.
  void download(const RepositoryName& name, const std::string& commit, const std::string& file, std::int64_t begin,
                const Sink& sink);

  /// Follows redirects. The token goes to the endpoint's own origin only. Unavailable for 429 and 5xx.
  Response send(Request request, const Sink& sink = {});
  /// The same, where a failure may pass again and again; a first question does not wait for a host that is unknown, for
  /// then there is most often no network.
  enum class Question { kFirst, kLater };
  Response send_again(const Request& request, Question question = Question::kLater);

  const Settings& settings() const { return settings_; }

 private:
  void hide_token(Response& response) const;
  std::string file_url(const RepositoryName& name, const std::string& commit, const std::string& file) const;

  Settings settings_;
  std::string origin_;
  Http http_;
};

/// Counts tries.
class Tries {
 public:
  explicit Tries(const Settings& settings) : settings_(settings) {}
  /// After a failure: returns when it is time for another try, or throws the failure when there were enough.
  void wait_after(const Unavailable& failure);
  /// The last one got on.
  void reset() { done_ = 0; }

 private:
  const Settings& settings_;
  int done_ = 0;
};

}  // namespace tessera::hub
