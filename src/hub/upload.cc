#include "hub/upload.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/open_file.h"
#include "hub/client.h"
#include "hub/digest.h"

namespace tessera::hub {
namespace {

using nlohmann::json;

std::string base64(const std::string& bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::string text_at(const json& object, const char* key, const std::string& fallback) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>()
                                                                               : fallback;
}

struct Local {
  UploadFile what;
  std::int64_t size = 0;
  std::string sha256;  // of large files
  bool is_large = false, is_ignored = false;
};

class Uploader {
 public:
  Uploader(const Upload& what, const Settings& settings)
      : what_(what), client_(settings), endpoint_(settings.endpoint) {
    for (const auto& file : what.files)
      files_.push_back(
          {.what = file, .size = static_cast<std::int64_t>(OpenFile(file.file).size_bytes()), .sha256 = {}});
  }

  std::string run() {
    id_ = what_.id.find('/') == std::string::npos ? account() + "/" + what_.id : what_.id;
    create();
    if (what_.revision != "main") make_branch();
    ask_modes();
    send_large();
    return commit();
  }

 private:
  Response post(const std::string& url, const json& body, const char* type = "application/json") {
    return client_.send_again({.method = "POST", .url = url, .headers = headers(type), .body = json_text(body)});
  }
  static std::vector<std::string> headers(const std::string& type) {
    return {"Content-Type: " + type, "Accept: " + (type.find("json") == std::string::npos ? "*/*" : type), "Expect:"};
  }

  [[noreturn]] void fail(const std::string& doing, const Response& response) const {
    const bool is_token = response.status == 401 || response.status == 403;
    throw DataError(fmt::format("{} answers with status {} to {}{}{}", endpoint_, response.status, doing,
                                response.said(), is_token ? ": the token in HF_TOKEN may not write there" : ""));
  }
  json good(const std::string& doing, const Response& response) const {
    if (response.status / 100 != 2) fail(doing, response);
    auto out = json::parse(bounded_json(response.body, endpoint_), nullptr, /*allow_exceptions=*/false);
    return out.is_object() ? out : json::object();
  }
  [[noreturn]] void malformed(const std::string& doing) const {
    throw DataError(fmt::format("{} does not answer as a Hub does to {}", endpoint_, doing));
  }

  std::string account() {
    const json said = good("the question whose token it is", client_.send_again({.url = endpoint_ + "/api/whoami-v2"}));
    const auto name = said.find("name");
    if (name == said.end() || !name->is_string()) malformed("the question whose token it is");
    return *name;
  }

  void create() {
    const auto slash = id_.find('/');
    const json body = {{"type", "model"},
                       {"organization", id_.substr(0, slash)},
                       {"name", id_.substr(slash + 1)},
                       {"private", what_.is_private}};
    const Response response = post(endpoint_ + "/api/repos/create", body);
    constexpr int kConflict = 409;
    if (response.status != kConflict) good("the creation of '" + id_ + "'", response);
  }

  void make_branch() {
    const Response response = post(fmt::format("{}/branch/{}", api(), url_word(what_.revision)), json::object());
    constexpr int kConflict = 409;
    if (response.status != kConflict) good("the creation of the branch '" + what_.revision + "'", response);
  }

  std::string api() const { return fmt::format("{}/api/models/{}", endpoint_, id_); }

  /// Which files are large for the Hub.
  void ask_modes() {
    constexpr std::size_t kAtOnce = 256;
    for (std::size_t begin = 0; begin < files_.size(); begin += kAtOnce)
      ask_modes(begin, std::min(begin + kAtOnce, files_.size()));
  }

  void ask_modes(std::size_t begin, std::size_t end) {
    const std::string doing = "the question how files are sent";
    json body = {{"files", json::array()}};
    std::map<std::string, Local*> by_path;
    for (std::size_t i = begin; i < end; ++i) {
      Local& local = files_[i];
      by_path[local.what.path] = &local;
      body["files"].push_back({{"path", local.what.path}, {"sample", base64(sample(local))}, {"size", local.size}});
    }
    const json said = good(doing, post(fmt::format("{}/preupload/{}", api(), url_word(what_.revision)), body));
    try {
      for (const json& file : said.at("files")) {
        Local& local = *by_path.at(file.at("path"));
        local.is_large = file.at("uploadMode") == "lfs";
        local.is_ignored = file.value("shouldIgnore", false);
        by_path.erase(local.what.path);
      }
    } catch (const std::exception&) {
      malformed(doing);
    }
    if (!by_path.empty()) malformed(doing);
  }

  static std::string sample(const Local& local) {
    constexpr std::size_t kBytes = 512;
    std::string out(std::min(kBytes, static_cast<std::size_t>(local.size)), '\0');
    const OpenFile file(local.what.file);
    const ssize_t n = ::pread(file.descriptor(), out.data(), out.size(), 0);
    out.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return out;
  }

