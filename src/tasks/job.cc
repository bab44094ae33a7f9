#include "tasks/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/grouped.h"
#include "base/json_text.h"
#include "base/quantity_text.h"
#include "checkpoint/pretrained.h"
#include "config/accelerate.h"
#include "peft/adapter_files.h"
#include "peft/methods/word_embedding.h"
#include "report/memory.h"
#include "train/interruption.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kLongestModel = 200;  // lines that are printed unasked

std::vector<checkpoint::TokenId> token_ids(const text::Tokenizer& tokenizer, const models::ModelConfig& model) {
  return {{"eos_token_id", tokenizer.eos_id(), model.eos_token_id},
          {"pad_token_id", tokenizer.pad_id(), model.pad_token_id},
          {"bos_token_id", tokenizer.bos_id(), tokenizer.bos_id()}};
}

/// `write` saves; the tokenizer follows.
template <class Write>
void save_with(Assembled& model, const ResultFiles& files, const std::string& folder, checkpoint::SaveQueue* queue,
               const Write& write) {
  checkpoint::SaveQueue now;
  checkpoint::SaveQueue& used = queue ? *queue : now;
  write(checkpoint::SaveOptions{.files = {.model = files.model_folder, .tokenizer = files.tokenizer_path},
                                .vocab_size = model.config.vocab_size,
                                .dtype = checkpoint::chosen_dtype(files.dtype),
                                .token_ids = token_ids(*files.tokenizer, model.config),
                                .classifier = files.classes},
        &used);
  comm::Communicator& group = model.sharded->group();
  if (group.rank() == 0) used.push([tokenizer = files.tokenizer, folder] { tokenizer->save(folder); });
  if (!queue) checkpoint::throw_failure_of_any(group, now.take_failure(), folder);
}

}  // namespace

void describe(const Assembled& model, std::optional<bool> print_model, std::ostream& out) {
  peft::AdapterReport report;
  report.trainable = model.trainable;
  report.total = model.parameters;
  out << model.adapters.value_or(report).trainable_line() << "\n";
  if (model.several)
    for (const auto& member : model.several->members())
      if (member.trainable > 0)
        out << fmt::format("adapter '{}': {}, {} parameters\n", member.name, member.method->type(),
                           grouped(member.trainable));
  if (!model.config.note.empty()) out << model.config.note << "\n";
  if (!print_model.value_or(true)) return;
  const std::string text = model.sharded->to_string();
  const auto lines = std::count(text.begin(), text.end(), '\n') + 1;
  if (print_model || lines <= kLongestModel) {
    out << text << "\n";
  } else {
    out << "the model has " << lines << " lines; --print_model true prints them\n";
  }
}

void save_trained(Assembled& model, const ResultFiles& files, const std::string& folder, checkpoint::SaveQueue* queue) {
  save_with(model, files, folder, queue, [&](const checkpoint::SaveOptions& options, checkpoint::SaveQueue* used) {
    if (model.adapters) {
      checkpoint::save_adapter(*model.sharded, model.adapted(), options, folder, used);
    } else {
      checkpoint::save_pretrained(*model.sharded, options, folder, used);
    }
  });
}

void save_member(Assembled& model, const peft::SeveralAdapters::Member& member, const ResultFiles& files,
                 const std::string& folder, checkpoint::SaveQueue* queue) {
  save_with(model, files, folder, queue, [&](const checkpoint::SaveOptions& options, checkpoint::SaveQueue* used) {
    checkpoint::save_adapter(*model.sharded, model.adapted(member), options, folder, used);
  });
}

std::vector<checkpoint::TiedName> tied_names(const Assembled& model) {
  std::vector<checkpoint::TiedName> out;
  for (const auto& module : peft::tied_to_words(*model.model, model.config))
    out.push_back({module + ".weight", peft::word_embedding(*model.model, model.config.vocab_size).name + ".weight"});
  return out;
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
  if (!model.adapters && !model.several) content.tied_in_torch = tied_names(model);
  if (!model.adapters) return;
  std::map<std::string, std::string> names;  // of an adapter Accelerate keeps what PEFT keeps
  for (const auto& entry : peft::adapter_entries(*model.model, *model.adapters->method))
    names[entry.parameter] = entry.file_name;
  content.model_name_in_torch = [names](const std::string& parameter) {
    const auto it = names.find(parameter);
    return it == names.end() ? std::string() : it->second;
  };
  content.optimizer_name_in_torch = [method = model.adapters->method](const std::string& parameter) {
    return method->name_in_peft(parameter);
  };
}

std::string saved_line(const Assembled& model, const std::string& folder) {
  return std::string(model.adapters ? "adapter" : "model") + " saved in " + folder + "\n";
}

nlohmann::ordered_json report_memory(comm::Communicator& group, std::ostream& out) {
  using Json = nlohmann::ordered_json;
  const report::ProcessMemory m = report::process_memory();
  const Json mine = {{"peak_resident_mib", m.peak_resident_bytes >> 20},
                     {"proportional_mib", m.proportional_bytes >> 20}};
  Json ranks = Json::array();
  for (const auto& bytes : group.all_gather_objects(json_text(mine))) ranks.push_back(Json::parse(bytes));
  out << memory_line(ranks) << "\n" << std::flush;
  return ranks;
}

std::string memory_line(const nlohmann::ordered_json& ranks) {
  std::string text = "memory: ";
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto own = ranks[r]["proportional_mib"].get<std::int64_t>();
    sum += own;
    text += fmt::format("{}rank {} {} (peak {})", r == 0 ? "" : ", ", r, mib_text(own),
                        mib_text(ranks[r]["peak_resident_mib"]));
  }
  return ranks.size() == 1 ? text : text + "; together " + mib_text(sum);
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
