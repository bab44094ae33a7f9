#pragma once
// --push_to_hub and what goes with it: nothing is uploaded here; at the end the user is told what to upload, and how.
#include <string>

#include "config/options.h"

namespace tessera::tasks {

struct UploadFlags {
  bool push_to_hub = false;
  std::string hub_model_id, hub_revision;  // empty: named after the folder; the main branch
  std::string hub_strategy = "every_save";
  bool hub_private_repo = false;
};

void add_upload_flags(config::OptionTable& table, UploadFlags& flags);

/// Empty unless --push_to_hub was given. `folder`: --output_dir.
std::string upload_hint(const UploadFlags& flags, const std::string& folder);

}  // namespace tessera::tasks
