#include "tasks/quant_flags.h"

namespace tessera::tasks {

void add_quant_flags(config::OptionTable& table, QuantFlags& f, const std::string& group) {
  using config::Unused;
  table.add(
      &f.load_in_4bit, {"--use_4bit_quantization", "--load_in_4bit"},
      "QLoRA: the linear layers but the head are packed in 4 bits as they are read, as bitsandbytes packs them; a "
      "folder that is packed already stays as it is",
      group);
  const auto of_four_bit = [](config::Option& option) -> config::Option& {
    return option.only_with({{"--use_4bit_quantization", {"true"}}});
  };
  of_four_bit(table.add(&f.settings.quant_type, {"--bnb_4bit_quant_type"}, "values that 4-bit codes stand for", group))
      .choices({"nf4", "fp4"});
  of_four_bit(table.add(&f.settings.double_quant,
                        {"--use_nested_quant", "--use_bnb_nested_quant", "--bnb_4bit_use_double_quant"},
                        "pack the scales of the blocks in 8 bits, too: 4.13 bits an element, not 4.5", group));
  table.add_without_effect(
      {"--bnb_4bit_compute_dtype", Unused::kText, "products compute as --bf16 or the launcher says"});
  for (const char* name : {"--bnb_4bit_quant_storage_dtype", "--bnb_4bit_quant_storage"})
    table.add_without_effect({name, Unused::kText, "packed bytes are sharded as they are, whatever dtype names them"});
  for (const char* name : {"--use_8bit_quantization", "--load_in_8bit"})
    table.add_refused({name, Unused::kBool, "8-bit weights are not built yet; take --use_4bit_quantization"});
}

}  // namespace tessera::tasks
