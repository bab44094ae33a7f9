#include "tasks/assemble.h"

#include "models/gguf_model.h"
#include "peft/targets.h"

namespace tessera::tasks {
Assembled assemble(const AssembleOptions& options, std::shared_ptr<comm::Communicator> group) {
  Assembled a;
  a.model = models::build_model(options.model_folder, &a.config);
  if (!options.adapter_folder.empty()) {
    a.lora = peft::read_adapter_config(options.adapter_folder);
  } else {
    a.lora = options.lora;
  }
  if (a.lora) {
    a.lora = peft::with_default_targets(*a.lora, a.config);
    a.adapters = peft::apply_lora(*a.model, a.config, *a.lora, options.seed);
    if (peft::wants_all_linear(*a.lora)) {  // written as the list of what was found, as PEFT does
      a.lora->target_regex.clear();
      a.lora->target_modules = a.adapters->adapted;
    }
    if (!options.adapter_folder.empty()) peft::load_adapter(*a.model, options.adapter_folder);
  }
  for (const auto& p : a.model->parameters()) {
    a.parameters += p.numel();
    if (p.requires_grad()) a.trainable += p.numel();
  }
  fsdp::FsdpOptions fsdp = options.fsdp;
  if (!fsdp.source) fsdp.source = models::open_model_weights(options.model_folder);
  if (!fsdp.source_name) {
    fsdp.source_name = [source = fsdp.source](const std::string& name) { return models::source_name(*source, name); };
  }
  if (!fsdp.wrap) fsdp.wrap = fsdp::wrap_classes(a.config.no_split_classes);
  a.sharded = fsdp::fully_shard(*a.model, std::move(group), std::move(fsdp));
  return a;
}

}  // namespace tessera::tasks
