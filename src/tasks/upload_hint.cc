#include "tasks/upload_hint.h"

#include <fmt/format.h>

#include <filesystem>

namespace tessera::tasks {
namespace {

std::string last_part(const std::string& folder) {
  std::filesystem::path path(folder);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.lexically_normal().filename().string();
  return name.empty() || name == "." || name == ".." ? "NAME" : name;
}

}  // namespace

void add_upload_flags(config::OptionTable& table, UploadFlags& f) {
  const char* group = "Output";
  const std::vector<config::Need> pushed = {{"--push_to_hub", {"true"}}};
  table.add(&f.push_to_hub, {"--push_to_hub"}, "say at the end what to upload, and how: nothing is uploaded here",
            group);
  table
      .add(&f.hub_model_id, {"--hub_model_id", "--push_to_hub_model_id"}, "under which name; empty: the folder's",
           group)
      .only_with(pushed);
  table.add(&f.hub_revision, {"--hub_revision"}, "into which branch; empty: main", group).only_with(pushed);
  table.add(&f.hub_strategy, {"--hub_strategy"}, "the result alone (end, every_save), or checkpoints as well", group)
      .choices({"end", "every_save", "checkpoint", "all_checkpoints"})
      .only_with(pushed);
  table.add(&f.hub_private_repo, {"--hub_private_repo"}, "for few eyes", group).only_with(pushed);
  table.add_without_effect(
      {"--hub_token", config::Unused::kText, "nothing is uploaded; the command that uploads asks"});
  table.add_without_effect(
      {"--push_to_hub_token", config::Unused::kText, "nothing is uploaded; the command that uploads asks"});
  table.add_without_effect(
      {"--push_to_hub_organization", config::Unused::kText, "say it in --hub_model_id: ORGANIZATION/NAME"});
  table.add_without_effect({"--hub_always_push", config::Unused::kBool, "nothing is uploaded"});
}

std::string upload_hint(const UploadFlags& f, const std::string& folder) {
  if (!f.push_to_hub) return {};
  const std::string id = f.hub_model_id.empty() ? last_part(folder) : f.hub_model_id;
  std::string command = fmt::format("hf upload {} '{}'", id, folder);
  if (f.hub_strategy == "end" || f.hub_strategy == "every_save") command += " --exclude 'checkpoint-*/*'";
  if (!f.hub_revision.empty()) command += " --revision " + f.hub_revision;
  if (f.hub_private_repo) command += " --private";
  return fmt::format("--push_to_hub: nothing is uploaded by this program. What to upload is in '{}':\n  {}\n", folder,
                     command);
}

}  // namespace tessera::tasks