  void send_large() {
    const std::string doing = "the question where large files go";
    json body = {{"operation", "upload"},
                 {"transfers", {"basic", "multipart"}},
                 {"hash_algo", "sha256"},
                 {"ref", {{"name", what_.revision}}},
                 {"objects", json::array()}};
    std::map<std::string, const Local*> by_sum;
    for (Local& local : files_) {
      if (!local.is_large || local.is_ignored) continue;
      local.sha256 = sha256_of(local.what.file);
      if (by_sum.try_emplace(local.sha256, &local).second)
        body["objects"].push_back({{"oid", local.sha256}, {"size", local.size}});
    }
    if (by_sum.empty()) return;
    const Response response =
        post(fmt::format("{}/{}.git/info/lfs/objects/batch", endpoint_, id_), body, "application/vnd.git-lfs+json");
    const json said = good(doing, response);
    if (!said.contains("objects") || !said["objects"].is_array()) malformed(doing);
    for (const json& object : said["objects"]) {
      const auto local = by_sum.find(text_at(object, "oid", ""));
      if (local == by_sum.end()) malformed(doing);
      if (object.contains("error")) malformed("'" + local->second->what.path + "': " + json_text(object["error"]));
      if (object.contains("actions")) send(*local->second, object["actions"]);
      by_sum.erase(local);
    }
    if (!by_sum.empty()) malformed(doing);
  }

  void send(const Local& local, const json& actions) {
    const std::string doing = "'" + local.what.path + "'";
    try {
      const json& action = actions.at("upload");
      const std::string href = action.at("href");
      const json head = action.value("header", json::object());
      if (head.contains("chunk_size"))
        send_parts(local, href, head);
      else
        put(local, href, {.file = local.what.file, .begin = 0, .size = local.size});
      if (actions.contains("verify"))
        good(doing, post(actions["verify"].at("href"), {{"oid", local.sha256}, {"size", local.size}}));
    } catch (const json::exception&) {
      malformed(doing);
    }
  }

  /// The Hub has named an address for each part.
  void send_parts(const Local& local, const std::string& href, const json& head) {
    const json& said = head["chunk_size"];
    const std::int64_t chunk =
        said.is_string() ? std::atoll(said.get<std::string>().c_str()) : said.get<std::int64_t>();
    std::map<int, std::string> addresses;
    for (const auto& [key, value] : head.items())
      if (!key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
        addresses[std::atoi(key.c_str())] = value.get<std::string>();
    if (chunk <= 0 || static_cast<std::int64_t>(addresses.size()) != (local.size + chunk - 1) / chunk)
      malformed("'" + local.what.path + "'");
    json parts = json::array();
    std::int64_t begin = 0;
    for (const auto& [number, address] : addresses) {
      const auto size = std::min(chunk, local.size - begin);
      const Response response = put(local, address, {.file = local.what.file, .begin = begin, .size = size});
      parts.push_back({{"partNumber", parts.size() + 1}, {"etag", response.header("etag")}});
      begin += size;
    }
    good("'" + local.what.path + "'",
         post(href, {{"oid", local.sha256}, {"parts", std::move(parts)}}, "application/vnd.git-lfs+json"));
  }

  Response put(const Local& local, const std::string& url, const FilePart& part) {
    Response response =
        client_.send_again({.method = "PUT", .url = url, .headers = {"Expect:"}, .body = {}, .part = part});
    if (response.status / 100 != 2) fail("'" + local.what.path + "'", response);
    return response;
  }

  /// Once: a commit whose answer was lost may have been made.
  std::string commit() {
    std::string lines =
        json_text(json{{"key", "header"}, {"value", {{"summary", what_.message}, {"description", ""}}}}) + "\n";
    for (const Local& local : files_)
      if (!local.is_ignored) lines += json_text(line_of(local)) + "\n";
    const json said =
        good("the commit", client_.send({.method = "POST",
                                         .url = fmt::format("{}/commit/{}", api(), url_word(what_.revision)),
                                         .headers = headers("application/x-ndjson"),
                                         .body = lines}));
    return text_at(said, "commitUrl", endpoint_ + "/" + id_);
  }

  static json line_of(const Local& local) {
    if (local.is_large)
      return {{"key", "lfsFile"},
              {"value", {{"path", local.what.path}, {"algo", "sha256"}, {"oid", local.sha256}, {"size", local.size}}}};
    return {{"key", "file"},
            {"value",
             {{"content", base64(read_file(local.what.file))}, {"path", local.what.path}, {"encoding", "base64"}}}};
  }

  const Upload& what_;
  Client client_;
  const std::string endpoint_;
  std::string id_;
  std::vector<Local> files_;
};

}  // namespace

std::string upload(const Upload& what, const Settings& settings) {
  return Uploader(what, settings).run();
}

}  // namespace tessera::hub
