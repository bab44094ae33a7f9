#include "tasks/push_to_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/folder_names.h"
#include "hub/upload.h"
#include "tasks/model_card.h"
#include "tessera/base/error.h"

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

/// What the Trainer uploads: all of the folder but what begins with "_" or "." and the checkpoints; of these the last
/// one as last-checkpoint, or all.
std::vector<hub::UploadFile> files_to_upload(const UploadFlags& f, const std::string& folder) {
  std::vector<hub::UploadFile> out;
  std::int64_t last = -1;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('_') || name.starts_with('.')) continue;
    const std::int64_t step = checkpoint_step(name);
    last = std::max(last, step);
    if (step >= 0 && f.hub_strategy != "all_checkpoints") continue;
    if (entry.is_directory())
      add_folder(entry.path(), name + "/", out);
    else if (entry.is_regular_file())
      out.push_back({name, entry.path().string()});
  }
  if (f.hub_strategy == "checkpoint" && last >= 0)
    add_folder(fmt::format("{}/checkpoint-{}", folder, last), "last-checkpoint/", out);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return out;
}

}  // namespace

void add_upload_flags(config::OptionTable& table, UploadFlags& f) {
  const char* group = "Output";
  const std::vector<config::Need> pushed = {{"--push_to_hub", {"true"}}};
  table.add(
      &f.push_to_hub, {"--push_to_hub"},
      "upload the result to the Hub when the run has ended; without a token in HF_TOKEN say what to upload, and how",
      group);
  table
      .add(&f.hub_model_id, {"--hub_model_id", "--push_to_hub_model_id"}, "under which name; empty: the folder's",
           group)
      .only_with(pushed);
  table.add(&f.hub_revision, {"--hub_revision"}, "into which branch; empty: main", group).only_with(pushed);
  table
      .add(
          &f.hub_strategy, {"--hub_strategy"},
          "the result alone (end, every_save), with the last checkpoint (checkpoint), or with all; always when the run "
          "has ended",
          group)
      .choices({"end", "every_save", "checkpoint", "all_checkpoints"})
      .only_with(pushed);
  table.add(&f.hub_private_repo, {"--hub_private_repo"}, "a repository that is made for it is private", group)
      .only_with(pushed);
  const char* token = "command lines can be read by others: the token is taken from HF_TOKEN or its file";
  table.add_without_effect({"--hub_token", config::Unused::kText, token});
  table.add_without_effect({"--push_to_hub_token", config::Unused::kText, token});
  table.add_without_effect(
      {"--push_to_hub_organization", config::Unused::kText, "say it in --hub_model_id: ORGANIZATION/NAME"});
  table.add_without_effect({"--hub_always_push", config::Unused::kBool, "the upload waits for the end of the run"});
}

std::string push_to_hub(const UploadFlags& f, const std::string& folder) {
  if (!f.push_to_hub) return {};
  const hub::Settings settings = hub::settings_from_environment();
  const std::string by_hand = fmt::format("What to upload is in '{}':\n  {}\n", folder, command_for(f, folder));
  if (settings.offline) return "--push_to_hub: nothing is uploaded, HF_HUB_OFFLINE is set. " + by_hand;
  if (settings.token.empty()) return "--push_to_hub: nothing is uploaded, there is no token in HF_TOKEN. " + by_hand;
  write_model_card(folder, id_of(f, folder));
  try {
    const std::string page = hub::upload({.id = id_of(f, folder),
                                          .revision = f.hub_revision.empty() ? "main" : f.hub_revision,
                                          .is_private = f.hub_private_repo,
                                          .message = "Model save",
                                          .files = files_to_upload(f, folder)},
                                         settings);
    return "uploaded to " + page + "\n";
  } catch (const Error& failure) {
    throw DataError(fmt::format("--push_to_hub: {}. {}", failure.what(), by_hand), folder);
  }
}

}  // namespace tessera::tasks
