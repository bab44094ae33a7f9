#include "tasks/job.h"

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "checkpoint/pretrained.h"
#include "config/accelerate.h"
#include "peft/adapter_files.h"
#include "report/memory.h"
#include "train/interruption.h"

namespace tessera::tasks {

void describe(const Assembled& model, bool print_model, std::ostream& out) {
  peft::LoraReport report;
  report.trainable = model.trainable;
  report.total = model.parameters;
  out << model.adapters.value_or(report).trainable_line() << "\n";
  if (print_model) out << model.sharded->to_string() << "\n";
}

void save_trained(Assembled& model, const std::string& base_folder, const std::string& folder,
                  checkpoint::SaveQueue* queue) {
  if (model.lora) {
    checkpoint::save_adapter(*model.sharded, *model.model, *model.lora, folder, queue);
  } else {
    checkpoint::save_pretrained(*model.sharded, base_folder, folder, model.config.vocab_size, queue);
  }
}

void set_torch_state(const Assembled& model, train::CheckpointContent& content) {
  switch (config::from_environment().fsdp.state_dict_type) {
    case config::StateDictType::kFull:
      content.torch_state = checkpoint::TorchStateType::kFull;
      break;
    case config::StateDictType::kSharded:
      content.torch_state = checkpoint::TorchStateType::kSharded;
      break;
    case config::StateDictType::kLocal:
      content.torch_state = checkpoint::TorchStateType::kLocal;
      break;
  }
  if (!model.lora) return;
  std::map<std::string, std::string> names;  // of an adapter Accelerate keeps what PEFT keeps
  for (const auto& entry : peft::adapter_entries(*model.model, *model.lora)) names[entry.parameter] = entry.file_name;
  content.model_name_in_torch = [names](const std::string& parameter) {
    const auto it = names.find(parameter);
    return it == names.end() ? std::string() : it->second;
  };
  content.optimizer_name_in_torch = [](const std::string& parameter) { return "base_model.model." + parameter; };
}

std::string saved_line(const Assembled& model, const std::string& folder) {
  return std::string(model.lora ? "adapter" : "model") + " saved in " + folder + "\n";
}

nlohmann::ordered_json report_memory(comm::Communicator& group, std::ostream& out) {
  using Json = nlohmann::ordered_json;
  const report::ProcessMemory m = report::process_memory();
  const Json mine = {{"peak_resident_mib", m.peak_resident_bytes >> 20},
                     {"proportional_mib", m.proportional_bytes >> 20}};
  Json ranks = Json::array();
  for (const auto& bytes : group.all_gather_objects(mine.dump())) ranks.push_back(Json::parse(bytes));
  out << "memory per rank (MiB): " << ranks.dump() << "\n" << std::flush;
  return ranks;
}

std::unique_ptr<report::MetricsFile> open_metrics(comm::Communicator& group, const std::string& folder,
                                                  const std::string& file) {
  const std::string path = file.empty() ? folder + "/metrics.jsonl" : file;
  return std::make_unique<report::MetricsFile>(group.rank() == 0 ? path : "");
}

int interrupted_exit_code(comm::Communicator& group) {
  constexpr int kBySignal = 128;
  int signal = train::Interruption::signal();
  for (const auto& other : group.all_gather_objects(std::to_string(signal))) {
    if (signal == 0) signal = std::stoi(other);
  }
  return kBySignal + signal;
}

}  // namespace tessera::tasks
