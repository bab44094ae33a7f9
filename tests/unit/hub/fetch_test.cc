// Downloads from a Hub on this machine: what comes, where it lies, and every way in which it can fail.
#include "hub/fetch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "hub/download.h"
#include "hub/model_files.h"
#include "support/hub_server.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

bool has_links = true;

}  // namespace
}  // namespace tessera::hub

/// As on a file system without symbolic links.
extern "C" int symlinkat(const char* target, int folder, const char* path) noexcept {
  if (!tessera::hub::has_links) return errno = EPERM, -1;
  return static_cast<int>(::syscall(SYS_symlinkat, target, folder, path));
}

extern "C" int symlink(const char* target, const char* path) noexcept {
  return symlinkat(target, AT_FDCWD, path);
}

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using test::HubServer;
using test::TempFolder;

/// Bytes that no compressor or coincidence makes.
std::string noise(std::size_t size, unsigned seed = 1) {
  std::string out(size, 0);
  for (char& c : out) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
  return out;
}

class Fetch : public ::testing::Test {
 protected:
  Fetch() {
    settings_.cache = folder_.path() + "/hub";
    settings_.endpoint = server_.url();
    settings_.token = "hf_secret";
    settings_.first_wait = std::chrono::milliseconds(1);
    settings_.stall = std::chrono::seconds(5);
  }

