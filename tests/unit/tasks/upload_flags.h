#pragma once
// The cases of --push_to_hub, which every training command takes.
#include "flag_sweep.h"

namespace tessera::tasks {

inline const Words kPushed = {"--push_to_hub"};
inline const std::vector<FlagCase> kUploadCases = {{"--push_to_hub", {}},
                                                   {"--hub_model_id", {"someone/something"}, kPushed},
                                                   {"--hub_revision", {"branch"}, kPushed},
                                                   {"--hub_strategy", {"checkpoint"}, kPushed},
                                                   {"--hub_private_repo", {}, kPushed}};
inline const Unseen kUnseenOfUploads = {"--hub_always_push",
                                        "which checkpoints are uploaded while others are (process/hub_test.cc)"};

}  // namespace tessera::tasks
