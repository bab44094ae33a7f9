#include "tasks/pack_flags.h"

namespace tessera::tasks {

std::optional<families::Quantization> PackFlags::quantization(const std::string& head, const std::string& dtype) const {
  if (type.empty()) return std::nullopt;
  auto out = settings;
  if (type == "int8")
    out.form = families::PackedForm::kInt8;
  else
    out.quant_type = type;
  out.compute_dtype = dtype;
  if (skip_modules.empty()) return out;
  out.skip_modules = skip_modules;
  out.skip_modules->push_back(head);
  return out;
}

void add_pack_flags(config::OptionTable& table, PackFlags& f) {
  const std::vector<config::Need> packs = {{"--type", {"nf4", "fp4", "int8"}}}, four_bit = {{"--type", {"nf4", "fp4"}}};
  table
      .add(&f.type, {"--type", "--bnb_4bit_quant_type"},
           "how linear layers are packed: in 4 bits (nf4, fp4), or in 8 (int8: LLM.int8())")
      .choices({"nf4", "fp4", "int8"});
  table
      .add(&f.settings.double_quant, {"--double_quant", "--use_nested_quant", "--bnb_4bit_use_double_quant"},
           "pack the scales of the blocks in 8 bits, too: 4.13 bits an element, not 4.5")
      .only_with(four_bit);
  table
      .add(&f.settings.quant_storage, {"--bnb_4bit_quant_storage", "--bnb_4bit_quant_storage_dtype"},
           "dtype of the packed bytes in the file; PyTorch's FSDP wants that of the other weights")
      .choices({"uint8", "bfloat16", "float16", "float32"})
      .only_with(four_bit);
  table
      .add(&f.settings.int8_threshold, {"--llm_int8_threshold"},
           "inputs of this magnitude are outliers, whose columns inference does not round; for config.json")
      .only_with({{"--type", {"int8"}}});
  table
      .add(&f.skip_modules, {"--skip_modules", "--llm_int8_skip_modules"},
           "modules that stay dense, besides the output head")
      .only_with(packs);
}

}  // namespace tessera::tasks
