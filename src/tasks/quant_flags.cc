#include "tasks/quant_flags.h"

namespace tessera::tasks {

std::optional<families::Quantization> QuantFlags::quantization() const {
  if (!packs()) return std::nullopt;
  auto out = settings;
  out.form = load_in_8bit ? families::PackedForm::kInt8 : families::PackedForm::kFourBit;
  if (skip_modules.empty()) return out;
  out.skip_modules = skip_modules;
  for (const char* head : {"lm_head", "embed_out"}) out.skip_modules->emplace_back(head);
  return out;
}

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
  table.add(&f.load_in_8bit, {"--use_8bit_quantization", "--load_in_8bit"},
            "LLM.int8(): the linear layers but the head are packed in 8 bits as they are read, as bitsandbytes packs "
            "them; a folder that is packed already stays as it is",
            group);
  table
      .add(&f.settings.int8_threshold, {"--llm_int8_threshold"},
           "inputs of this magnitude are outliers, whose columns evaluation and generation do not round; 0: none are",
           group)
      .only_with({{"--use_8bit_quantization", {"true"}}});
  table
      .add(&f.skip_modules, {"--llm_int8_skip_modules"},
           "modules that stay dense, besides the output head: names or parts of them between dots", group)
      .only_with({{"--use_4bit_quantization", {"true"}}, {"--use_8bit_quantization", {"true"}}});
  of_four_bit(table.add(&f.settings.compute_dtype, {"--bnb_4bit_compute_dtype"},
                        "products with 4-bit weights compute in it where the run is in float32; --bf16, --fp16 and the "
                        "launcher's mixed precision come before it",
                        group))
      .choices({"float32", "bfloat16", "float16"});
  for (const char* name : {"--bnb_4bit_quant_storage_dtype", "--bnb_4bit_quant_storage"})
    table.add_without_effect({name, Unused::kText, "packed bytes are sharded as they are, whatever dtype names them"});
}

void check_quant_flags(const QuantFlags& flags, bool trains_adapter, config::Problems& problems) {
  problems.require(!flags.load_in_4bit || !flags.load_in_8bit,
                   "--use_4bit_quantization and --use_8bit_quantization pack the same weights: keep one",
                   "use_8bit_quantization");
  problems.require(flags.settings.int8_threshold >= 0, "--llm_int8_threshold is a magnitude: at least 0",
                   "llm_int8_threshold");
  const std::string flag = flags.load_in_8bit ? "use_8bit_quantization" : "use_4bit_quantization";
  problems.require(!flags.packs() || trains_adapter,
                   "--" + flag +
                       " packs the weights, which then do not train: train an adapter over them with "
                       "--use_peft_lora",
                   flag);
}

}  // namespace tessera::tasks
