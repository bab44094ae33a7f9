#pragma once
// A Hub on this machine: the part of its protocol that downloads and uploads need, on threads of the test. Small files
// are answered by the Hub itself; large ones (LFS) lie at another address, as on the real one.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace tessera::test {

inline std::string hex_digest(const EVP_MD* kind, const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, kind, nullptr);
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

inline std::string sha256(const std::string& bytes) {
  return hex_digest(EVP_sha256(), bytes);
}

inline std::string git_sha1(const std::string& bytes) {
  return hex_digest(EVP_sha1(), fmt::format("blob {}", bytes.size()) + '\0' + bytes);
}

class HubServer {
 public:
  struct File {
    std::string bytes;
    bool is_large = false;
    std::string etag() const { return is_large ? sha256(bytes) : git_sha1(bytes); }
  };
  using Files = std::map<std::string, File>;
  struct Request {
    std::string method, path, range, authorization, body;
    bool at_storage = false;
  };
  /// What is sent instead of the answer, whole; the connection ends after it.
  using Fault = std::function<std::optional<std::string>(const Request&)>;

  HubServer() : hub_(listen_somewhere()), storage_(listen_somewhere()) {
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~HubServer() {
    stop_ = true;
    accepting_.join();
    for (auto& thread : answering_) thread.join();
    ::close(hub_.descriptor);
    ::close(storage_.descriptor);
  }
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  std::string url() const { return hub_.url(); }
  std::string storage_url() const { return storage_.url(); }

  /// kind: "models" or "datasets". Returns the commit, which follows from the files.
  std::string put(const std::string& kind, const std::string& id, const Files& files) {
    std::string all = kind + id;
    for (const auto& [path, file] : files) all += path + file.etag();
    const std::lock_guard lock(mutex_);
    for (const auto& [path, file] : files)
      if (file.is_large) stored_[sha256(file.bytes)] = file.bytes;
    const std::string commit = git_sha1(all);
    repositories_[kind + "/" + id] = {commit, files};
    return commit;
  }
  void set_fault(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  void forget_requests() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
  }
  /// Of the repository's main branch; empty where there is none.
  Files files(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return repositories_.contains(key) ? repositories_[key].files : Files();
  }
  /// Larger files are to be sent in parts of this size.
  void set_part_size(std::size_t bytes) { part_size_ = bytes; }
  /// Requests of a method whose path holds `part`.
  int count(const std::string& method, const std::string& part) {
    int out = 0;
    for (const auto& r : requests()) out += r.method == method && r.path.find(part) != std::string::npos ? 1 : 0;
    return out;
  }

  using Headers = std::vector<std::string>;
  static std::string answer(int status, const std::string& body, const Headers& headers = {}) {
    std::string out = fmt::format("HTTP/1.1 {} X\r\nConnection: close\r\nContent-Length: {}\r\n", status, body.size());
    for (const auto& header : headers) out += header + "\r\n";
    return out + "\r\n" + body;
  }

 private:
  struct Listener {
    int descriptor = -1, port = 0;
    std::string url() const { return fmt::format("http://127.0.0.1:{}", port); }
  };
  struct Repository {
    std::string commit;
    Files files;
  };

  static Listener listen_somewhere() {
    Listener out;
    out.descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(out.descriptor, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
    if (::listen(out.descriptor, 64) != 0) std::abort();
    ::getsockname(out.descriptor, reinterpret_cast<sockaddr*>(&address), &size);
    out.port = ntohs(address.sin_port);
    return out;
  }

  void accept_all() {
    while (!stop_) {
      pollfd fds[2] = {{hub_.descriptor, POLLIN, 0}, {storage_.descriptor, POLLIN, 0}};
      if (::poll(fds, 2, 20) <= 0) continue;
      for (const auto& fd : fds) {
        if (fd.revents == 0) continue;
        const int connection = ::accept4(fd.fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (connection < 0) continue;
        answering_.emplace_back([this, connection, at_storage = fd.fd == storage_.descriptor] {
          serve(connection, at_storage);
          ::close(connection);
        });
      }
    }
  }

  void serve(int connection, bool at_storage) {
    std::string head;
    char piece[4096];
    while (head.find("\r\n\r\n") == std::string::npos) {
      pollfd fd{connection, POLLIN, 0};
      if (stop_ || ::poll(&fd, 1, 5000) <= 0) return;
      const ssize_t n = ::recv(connection, piece, sizeof(piece), 0);
      if (n <= 0) return;
      head.append(piece, static_cast<std::size_t>(n));
    }
    Request request;
    request.at_storage = at_storage;
    request.method = head.substr(0, head.find(' '));
    request.path = head.substr(request.method.size() + 1, head.find(" HTTP/") - request.method.size() - 1);
    request.range = header(head, "range");
    request.authorization = header(head, "authorization");
    request.body = head.substr(head.find("\r\n\r\n") + 4);
    const std::string length = header(head, "content-length");
    while (!length.empty() && request.body.size() < std::stoul(length)) {
      const ssize_t n = ::recv(connection, piece, sizeof(piece), 0);
      if (n <= 0) return;
      request.body.append(piece, static_cast<std::size_t>(n));
    }
    std::optional<std::string> bytes;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      if (fault_) bytes = fault_(request);
      if (!bytes && request.method == "PUT") bytes = answer_put(request);
      if (!bytes && request.method == "POST") bytes = answer_post(request);
      if (!bytes) bytes = at_storage ? answer_of_storage(request) : answer_of_hub(request);
    }
    for (std::size_t sent = 0; sent < bytes->size();) {
      const ssize_t n = ::send(connection, bytes->data() + sent, bytes->size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<std::size_t>(n);
    }
    ::shutdown(connection, SHUT_WR);
    while (::recv(connection, piece, sizeof(piece), 0) > 0) continue;  // so that what was sent is not reset
  }

  static std::string header(const std::string& head, const std::string& name) {
    std::string lower = head;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto at = lower.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const auto begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }

  /// The whole, or what the range asks for.
  static std::string body(const Request& r, const std::string& bytes, Headers headers) {
    if (r.method == "HEAD") {
      std::string out = answer(200, "", headers);
      return out.replace(out.find("Content-Length: 0"), 17, fmt::format("Content-Length: {}", bytes.size()));
    }
    if (r.range.empty()) return answer(200, bytes, headers);
    const auto begin = std::stoul(r.range.substr(6));
    headers.push_back(fmt::format("Content-Range: bytes {}-{}/{}", begin, bytes.size() - 1, bytes.size()));
    return answer(206, bytes.substr(begin), headers);
  }

  std::string answer_of_storage(const Request& r) {
    const auto it = stored_.find(r.path.substr(1));
    return it == stored_.end() ? answer(404, "") : body(r, it->second, {});
  }

  static std::string said(const nlohmann::json& json) { return answer(200, json.dump()); }

  /// Storage takes what has the name's checksum, and parts.
  std::string answer_put(const Request& r) {
    const std::string name = r.path.substr(r.path.find('/', 1) + 1);
    if (r.path.starts_with("/upload/")) {
      if (sha256(r.body) != name) return answer(400, "");
      stored_[name] = r.body;
    } else {
      parts_[name] = r.body;
    }
    return answer(200, "", {"ETag: \"" + sha256(r.body).substr(0, 8) + "\""});
  }

  std::string answer_post(const Request& r) {
    const auto slash = r.path.rfind('/');
    const std::string last = r.path.substr(slash + 1);
    if (r.authorization.empty() && !r.at_storage) return answer(401, "", {"X-Error-Message: Invalid credentials"});
    if (r.path == "/verify" || r.path.find("/branch/") != std::string::npos) return said({{"ok", true}});
    if (r.path == "/api/repos/create") return create(nlohmann::json::parse(r.body));
    if (r.path.find("/preupload/") != std::string::npos) return modes(nlohmann::json::parse(r.body));
    if (r.path.ends_with("/info/lfs/objects/batch")) return places(nlohmann::json::parse(r.body));
    if (r.path.starts_with("/complete/")) return join(last, nlohmann::json::parse(r.body));
    if (r.path.find("/commit/") != std::string::npos)
      return commit("models/" + r.path.substr(12, r.path.find("/commit/") - 12), r.body);
    return missing("RepoNotFound");
  }

  std::string create(const nlohmann::json& asked) {
    const std::string key =
        fmt::format("models/{}/{}", asked["organization"].get<std::string>(), asked["name"].get<std::string>());
    if (!repositories_.try_emplace(key, Repository{std::string(40, '0'), {}}).second) return answer(409, "{}");
    return said({{"url", url() + key.substr(6)}});
  }

  static std::string modes(const nlohmann::json& asked) {
    nlohmann::json out = {{"files", nlohmann::json::array()}};
    for (const auto& file : asked["files"])
      out["files"].push_back({{"path", file["path"]},
                              {"uploadMode", file["size"] > 1000 ? "lfs" : "regular"},
                              {"shouldIgnore", file["path"] == "ignored.txt"}});
    return said(out);
  }

  std::string places(const nlohmann::json& asked) {
    nlohmann::json out = {{"objects", nlohmann::json::array()}};
    for (const auto& object : asked["objects"]) {
      const std::string oid = object["oid"];
      const std::size_t size = object["size"];
      nlohmann::json place = {{"oid", oid}, {"size", size}}, upload = {{"href", storage_.url() + "/upload/" + oid}};
      if (part_size_ > 0 && size > part_size_) {
        upload = {{"href", url() + "/complete/" + oid}, {"header", {{"chunk_size", std::to_string(part_size_)}}}};
        for (std::size_t i = 0; i * part_size_ < size; ++i)
          upload["header"][fmt::format("{:05}", i + 1)] = fmt::format("{}/part/{}.{}", storage_.url(), oid, i + 1);
      }
      if (!stored_.contains(oid)) place["actions"] = {{"upload", upload}, {"verify", {{"href", url() + "/verify"}}}};
      out["objects"].push_back(place);
    }
    return said(out);
  }

  std::string join(const std::string& oid, const nlohmann::json& asked) {
    std::string whole;
    for (const auto& part : asked["parts"]) {
      const std::string& bytes = parts_[fmt::format("{}.{}", oid, part["partNumber"].get<int>())];
      if (part["etag"] != "\"" + sha256(bytes).substr(0, 8) + "\"") return answer(400, "");
      whole += bytes;
    }
    if (sha256(whole) != oid) return answer(400, "");
    stored_[oid] = whole;
    return said({{"ok", true}});
  }

  std::string commit(const std::string& key, const std::string& lines) {
    if (!repositories_.contains(key)) return missing("RepoNotFound");
    Repository& repository = repositories_[key];
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
      const auto operation = nlohmann::json::parse(line);
      const auto& value = operation["value"];
      if (operation["key"] == "file")
        repository.files[value["path"]] = {decoded(value["content"]), false};
      else if (operation["key"] == "lfsFile" && stored_.contains(value["oid"]))
        repository.files[value["path"]] = {stored_[value["oid"]], true};
      else if (operation["key"] != "header")
        return answer(400, "");
    }
    repository.commit = git_sha1(lines);
    return said({{"commitUrl", url() + key.substr(6) + "/commit/" + repository.commit}});
  }

  static std::string decoded(const std::string& base64) {
    std::string out(base64.size(), 0);
    const int size =
        EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                        reinterpret_cast<const unsigned char*>(base64.data()), static_cast<int>(base64.size()));
    const auto padding = static_cast<std::size_t>(std::count(base64.begin(), base64.end(), '='));
    out.resize(static_cast<std::size_t>(size) - padding);
    return out;
  }

  static std::string missing(const std::string& code) { return answer(404, "", {"X-Error-Code: " + code}); }

  std::string answer_of_hub(const Request& r) {
    if (r.path == "/api/whoami-v2") return r.authorization.empty() ? answer(401, "") : said({{"name", "someone"}});
    for (const auto& [key, repository] : repositories_) {
      const std::string id = key.substr(key.find('/') + 1), api = "/api/" + key;
      if (r.path == api || r.path == api + "/revision/main" || r.path == api + "/revision/" + repository.commit)
        return description(id, repository);
      if (r.path.starts_with(api + "/revision/")) return missing("RevisionNotFound");
      const std::string page = (key.starts_with("datasets/") ? "/" + key : "/" + id) + "/resolve/";
      if (!r.path.starts_with(page)) continue;
      const std::string rest = r.path.substr(page.size());
      const auto slash = rest.find('/');
      const auto revision = rest.substr(0, slash);
      if (revision != "main" && revision != repository.commit) return missing("RevisionNotFound");
      const auto file = repository.files.find(rest.substr(slash + 1));
      if (file != repository.files.end()) return answer_file(r, file->second, repository.commit);
      return answer(404, "", {"X-Error-Code: EntryNotFound", "X-Repo-Commit: " + repository.commit});
    }
    return missing("RepoNotFound");
  }

  static std::string description(const std::string& id, const Repository& repository) {
    nlohmann::json out = {{"id", id}, {"sha", repository.commit}, {"siblings", nlohmann::json::array()}};
    for (const auto& [path, file] : repository.files) out["siblings"].push_back({{"rfilename", path}});
    return answer(200, out.dump(), {"Content-Type: application/json"});
  }

  std::string answer_file(const Request& r, const File& file, const std::string& commit) const {
    Headers headers{"X-Repo-Commit: " + commit};
    if (!file.is_large) {
      headers.push_back("ETag: \"" + file.etag() + "\"");
      return body(r, file.bytes, headers);
    }
    headers.push_back("X-Linked-ETag: \"" + file.etag() + "\"");
    headers.push_back(fmt::format("X-Linked-Size: {}", file.bytes.size()));
    headers.push_back(fmt::format("Location: {}/{}", storage_.url(), file.etag()));
    return answer(302, "", headers);
  }

  Listener hub_, storage_;
  std::atomic<bool> stop_{false};
  std::thread accepting_;
  std::vector<std::thread> answering_;
  std::mutex mutex_;
  std::map<std::string, Repository> repositories_;
  std::map<std::string, std::string> stored_, parts_;
  std::atomic<std::size_t> part_size_{0};
  std::vector<Request> requests_;
  Fault fault_;
};

}  // namespace tessera::test
