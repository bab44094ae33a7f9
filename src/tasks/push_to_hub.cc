#include "tasks/push_to_hub.h"

#include <fmt/format.h>

#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <ostream>
#include <set>
#include <thread>

#include "base/file.h"
#include "base/folder_names.h"
#include "base/log.h"
#include "base/quiet_thread.h"
#include "hub/upload.h"
#include "tasks/model_card.h"
#include "tessera/base/error.h"
#include "train/trainer_state.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

std::string name_of_folder(const std::string& folder) {
  fs::path path(folder);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.lexically_normal().filename().string();
  return name.empty() || name == "." || name == ".." ? "NAME" : name;
}

bool keeps_checkpoints(const UploadFlags& f) {
  return f.hub_strategy == "checkpoint" || f.hub_strategy == "all_checkpoints";
}

std::string id_of(const UploadFlags& f, const std::string& folder) {
  return f.hub_model_id.empty() ? name_of_folder(folder) : f.hub_model_id;
}

/// For who does it by hand.
std::string command_for(const UploadFlags& f, const std::string& folder) {
  std::string command = fmt::format("hf upload {} '{}'", id_of(f, folder), folder);
  if (!keeps_checkpoints(f)) command += " --exclude 'checkpoint-*/*'";
  if (!f.hub_revision.empty()) command += " --revision " + f.hub_revision;
  if (f.hub_private_repo) command += " --private";
  return command;
}

void add_folder(const fs::path& folder, const std::string& as, std::vector<hub::UploadFile>& out) {
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      out.push_back({as + entry.path().lexically_relative(folder).string(), entry.path().string()});
}

/// In the repository, for the strategies that keep checkpoints.
std::string place_of_checkpoint(const UploadFlags& f, const std::string& name) {
  return f.hub_strategy == "checkpoint" ? "last-checkpoint/" : name + "/";
}

void sort_by_path(std::vector<hub::UploadFile>& files) {
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
}

/// What the Trainer uploads: all of the folder but what begins with "_" or "." and the checkpoints; of these the last
/// one as last-checkpoint, or all, but for those that are there.
std::vector<hub::UploadFile> files_to_upload(const UploadFlags& f, const std::string& folder,
                                             const std::set<std::string>& uploaded) {
  std::vector<hub::UploadFile> out;
  std::int64_t last = -1;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('_') || name.starts_with('.')) continue;
    const std::int64_t step = checkpoint_step(name);
    last = std::max(last, step);
    if (step >= 0 && (f.hub_strategy != "all_checkpoints" || uploaded.contains(name))) continue;
    if (entry.is_directory())
      add_folder(entry.path(), name + "/", out);
    else if (entry.is_regular_file())
      out.push_back({name, entry.path().string()});
  }
  const std::string name = fmt::format("{}{}", kCheckpointPrefix, last);
  if (f.hub_strategy == "checkpoint" && last >= 0 && !uploaded.contains(name))
    add_folder(folder + "/" + name, place_of_checkpoint(f, name), out);
  sort_by_path(out);
  return out;
}

/// The model or adapter of a checkpoint, which stands at the repository's top: no state of the training.
std::vector<hub::UploadFile> model_in(const std::string& checkpoint) {
  std::vector<hub::UploadFile> out;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename().string();
    const bool is_state = name == "manifest.json" || name == "trainer_state.json" || name == "training_state" ||
                          name.starts_with("pytorch_model_fsdp") || name.starts_with("optimizer");
    if (is_state) continue;
    if (entry.is_directory())
      add_folder(entry.path(), name + "/", out);
    else
      out.push_back({name, entry.path().string()});
  }
  sort_by_path(out);
  return out;
}

/// The same files under another name: linked, or copied where a file system has no links.
void link_folder(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    const fs::path target = to / entry.path().lexically_relative(from);
    std::error_code code;
    if (entry.is_directory())
      fs::create_directories(target);
    else if (fs::create_hard_link(entry.path(), target, code); code)
      fs::copy_file(entry.path(), target);
  }
}