  HubServer::Files small_model() const {
    return {{"config.json", {R"({"model_type": "llama"})"}},
            {"tokenizer.json", {"{}"}},
            {"README.md", {"about"}},
            {"model.safetensors", {weights_, true}}};
  }
  std::string put(const HubServer::Files& files) { return server_.put("models", "org/tiny", files); }
  std::string get(const std::string& name = "org/tiny") {
    const auto parsed = parse_name(Kind::kModel, name);
    return fetch(*parsed, model_files(*parsed, ModelParts::kAll), settings_);
  }
  std::string error(const std::string& name = "org/tiny") {
    try {
      get(name);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  std::string repository() const { return settings_.cache + "/models--org--tiny"; }
  std::string incomplete() const { return repository() + "/blobs/" + test::sha256(weights_) + ".incomplete"; }
  /// The bytes of the weights' answer are `bytes`, with what `head` says of them.
  void answer_weights(const std::function<std::optional<std::string>(const HubServer::Request&)>& fault) {
    server_.set_fault([fault](const HubServer::Request& r) -> std::optional<std::string> {
      return r.at_storage ? fault(r) : std::nullopt;
    });
  }
  void expect_nothing_whole() {
    EXPECT_FALSE(fs::exists(repository() + "/blobs/" + test::sha256(weights_)));
    EXPECT_FALSE(fs::exists(repository() + "/refs/main"));
    std::error_code code;
    for (const auto& entry : fs::recursive_directory_iterator(repository() + "/snapshots", code))
      EXPECT_NE(entry.path().filename(), "model.safetensors");
  }

  TempFolder folder_{"hub_fetch"};
  HubServer server_;
  Settings settings_;
  const std::string weights_ = noise(300'000);
};

TEST_F(Fetch, BringsWhatIsReadIntoTheLayoutOfHuggingfaceHub) {
  const std::string commit = put(small_model());
  const std::string folder = get();
  EXPECT_EQ(folder, repository() + "/snapshots/" + commit);
  EXPECT_EQ(read_file(folder + "/model.safetensors"), weights_);
  EXPECT_FALSE(fs::exists(folder + "/README.md"));
  EXPECT_EQ(fs::read_symlink(folder + "/model.safetensors"), "../../blobs/" + test::sha256(weights_));
  EXPECT_EQ(fs::read_symlink(folder + "/tokenizer.json"), "../../blobs/" + test::git_sha1("{}"));
  EXPECT_EQ(read_file(repository() + "/refs/main"), commit);
  EXPECT_TRUE(fs::exists(repository() + "/.no_exist/" + commit + "/adapter_config.json"));
  EXPECT_FALSE(fs::exists(repository() + "/.no_exist/" + commit + "/config.json"));
  EXPECT_TRUE(fs::exists(settings_.cache + "/.locks/models--org--tiny/" + test::git_sha1("{}") + ".lock"));
  for (const auto& entry : fs::directory_iterator(repository() + "/blobs"))
    EXPECT_NE(entry.path().extension(), ".incomplete");
}

TEST_F(Fetch, WhatIsThereIsNotDownloadedAgain) {
  put(small_model());
  const std::string folder = get();
  server_.forget_requests();
  EXPECT_EQ(get(), folder);
  EXPECT_EQ(server_.requests().size(), 1u);  // has it changed?
}

TEST_F(Fetch, WithoutSymbolicLinksTheFilesLieInTheSnapshot) {
  const std::string commit = put(small_model());
  has_links = false;
  const std::string message = error();
  has_links = true;
  EXPECT_EQ(message, "");
  const std::string file = repository() + "/snapshots/" + commit + "/model.safetensors";
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(file)));
  EXPECT_EQ(read_file(file), weights_);
  EXPECT_TRUE(fs::is_empty(repository() + "/blobs"));
  server_.forget_requests();
  get();
  EXPECT_EQ(server_.requests().size(), 1u);
}

TEST_F(Fetch, ACacheThatMayNotBeWrittenToServes) {
  put(small_model());
  const std::string folder = get();
  for (const char* name : {"/.no_exist", "/refs"}) {
    fs::remove_all(repository() + name);
    std::ofstream(repository() + name) << "no folder can be made here";
  }
  EXPECT_EQ(get(), folder);
}

TEST_F(Fetch, ADownloadThatCannotBeginLeavesNothingOpen) {
  const std::string commit = put(small_model());
  const auto name = *parse_name(Kind::kModel, "org/tiny");
  const Cache cache(settings_.cache, name);
  Client client(settings_);
  const RemoteFile file = client.describe(name, commit, "model.safetensors");
  fs::create_directories(repository() + "/blobs");
  std::ofstream(incomplete()) << weights_.substr(0, 100);
  const Count stop = [](std::int64_t) { throw Error("the download of another file failed"); };
  EXPECT_THROW(download_file(client, {.name = name, .cache = cache, .commit = commit}, file, stop), Error);
  std::error_code gone;  // the server, which is this process's too, closes its own meanwhile
  for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
    EXPECT_NE(fs::read_symlink(entry.path(), gone).string(), fs::absolute(incomplete()).string());
}

TEST_F(Fetch, ANewCommitSharesTheBlobsThatStayed) {
  put(small_model());
  const std::string before = get();
  auto files = small_model();
  files["config.json"] = {R"({"model_type": "qwen2"})"};
  const std::string commit = put(files);
  server_.forget_requests();
  const std::string after = get();
  EXPECT_EQ(after, repository() + "/snapshots/" + commit);
  EXPECT_EQ(read_file(after + "/config.json"), files["config.json"].bytes);
  EXPECT_EQ(read_file(before + "/config.json"), small_model()["config.json"].bytes);
  EXPECT_EQ(read_file(repository() + "/refs/main"), commit);
  for (const auto& r : server_.requests()) EXPECT_FALSE(r.at_storage) << r.path;
}

TEST_F(Fetch, ACommitIsARevisionAndNeedsNoRef) {
  const std::string commit = put(small_model());
  EXPECT_EQ(get("org/tiny@" + commit), repository() + "/snapshots/" + commit);
  EXPECT_FALSE(fs::exists(repository() + "/refs"));
}

TEST_F(Fetch, AnIndexSaysWhichPartsAreDownloaded) {
  put({{"config.json", {"{}"}},
       {"model.safetensors.index.json", {R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})"}},
       {"m-1.safetensors", {noise(10), true}},
       {"m-2.safetensors", {noise(20), true}},
       {"m-3.safetensors", {noise(30), true}},
       {"pytorch_model.bin", {noise(40), true}}});
  const std::string folder = get();
  EXPECT_TRUE(fs::exists(folder + "/m-1.safetensors"));
  EXPECT_TRUE(fs::exists(folder + "/m-2.safetensors"));
  EXPECT_FALSE(fs::exists(folder + "/m-3.safetensors"));
  EXPECT_FALSE(fs::exists(folder + "/pytorch_model.bin"));
}

TEST_F(Fetch, TorchFilesComeWhereThereAreNoSafetensors) {
  put({{"config.json", {"{}"}}, {"pytorch_model.bin", {noise(40), true}}});
  EXPECT_TRUE(fs::exists(get() + "/pytorch_model.bin"));
}

TEST_F(Fetch, WithoutWeightsItIsRefusedByWhatThereIs) {
  put({{"config.json", {"{}"}}, {"tf_model.h5", {noise(40), true}}});
  EXPECT_SAYS(error(), "no weights that are read here");
  EXPECT_SAYS(error(), "tf_model.h5");
}

TEST_F(Fetch, SeveralGgufFilesAreNotGuessedAmong) {
  put({{"a-q4.gguf", {noise(40), true}}, {"a-q8.gguf", {noise(41), true}}});
  EXPECT_SAYS(error(), "holds 2 GGUF files");
}

TEST_F(Fetch, TheTokenGoesToTheEndpointAlone) {
  put(small_model());
  get();
  int at_storage = 0;
  for (const auto& r : server_.requests()) {
    at_storage += r.at_storage ? 1 : 0;
    EXPECT_EQ(r.authorization, r.at_storage ? "" : "Bearer hf_secret") << r.path;
  }
  EXPECT_EQ(at_storage, 1);
}

TEST_F(Fetch, ARenamedRepositoryIsFollowed) {
  const std::string commit = put(small_model());
  server_.set_fault([&](const HubServer::Request& r) -> std::optional<std::string> {
    if (r.path.find("old/tiny") == std::string::npos) return std::nullopt;
    std::string to = r.path;
    to.replace(to.find("old/tiny"), 8, "org/tiny");
    return HubServer::answer(307, "", {"Location: " + to});
  });
  EXPECT_EQ(get("old/tiny"), settings_.cache + "/models--old--tiny/snapshots/" + commit);
}

TEST_F(Fetch, RedirectsWithoutEndAreAnError) {
  server_.set_fault([](const HubServer::Request& r) { return HubServer::answer(302, "", {"Location: " + r.path}); });
  EXPECT_SAYS(error(), "more than 10 redirects");
}

TEST_F(Fetch, ARedirectToAFileOfThisMachineIsAnError) {
  server_.set_fault(
      [](const HubServer::Request&) { return HubServer::answer(302, "", {"Location: file:///etc/passwd"}); });
  EXPECT_SAYS(error(), "is no address of a web server");
}

TEST_F(Fetch, AMissingRepositoryIsNamedWithTheHubAndTheToken) {
  EXPECT_SAYS(error("org/none"), "'org/none' is neither a file or folder here nor a model at " + server_.url());
  EXPECT_SAYS(error("org/none"), "HF_TOKEN");
  EXPECT_FALSE(test::contains(error("org/none"), "hf_secret"));
  EXPECT_FALSE(fs::exists(settings_.cache));
}

TEST_F(Fetch, AMissingRevisionIsNamed) {
  put(small_model());
  EXPECT_SAYS(error("org/tiny@v9"), "the model 'org/tiny' has no revision 'v9' at " + server_.url() + "/org/tiny");
}

TEST_F(Fetch, WithoutATokenItIsAskedFor) {
  settings_.token.clear();
  server_.set_fault(
      [](const HubServer::Request&) { return HubServer::answer(401, "", {"X-Error-Code: RepoNotFound"}); });
  EXPECT_SAYS(error(), "give a token in HF_TOKEN");
}

TEST_F(Fetch, AGatedRepositoryNamesThePageOfItsTerms) {
  for (const int status : {401, 403}) {
    server_.set_fault([&](const HubServer::Request&) {
      return HubServer::answer(status, "", {"X-Error-Code: GatedRepo", "X-Error-Message: Access is restricted"});
    });
    EXPECT_SAYS(error(), "accept them at " + server_.url() + "/org/tiny");
    EXPECT_SAYS(error(), "Access is restricted");
  }
}

TEST_F(Fetch, AServerThatRepeatsTheTokenDoesNotGetItPrinted) {
  server_.set_fault([](const HubServer::Request& r) {
    return HubServer::answer(401, "", {"X-Error-Message: wrong credentials: " + r.authorization});
  });
  EXPECT_SAYS(error(), "wrong credentials: Bearer (token)");
  EXPECT_FALSE(test::contains(error(), "hf_secret"));
}

TEST_F(Fetch, WhatMayPassIsTriedAgain) {
  put(small_model());
  for (const int status : {429, 500, 502, 503}) {
    std::map<std::string, int> asked;
    server_.set_fault([&](const HubServer::Request& r) -> std::optional<std::string> {
      return ++asked[r.method + r.path] < 3 ? std::optional(HubServer::answer(status, "")) : std::nullopt;
    });
    EXPECT_EQ(read_file(get() + "/model.safetensors"), weights_) << status;
    fs::remove_all(settings_.cache);
  }
}

TEST_F(Fetch, TriesAreBounded) {
  server_.set_fault([](const HubServer::Request&) { return HubServer::answer(503, ""); });
  EXPECT_SAYS(error(), "status 503 (tried 5 times)");
  EXPECT_EQ(server_.requests().size(), 5u);
}

TEST_F(Fetch, RetryAfterIsObeyedAndBounded) {
  put(small_model());
  bool is_first = true;
  server_.set_fault([&](const HubServer::Request&) -> std::optional<std::string> {
    return std::exchange(is_first, false) ? std::optional(HubServer::answer(429, "", {"Retry-After: 1"}))
                                          : std::nullopt;
  });
  const auto start = std::chrono::steady_clock::now();
  get();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  server_.set_fault([](const HubServer::Request&) { return HubServer::answer(429, "", {"Retry-After: 9999"}); });
  fs::remove_all(settings_.cache);
  EXPECT_SAYS(error(), "asks to come back in 9999 seconds");
}

TEST_F(Fetch, WithoutAHubTheCacheIsUsed) {
  put(small_model());
  const std::string folder = get();
  server_.set_fault([](const HubServer::Request&) { return HubServer::answer(503, ""); });
  server_.forget_requests();
  EXPECT_EQ(get(), folder);
  EXPECT_EQ(server_.requests().size(), 1u);   // no waiting where there is something to go on with
  settings_.endpoint = "http://127.0.0.1:1";  // nobody listens
  EXPECT_EQ(get(), folder);
}

TEST_F(Fetch, WithoutAHubAndWithoutACacheBothAreNamed) {
  settings_.endpoint = "http://127.0.0.1:1";
  EXPECT_SAYS(error(), "'org/tiny' is neither a file or folder here nor in the cache (" + settings_.cache + ")");
  EXPECT_SAYS(error(), "http://127.0.0.1:1");
}

TEST_F(Fetch, AHostThatNobodyKnowsIsAskedForOnce) {
  settings_.endpoint = "http://" + std::string(64, 'a') + ".invalid";  // no name server is asked for so long a word
  EXPECT_SAYS(error(), "and the Hub cannot be asked: ");
  EXPECT_FALSE(test::contains(error(), "tried")) << error();
}

TEST_F(Fetch, OfflineNobodyIsAsked) {
  put(small_model());
  const std::string folder = get();
  settings_.offline = true;
  server_.forget_requests();
  EXPECT_EQ(get(), folder);
  EXPECT_SAYS(error("org/none"), "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set");
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(Fetch, OfflineAPartThatTheIndexNamesIsMissed) {
  const std::string index = R"({"weight_map": {"a": "m-1.safetensors"}})";
  put({{"config.json", {"{}"}}, {"model.safetensors.index.json", {index}}, {"m-1.safetensors", {noise(10), true}}});
  fs::remove(get() + "/m-1.safetensors");
  settings_.offline = true;
  EXPECT_SAYS(error(), "'m-1.safetensors' of 'org/tiny' is not in the cache");
}

TEST_F(Fetch, ACutConnectionGoesOnWhereItEnded) {
  put(small_model());
  answer_weights([&](const HubServer::Request& r) -> std::optional<std::string> {
    if (!r.range.empty()) return std::nullopt;
    return HubServer::answer(200, weights_).substr(0, 100'000);
  });
  EXPECT_EQ(read_file(get() + "/model.safetensors"), weights_);
  std::vector<std::string> ranges;
  for (const auto& r : server_.requests())
    if (r.at_storage) ranges.push_back(r.range);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_TRUE(ranges[1].starts_with("bytes=99") || ranges[1].starts_with("bytes=100")) << ranges[1];
}

TEST_F(Fetch, AnInterruptedDownloadGoesOnNextTime) {
  put(small_model());
  settings_.tries = 1;
  answer_weights([&](const HubServer::Request&) { return HubServer::answer(200, weights_).substr(0, 100'000); });
  EXPECT_SAYS(error(), "127.0.0.1");
  expect_nothing_whole();
  EXPECT_GT(fs::file_size(incomplete()), 90'000u);
  answer_weights([](const HubServer::Request&) { return std::nullopt; });
  server_.forget_requests();
  EXPECT_EQ(read_file(get() + "/model.safetensors"), weights_);
  EXPECT_EQ(server_.count("GET", test::sha256(weights_)), 1);
  for (const auto& r : server_.requests())
    if (r.at_storage) {
      EXPECT_TRUE(r.range.starts_with("bytes=9")) << r.range;
    }
}

TEST_F(Fetch, AServerWithoutRangesStartsOver) {
  put(small_model());
  int asked = 0;
  answer_weights([&](const HubServer::Request&) {
    const std::string whole = HubServer::answer(200, weights_);
    return ++asked == 1 ? whole.substr(0, 100'000) : whole;
  });
  EXPECT_EQ(read_file(get() + "/model.safetensors"), weights_);
  EXPECT_EQ(asked, 2);
}

TEST_F(Fetch, AnotherPartThanWasAskedForIsAnError) {
  put(small_model());
  answer_weights([&](const HubServer::Request& r) {
    if (r.range.empty()) return HubServer::answer(200, weights_).substr(0, 100'000);
    return HubServer::answer(206, weights_.substr(5), {"Content-Range: bytes 5-299999/300000"});
  });
  EXPECT_SAYS(error(), "another part than was asked for");
  expect_nothing_whole();
}

TEST_F(Fetch, WrongBytesAreRemoved) {
  put(small_model());
  std::string wrong = weights_;
  wrong[5] ^= 1;
  answer_weights([&](const HubServer::Request&) { return HubServer::answer(200, wrong); });
  EXPECT_SAYS(error(), "SHA-256 " + test::sha256(wrong) + ", expected " + test::sha256(weights_));
  expect_nothing_whole();
  EXPECT_FALSE(fs::exists(incomplete()));
}

TEST_F(Fetch, WrongBytesOfASmallFileAreFoundByGitsChecksum) {
  put(small_model());
  server_.set_fault([](const HubServer::Request& r) -> std::optional<std::string> {
    const bool is_it = r.method == "GET" && r.path.ends_with("/tokenizer.json");
    return is_it ? std::optional(HubServer::answer(200, "[]")) : std::nullopt;
  });
  EXPECT_SAYS(error(), "git's SHA-1 ");
  EXPECT_FALSE(fs::exists(repository() + "/blobs/" + test::git_sha1("{}")));
  EXPECT_FALSE(fs::exists(repository() + "/refs/main"));
}

TEST_F(Fetch, ADamagedBeginningIsFoundWhenTheRestHasCome) {
  put(small_model());
  fs::create_directories(repository() + "/blobs");
  std::ofstream(incomplete()) << noise(1000, 7);
  EXPECT_SAYS(error(), "SHA-256");
  EXPECT_EQ(read_file(get() + "/model.safetensors"), weights_);  // the damaged part is gone
}

TEST_F(Fetch, MoreBytesThanAnnouncedAreRefused) {
  put(small_model());
  answer_weights([&](const HubServer::Request&) { return HubServer::answer(200, weights_ + "more"); });
  EXPECT_SAYS(error(), "more bytes than the 300000 that were announced");
  expect_nothing_whole();
  EXPECT_FALSE(fs::exists(incomplete()));
}

TEST_F(Fetch, AFullDiskIsFoundBeforeTheFirstByte) {
  put(small_model());
  server_.set_fault([&](const HubServer::Request& r) -> std::optional<std::string> {
    if (r.method != "HEAD" || !r.path.ends_with("safetensors")) return std::nullopt;
    return HubServer::answer(302, "",
                             {"Location: " + server_.storage_url() + "/x", "X-Linked-ETag: " + std::string(64, 'a'),
                              fmt::format("X-Linked-Size: {}", std::int64_t{1} << 42)});
  });
  EXPECT_SAYS(error(), "MB free; make room");
  EXPECT_FALSE(fs::exists(repository() + "/blobs"));
}

TEST_F(Fetch, AFileThatMayNotGrowIsAnErrorThatKeepsWhatCame) {
  put(small_model());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit low = before;
  low.rlim_cur = 200'000;
  ::setrlimit(RLIMIT_FSIZE, &low);
  const std::string message = error();
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_SAYS(message, "cannot write '" + incomplete() + "'");
  EXPECT_SAYS(message, "What came stays there");
  expect_nothing_whole();
  EXPECT_EQ(read_file(get() + "/model.safetensors"), weights_);
}

TEST_F(Fetch, OfManyThatAskAtOnceOneDownloads) {
  put(small_model());
  std::vector<std::thread> askers;
  std::atomic<int> right{0};
  for (int i = 0; i < 6; ++i)
    askers.emplace_back([&] { right += read_file(get() + "/model.safetensors") == weights_ ? 1 : 0; });
  for (auto& asker : askers) asker.join();
  EXPECT_EQ(right, 6);
  EXPECT_EQ(server_.count("GET", test::sha256(weights_)), 1);
}

TEST_F(Fetch, AHostileServerCanMakeAnErrorOnly) {
  const auto listing = [&](const std::string& json) {
    server_.set_fault([&](const HubServer::Request&) { return HubServer::answer(200, json); });
    return error();
  };
  const std::string commit(40, 'a');
  for (const char* path : {"../x.json", "/x.json", "a/../../x.json", "a//x.json", "", ".", "a\\\\b", "a\\u0000b"})
    EXPECT_SAYS(listing(R"({"sha": ")" + commit + R"(", "siblings": [{"rfilename": ")" + path + R"("}]})"),
                "a file whose name is no path below its folder");
  for (const char* json : {"", "[]", "{", R"({"sha": 1})", R"({"sha": "../../x", "siblings": []})",
                           R"({"sha": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "siblings": []})"})
    EXPECT_SAYS(listing(json), "does not answer as a Hub does");
  EXPECT_SAYS(listing(std::string((64 << 20) + 1, ' ')), "larger than 64 MiB");
  EXPECT_FALSE(fs::exists(settings_.cache));
}

TEST_F(Fetch, AHostileEtagNamesNoFile) {
  put(small_model());
  const std::vector<std::string> etags{"../../../x", "", ".x", "a/b", "W/\"\"", std::string(500, 'a')};
  for (const auto& etag : etags) {
    server_.set_fault([&](const HubServer::Request& r) -> std::optional<std::string> {
      return r.method == "HEAD" ? std::optional(HubServer::answer(200, "", {"ETag: " + etag})) : std::nullopt;
    });
    EXPECT_SAYS(error(), "has no etag that can name a file");
  }
}

TEST_F(Fetch, AnIndexThatLeadsOutOfItsFolderIsAnError) {
  for (const char* part : {"../../x", "/etc/passwd", "none.safetensors"}) {
    put({{"config.json", {"{}"}},
         {"model.safetensors.index.json", {fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", part)}}});
    const std::string message = error();
    EXPECT_TRUE(test::contains(message, "expected a file beside the index") || test::contains(message, "lacks 'none"))
        << message;
  }
}

}  // namespace
}  // namespace tessera::hub
