#pragma once
// accelerate's questionnaire: its questions in its order, its file.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/questions.h"

namespace tessera::cli {

/// What is proposed where accelerate proposes the same to everybody.
struct Proposals {
  bool has_gpu = false;
  int num_processes = 1;
  std::string mixed_precision = "no";
  bool activation_checkpointing = false;
  std::string layer_classes;       // of --model, "LlamaDecoderLayer"; empty: no model was named
  std::vector<std::string> notes;  // why, for the user
};

/// From this machine and, where it is named, a model's folder. DataError or ConfigError when there is no such model.
Proposals propose(const std::string& model);

/// The answers as the document that accelerate makes of them. Questions whose only answer here is no (SageMaker, TPUs,
/// mpirun, torch dynamo, DeepSpeed, Megatron-LM) are left out; beside accelerate's, multi-CPU asks for FSDP, too.
nlohmann::json ask_for_config(Questions& questions, const Proposals& proposals);

}  // namespace tessera::cli
