#include "tasks/job.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "checkpoint/pretrained.h"
#include "report/memory.h"

namespace tessera::tasks {

void describe(const Assembled& model, bool print_model, std::ostream& out) {
  peft::LoraReport report;
  report.trainable = model.trainable;
  report.total = model.parameters;
  out << model.adapters.value_or(report).trainable_line() << "\n";
  if (print_model) out << model.sharded->to_string() << "\n";
}

void save_trained(Assembled& model, const std::string& base_folder, const std::string& folder) {
  if (model.lora) {
    checkpoint::save_adapter(*model.sharded, *model.model, *model.lora, folder);
  } else {
    checkpoint::save_pretrained(*model.sharded, base_folder, folder);
  }
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

}  // namespace tessera::tasks