/// As the Trainer names them: "Training in progress, step 10", or "... epoch 1".
std::string message_of(const std::string& checkpoint, std::int64_t step, train::Interval strategy) {
  if (strategy == train::Interval::kSteps) return fmt::format("Training in progress, step {}", step);
  const auto state = train::TrainerState::read(checkpoint + "/trainer_state.json");
  return fmt::format("Training in progress, epoch {}", static_cast<std::int64_t>(state.epoch));
}

constexpr const char* kLinked = ".uploading-";  // what checkpoint-N is called while it goes up

bool can_upload(const hub::Settings& settings) {
  return !settings.offline && !settings.token.empty();
}

hub::Upload upload_of(const UploadFlags& f, const std::string& folder) {
  return {.id = id_of(f, folder),
          .revision = f.hub_revision.empty() ? "main" : f.hub_revision,
          .is_private = f.hub_private_repo,
          .message = {},
          .files = {}};
}

}  // namespace

void add_upload_flags(config::OptionTable& table, UploadFlags& f, const char* group) {
  const std::vector<config::Need> pushed = {{"--push_to_hub", {"true"}}};
  table.add(
      &f.push_to_hub, {"--push_to_hub"},
      "upload to the Hub, while the run goes on and when it has ended; without a token in HF_TOKEN say what to upload, "
      "and how",
      group);
  table
      .add(&f.hub_model_id, {"--hub_model_id", "--push_to_hub_model_id"}, "under which name; empty: the folder's",
           group)
      .only_with(pushed);
  table.add(&f.hub_revision, {"--hub_revision"}, "into which branch; empty: main", group).only_with(pushed);
  table
      .add(
          &f.hub_strategy, {"--hub_strategy"},
          "end: the result when the run has ended; every_save: the model of each checkpoint, too; checkpoint: also the "
          "last checkpoint itself, as last-checkpoint; all_checkpoints: also all of them",
          group)
      .choices({"end", "every_save", "checkpoint", "all_checkpoints"})
      .only_with(pushed);
  table
      .add(&f.hub_always_push, {"--hub_always_push"}, "upload each checkpoint, also while the one before still goes up",
           group)
      .only_with(pushed);
  table.add(&f.hub_private_repo, {"--hub_private_repo"}, "a repository that is made for it is private", group)
      .only_with(pushed);
  const char* token = "command lines can be read by others: the token is taken from HF_TOKEN or its file";
  table.add_without_effect({"--hub_token", config::Unused::kText, token});
  table.add_without_effect({"--push_to_hub_token", config::Unused::kText, token});
  table.add_without_effect(
      {"--push_to_hub_organization", config::Unused::kText, "say it in --hub_model_id: ORGANIZATION/NAME"});
}

/// Sends one checkpoint after the other.
class RunUploads::Thread {
 public:
  struct Job {
    std::string name, linked;  // checkpoint-N, and the folder with its files; goes when the job is done
    std::vector<hub::Upload> commits;
  };

  explicit Thread(hub::Settings settings) : settings_(std::move(settings)) {
    settings_.tries = 2;  // the end of the run tries again
    thread_ = start_quiet_thread("upload", [this] { run(); });
  }
  ~Thread() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void push(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_all();
  }
  bool is_busy() {
    const std::lock_guard lock(mutex_);
    return !jobs_.empty();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return jobs_.empty(); });
  }
  /// The checkpoints that are whole on the Hub. Once nothing goes on.
  const std::set<std::string>& uploaded() const { return uploaded_; }

 private:
  void run() {
    ::setpriority(PRIO_PROCESS, 0, 10);  // of this thread: checksums wait for the training
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job& job = jobs_.front();  // stays where it is while it is done
      lock.unlock();
      const bool done = send(job);
      std::error_code code;
      fs::remove_all(job.linked, code);
      lock.lock();
      if (done && job.commits.size() > 1) uploaded_.insert(job.name);
      jobs_.pop_front();
      wake_.notify_all();
    }
  }

  bool send(const Job& job) const {
    try {
      for (const hub::Upload& commit : job.commits) (void)hub::upload(commit, settings_);
      return true;
    } catch (const std::exception& failure) {
      log_warning(fmt::format("--push_to_hub: {} was not uploaded: {}. The run goes on, and its end uploads again",
                              job.name, failure.what()));
      return false;
    }
  }

  hub::Settings settings_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;  // the first is being done
  std::set<std::string> uploaded_;
  bool ends_ = false;
  std::thread thread_;
};

