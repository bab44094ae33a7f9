#include "train/profile.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "base/json_text.h"
#include "tensor/span.h"
#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr std::int64_t kSteps = 3;
constexpr std::uint64_t kLineOfUnits = 1000;  // beyond the numbers of threads

/// On one host the same clock for all ranks.
std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct Started : at::ObserverContext {
  explicit Started(std::int64_t ns) : ns(ns) {}
  std::int64_t ns;
};

nlohmann::json name_of_line(int rank, std::uint64_t line, const std::string& name) {
  return {{"ph", "M"}, {"name", "thread_name"}, {"pid", rank}, {"tid", line}, {"args", {{"name", name}}}};
}

}  // namespace

class Profile::Recorder {
 public:
  explicit Recorder(std::int64_t base_ns) : base_ns_(base_ns), thread_(at::RecordFunction::currentThreadId()) {
    Recorder* none = nullptr;
    if (!current().compare_exchange_strong(none, this)) return;
    using Scope = at::RecordScope;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&start, &end)
                                        .scopes({Scope::FUNCTION, Scope::BACKWARD_FUNCTION, Scope::USER_SCOPE}));
  }
  ~Recorder() {
    if (handle_ == at::INVALID_CALLBACK_HANDLE) return;
    at::removeCallback(handle_);
    current() = nullptr;
  }

  /// Events of the trace, a JSON object each, separated by commas.
  std::string events(int rank) {
    const std::lock_guard lock(mutex_);
    std::string text;
    const auto add = [&](const nlohmann::json& event) { text += (text.empty() ? "" : ",\n") + json_text(event); };
    add({{"ph", "M"}, {"name", "process_name"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}});
    add(name_of_line(rank, thread_, "training"));
    add(name_of_line(rank, kLineOfUnits, "backward of units"));
    for (const Event& e : events_) {
      add({{"ph", "X"},
           {"name", e.name},
           {"cat", e.is_span ? "span" : "operator"},
           {"pid", rank},
           {"tid", e.name.starts_with(tensor::kBackwardOfUnit) ? kLineOfUnits : e.thread},
           {"ts", static_cast<double>(e.start_ns - base_ns_) / 1e3},
           {"dur", static_cast<double>(e.ns) / 1e3}});
    }
    return text;
  }

 private:
  struct Event {
    std::string name;
    bool is_span;
    std::uint64_t thread;
    std::int64_t start_ns, ns;
  };
  static std::atomic<Recorder*>& current() {
    static std::atomic<Recorder*> recorder = nullptr;
    return recorder;
  }
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction&) {
    return std::make_unique<Started>(wall_clock_ns());
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    Recorder* recorder = current();
    if (recorder == nullptr || context == nullptr) return;
    const std::int64_t start_ns = static_cast<Started*>(context)->ns;
    const bool is_span = function.scope() == at::RecordScope::USER_SCOPE;
    const std::lock_guard lock(recorder->mutex_);
    recorder->events_.push_back({function.name(), is_span, function.threadId(), start_ns, wall_clock_ns() - start_ns});
  }

  const std::int64_t base_ns_;
  const std::uint64_t thread_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  std::mutex mutex_;
  std::vector<Event> events_;
};

Profile::Profile(std::string path, comm::Communicator& group, std::int64_t done, std::int64_t total_steps)
    : path_(std::move(path)), group_(group) {
  const auto folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    throw ConfigError(
        "--profile " + path_ + ": there is no folder '" + folder.string() + "'; make it, or choose another", "profile");
  }
  first_ = std::min(done + 1, total_steps - 1);
  last_ = std::min(first_ + kSteps, total_steps);
}

Profile::~Profile() = default;

void Profile::before_step(std::int64_t done) {
  if (done != first_ || recorder_) return;
  const std::string base = group_.broadcast_object(std::to_string(wall_clock_ns()), 0);
  recorder_ = std::make_unique<Recorder>(std::stoll(base));
}

void Profile::after_step(std::int64_t done) {
  if (!recorder_) return;
  recorded_ = done;
  if (done == last_) write();
}

std::string Profile::finish() {
  if (recorder_) write();
  if (recorded_ == 0) return "profile: the run ended before the steps that it is of; nothing was written";
  return fmt::format("profile: steps {} to {} of {} rank(s) are in {}; open it in ui.perfetto.dev or chrome://tracing",
                     first_ + 1, recorded_, group_.size(), path_);
}

void Profile::write() {
  const std::string mine = recorder_->events(group_.rank());
  recorder_.reset();
  const auto all = group_.all_gather_objects(mine);
  if (group_.rank() == 0) {
    std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    for (std::size_t r = 0; r < all.size(); ++r) text += (r > 0 ? ",\n" : "") + all[r];
    write_file_atomically(path_, text + "\n]}\n");
  }
}

}  // namespace tessera::train
