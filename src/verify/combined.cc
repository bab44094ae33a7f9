// Adapters that PEFT combined (expect.json with "combined" and "adapters"): the new adapters' values, and logits with
// each of them, with each of the first ones, and without any.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "base/json_text.h"
#include "peft/adapter_config.h"
#include "peft/combine/combine_lora.h"
#include "peft/methods/lora.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "verify/reference_json.h"
#include "verify/rows_of_adapters.h"
#include "verify/scratch_folder.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kCombinedTolerance = 1e-4;

peft::CombineOptions combine_options(const json& arguments, const fs::path& adapters) {
  peft::CombineOptions o;
  const auto weights = arguments.at("weights").get<std::vector<double>>();
  for (const auto& name : arguments.at("adapters")) {
    const auto text = name.get<std::string>();
    o.adapters.push_back({text, (adapters / text).string(), weights.at(o.adapters.size())});
  }
  // The first ones are read above; how the reference computes singular values makes no other values.
  static const std::set<std::string> kIgnored = {"adapters", "weights", "svd_full_matrices", "svd_driver"};
  for (const auto& [key, value] : arguments.items()) {
    if (value.is_null() || kIgnored.contains(key)) continue;
    if (key == "combination_type") {
      o.combination_type = value;
    } else if (key == "svd_rank") {
      o.svd_rank = value.get<std::int64_t>();
    } else if (key == "svd_clamp") {
      o.svd_clamp = value.get<double>();
    } else if (key == "density") {
      o.density = value.get<double>();
    } else if (key == "majority_sign_method") {
      o.majority_sign = value == "frequency" ? peft::MajoritySign::kFrequency : peft::MajoritySign::kTotal;
    } else {
      throw ConfigError(
          "expect.json: arguments." + key + " = " + json_text(value) + " is not known; these adapters are not compared",
          key);
    }
  }
  return o;
}

class CombinedFolder {
 public:
  CombinedFolder(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group)
      : options_(options),
        group_(std::move(group)),
        folder_(options.folder),
        expect_(read_reference_json((folder_ / "expect.json").string())),
        results_(io::open_safetensors((folder_ / "results.safetensors").string())) {
    const fs::path family = folder_.lexically_normal() / "..";
    const std::string name = expect_.at("base");
    base_ = fs::is_directory(family / name) ? family / name : family / ".." / "B_train" / name;
    if (!fs::is_directory(base_))
      throw DataError("the base model '" + base_.string() + "' that expect.json names (\"base\") is missing",
                      options.folder);
  }

  Comparison compare() {
    compare_logits("base", "");
    for (const auto& item : expect_.at("adapters").items())
      compare_logits(item.key(), (folder_ / "adapters" / item.key()).string());
    compare_together();
    const ScratchFolder scratch;
    compare_active(scratch);
    for (const auto& [name, wanted] : expect_.at("combined").items()) {
      const auto output = scratch / name;
      ensure_writable_folder(output);
      peft::combine_lora(combine_options(wanted.at("arguments"), folder_ / "adapters"), output);
      compare_config(name, wanted, output);
      compare_values(name, output);
      compare_logits(name, output);
    }
    return std::move(table_);
  }

 private:
  void compare_config(const std::string& name, const json& wanted, const std::string& output) {
    const auto method = peft::read_adapter_config(output);
    const auto& lora = dynamic_cast<const peft::Lora&>(*method);
    table_.add("r " + name, static_cast<double>(lora.r), wanted.at("r").get<double>(), 0);
    table_.add("lora_alpha " + name, lora.lora_alpha, wanted.at("lora_alpha").get<double>(), 0);
    if (!wanted.at("target_modules").is_array()) return;
    const auto targets = wanted.at("target_modules").get<std::set<std::string>>();
    if (std::set<std::string>(lora.target_modules.begin(), lora.target_modules.end()) != targets)
      table_.fail("target_modules " + name, "are others than the reference's");
  }