RunUploads::RunUploads(const UploadFlags& flags, const train::TrainingArguments& arguments, std::ostream& out)
    : flags_(flags), arguments_(arguments), out_(out) {}

RunUploads::~RunUploads() {
  if (thread_ && thread_->is_busy()) log_info("--push_to_hub: waiting for the upload of a checkpoint");
}

void RunUploads::push_checkpoint(const std::string& folder) {
  if (!flags_.push_to_hub || flags_.hub_strategy == "end") return;
  const std::string& output = arguments_.output_dir;
  Thread::Job job{.name = fs::path(folder).filename().string(), .linked = {}, .commits = {}};
  try {
    const hub::Settings settings = hub::settings_from_environment();
    if (!can_upload(settings)) return;
    if (!thread_) {
      for (const auto& entry : fs::directory_iterator(output))  // of a run that was killed
        if (entry.path().filename().string().starts_with(kLinked)) fs::remove_all(entry.path());
      thread_ = std::make_unique<Thread>(settings);
    }
    if (thread_->is_busy() && !flags_.hub_always_push) return;
    job.linked = output + "/" + kLinked + job.name;
    link_folder(folder, job.linked);
    hub::Upload commit = upload_of(flags_, output);
    commit.message = message_of(job.linked, checkpoint_step(job.name), arguments_.save_strategy);
    commit.files = model_in(job.linked);
    job.commits.push_back(commit);
    if (keeps_checkpoints(flags_)) {
      commit.message += ", checkpoint";
      commit.files.clear();
      add_folder(job.linked, place_of_checkpoint(flags_, job.name), commit.files);
      job.commits.push_back(std::move(commit));
    }
    thread_->push(std::move(job));
  } catch (const std::exception& failure) {
    std::error_code code;
    if (!job.linked.empty()) fs::remove_all(job.linked, code);
    log_warning(fmt::format("--push_to_hub: {} is not uploaded: {}", job.name, failure.what()));
  }
}

void RunUploads::push_result() {
  if (!flags_.push_to_hub) return;
  const std::string& folder = arguments_.output_dir;
  const hub::Settings settings = hub::settings_from_environment();
  const std::string by_hand = fmt::format("What to upload is in '{}':\n  {}\n", folder, command_for(flags_, folder));
  if (!can_upload(settings)) {
    out_ << "--push_to_hub: nothing is uploaded, "
         << (settings.offline ? "HF_HUB_OFFLINE is set. " : "there is no token in HF_TOKEN. ") << by_hand << std::flush;
    return;
  }
  if (thread_) thread_->wait();
  write_model_card(folder, id_of(flags_, folder));
  hub::Upload commit = upload_of(flags_, folder);
  commit.message = "Model save";
  commit.files = files_to_upload(flags_, folder, thread_ ? thread_->uploaded() : std::set<std::string>());
  try {
    const std::string page = hub::upload(commit, settings);
    out_ << "uploaded to " << page << "\n" << std::flush;
  } catch (const Error& failure) {
    throw DataError(fmt::format("--push_to_hub: {}. {}", failure.what(), by_hand), folder);
  }
}

}  // namespace tessera::tasks
