#pragma once
// --push_to_hub and what goes with it: checkpoints go to the Hub while a run goes on, its result when it has ended.
#include <iosfwd>
#include <memory>
#include <string>

#include "config/options.h"
#include "train/training_arguments.h"

namespace tessera::tasks {

struct UploadFlags {
  bool push_to_hub = false;
  std::string hub_model_id, hub_revision;  // empty: named after the folder; the main branch
  std::string hub_strategy = "every_save";
  bool hub_private_repo = false, hub_always_push = false;
};

void add_upload_flags(config::OptionTable& table, UploadFlags& flags, const char* group);

/// The uploads of one run, by rank 0. Does nothing without --push_to_hub.
class RunUploads {
 public:
  /// out: standard output. Both outlive it.
  RunUploads(const UploadFlags& flags, const train::TrainingArguments& arguments, std::ostream& out);
  /// Waits for the upload that goes on.
  ~RunUploads();
  RunUploads(const RunUploads&) = delete;
  RunUploads& operator=(const RunUploads&) = delete;

  /// A checkpoint has got its name. Uploads it as --hub_strategy says, by a thread, and returns at once; leaves it out
  /// while another goes up, unless --hub_always_push. Its files are linked first, so that the checkpoint may be
  /// removed. A failure is a warning: the end of the run uploads what is missing. Throws nothing.
  void push_checkpoint(const std::string& folder);

  /// Uploads the result in --output_dir with a model card and the checkpoints that the strategy wants and that are not
  /// there yet, and says where it is. Without a token, or offline, says what is to be uploaded, and how. DataError says
  /// that too, where the Hub refuses.
  void push_result();

 private:
  class Thread;

  const UploadFlags& flags_;
  const train::TrainingArguments& arguments_;
  std::ostream& out_;
  std::unique_ptr<Thread> thread_;  // null: nothing was uploaded yet
};

}  // namespace tessera::tasks