  /// A and B, or their product where the reference holds that: the signs of singular vectors are free.
  void compare_values(const std::string& name, const std::string& output) {
    const auto ours = io::open_safetensors(output + "/adapter_model.safetensors");
    const auto scaling = dynamic_cast<const peft::Lora&>(*peft::read_adapter_config(output));
    const std::string prefix = name + ".", delta = prefix + "delta.", root = "base_model.model.";
    bool compared = false;
    for (const auto& info : results_->tensors()) {
      if (!info.name.starts_with(prefix)) continue;
      compared = true;
      const auto expected = io::read_tensor(*results_, info.name);
      if (info.name.starts_with(delta)) {
        const auto module = info.name.substr(delta.size());
        const auto a = io::read_tensor(*ours, module + ".lora_A.weight"),
                   b = io::read_tensor(*ours, module + ".lora_B.weight");
        table_.add("delta " + info.name, at::mm(b, a) * scaling.scaling_of(module.substr(root.size())), expected,
                   kCombinedTolerance);
      } else if (ours->find(info.name.substr(prefix.size()))) {
        table_.add("values " + info.name, io::read_tensor(*ours, info.name.substr(prefix.size())), expected,
                   kCombinedTolerance);
      } else {
        table_.fail("values " + info.name, "are missing");
      }
    }
    if (!compared) table_.fail("values " + name, "are not in the reference");
  }

  tasks::Assembled loaded(const tasks::AssembleOptions& with) const {
    auto options = with;
    options.attn_implementation = kReferenceAttention;
    options.fsdp = options_.fsdp;
    auto a = tasks::assemble(options, group_);
    a.model->eval();
    return a;
  }

  /// With one adapter; without a folder, the base model.
  void compare_logits(const std::string& name, const std::string& adapter) {
    compare_rows(name, loaded({.model_folder = base_.string(), .adapter_folder = adapter}), {});
  }

  /// All adapters on one model: rows that take different ones, and each of them for all rows.
  void compare_together() {
    std::vector<peft::AdapterFolder> folders;
    for (const auto& item : expect_.at("adapters").items())
      folders.push_back({item.key(), (folder_ / "adapters" / item.key()).string()});
    const auto a = loaded({.model_folder = base_.string(), .several = folders});
    for (const auto& name : a.several->names())
      compare_rows(name, a, std::vector<std::string>(static_cast<std::size_t>(rows_of(name)), name));
    if (expect_.contains("mixed")) compare_rows("mixed", a, expect_.at("mixed").get<std::vector<std::string>>());
  }

  std::int64_t rows_of(const std::string& name) const {
    const auto* info = results_->find("logits." + name);
    return info ? info->shape.at(0) : 0;
  }

  /// Adapters that are active together add up: what "cat" makes of them with weights of 1.
  void compare_active(const ScratchFolder& scratch) {
    for (const auto& names : expect_.value("active", json::array())) {
      std::string name;
      for (const auto& item : names) name += (name.empty() ? "" : "+") + item.get<std::string>();
      const json sum = {
          {"adapters", names}, {"weights", std::vector<double>(names.size(), 1.0)}, {"combination_type", "cat"}};
      const auto output = scratch / name;
      ensure_writable_folder(output);
      peft::combine_lora(combine_options(sum, folder_ / "adapters"), output);
      compare_logits(name, output);
    }
  }

  /// adapters: by row; empty: the model is as it is.
  void compare_rows(const std::string& name, const tasks::Assembled& a, const std::vector<std::string>& adapters) {
    const auto expected = io::read_tensor(*results_, "logits." + name);
    const c10::AutoGradMode no_grad(false);
    const auto batches = io::open_safetensors((base_ / "batches.safetensors").string());
    const RowShare rows = row_share(expected.size(0), *group_);
    const auto read = [&](const std::string& key) {
      return io::read_tensor(*batches, "step0." + key).slice(0, rows.begin, rows.end);
    };
    models::ModelInput in;
    in.input_ids = read("input_ids");
    in.attention_mask = read("attention_mask");
    const auto logits = adapters.empty() ? (*a.model)(in).logits.cpu() : logits_by_row(a, in, adapters, rows.begin);
    const auto visible = in.attention_mask.unsqueeze(-1);
    table_.add((adapters.empty() ? "logits " : "logits_by_row ") + name, logits * visible,
               expected.slice(0, rows.begin, rows.end) * visible, kCombinedTolerance);
  }

  const VerifyOptions& options_;
  std::shared_ptr<comm::Communicator> group_;
  fs::path folder_, base_;
  json expect_;
  std::shared_ptr<io::TensorSource> results_;
  Comparison table_;
};

}  // namespace

bool verify_combined(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  auto table = CombinedFolder(options, group).compare();
  table.merge(*group);
  out << fmt::format("{} (combined adapters, {} rank{})\n", fs::path(options.folder).filename().string(), group->size(),
                     group->size() == 1 ? "" : "s");
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
