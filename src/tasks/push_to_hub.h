#pragma once
// --push_to_hub and what goes with it: the result goes to the Hub once the run has ended.
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

/// Empty unless --push_to_hub was given. Uploads the result in `folder` (--output_dir) with a model card, with
/// checkpoints where the strategy says so, and says where it is. Without a token, or offline, it says what is to be
/// uploaded, and how. DataError says that too, where the Hub refuses.
std::string push_to_hub(const UploadFlags& flags, const std::string& folder);

}  // namespace tessera::tasks
