// Family A of the goldens: logits, loss, hidden states and every gradient of one forward and backward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>

#include "hub/model_folder.h"
#include "models/classification_loss.h"
#include "models/gguf_model.h"
#include "models/model.h"
#include "models/names_in_files.h"
#include "tasks/assemble.h"
#include "tasks/sft_training.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "train/trainer.h"
#include "verify/reference_json.h"
#include "verify/rows_of_adapters.h"
#include "verify/unused_bias.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;

/// expect.json may list the files under "files".
void require_listed(const fs::path& place, const std::vector<std::string>& files) {
  const auto expect = place / "expect.json";
  if (!fs::exists(expect)) return;
  const auto text = read_reference_json(expect.string());
  if (!text.contains("files")) return;
  for (const auto& [name, about] : text["files"].items())
    if (name.starts_with("io") && std::find(files.begin(), files.end(), (place / name).string()) == files.end())
      throw DataError(fmt::format("'{}' is missing, which '{}' lists", (place / name).string(), expect.string()),
                      expect.string());
}

/// io*.safetensors beside the weights, or one folder up (the same weights in another format lie in a subfolder).
std::vector<std::string> reference_files(const std::string& folder) {
  std::vector<std::string> files;
  const fs::path here = fs::path(folder).lexically_normal();
  for (const fs::path& place : {here, here.has_filename() ? here.parent_path() : here.parent_path().parent_path()}) {
    if (!fs::is_directory(place)) continue;
    for (const auto& entry : fs::directory_iterator(place)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("io") && name.ends_with(".safetensors")) files.push_back(entry.path().string());
    }
    if (!files.empty()) break;
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    throw DataError("no reference tensors (io*.safetensors) in '" + folder + "' or the folder above it", folder);
  }
  require_listed(fs::path(files[0]).parent_path(), files);
  return files;
}

/// The unit roundoff of weights stored in fewer bits than the reference's; 0 for full precision. Logits then move by
/// some units; gradients cannot be compared at all, since every relu near zero may switch.
double storage_unit(const io::TensorSource& weights) {
  double unit = 0;
  for (const auto& t : weights.tensors()) {
    if (t.name.ends_with(".SCB")) return 0x1p-8;  // LLM.int8() rounds the layers' inputs to 8 bits, too
    if (unit == 0 && t.dtype == at::kHalf) unit = 0x1p-11;
    if (unit == 0 && t.dtype == at::kBFloat16) unit = 0x1p-8;
  }
  return unit;
}

at::Tensor optional_rows(const io::TensorSource& io, const std::string& name, const RowShare& rows) {
  return io.find(name) ? io::read_tensor(io, name).slice(0, rows.begin, rows.end) : at::Tensor();
}

/// Logits and hidden states of padded source positions mean nothing: both sides are zeroed there.
void compare_visible(Comparison& table, const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                     const at::Tensor& mask, double tolerance) {
  if (!mask.defined() || !actual.defined() || actual.sizes() != expected.sizes()) {
    return table.add(name, actual, expected, tolerance);
  }
  const at::Tensor visible = mask.unsqueeze(-1).to(expected.scalar_type());
  table.add(name, actual.to(expected.scalar_type()) * visible, expected * visible, tolerance);
}

/// What a file may hold beside references.
bool is_input(const std::string& name) {
  static const std::set<std::string> kInputs = {"input_ids",      "attention_mask", "decoder_input_ids", "position_ids",
                                                "token_type_ids", "labels",         "seq_lengths"};
  return kInputs.contains(name);
}

void compare_states(Comparison& table, const io::TensorSource& io, const RowShare& rows, const models::ModelOutput& out,
                    const at::Tensor& mask, double tolerance) {
  const bool has_states = std::any_of(io.tensors().begin(), io.tensors().end(), [](const auto& t) {
    return t.name.find("hidden") != std::string::npos;  // all of them then
  });
  std::set<std::string> compared = {"logits", "loss"};
  const auto compare = [&](const std::string& name, const at::Tensor& actual, const at::Tensor& visible) {
    compared.insert(name);
    if (io.find(name))
      compare_visible(table, "hidden " + name, actual, optional_rows(io, name, rows), visible, tolerance);
    else if (has_states && actual.defined())
      table.fail("hidden " + name, "is not in the reference");
  };
  compare("encoder_last_hidden_state", out.encoder_output, mask);
  for (std::size_t i = 0; i < out.encoder_hidden.size(); ++i)
    compare("enc_hidden." + std::to_string(i), out.encoder_hidden[i], mask);
  for (std::size_t i = 0; i < out.hidden.size(); ++i) compare("hidden." + std::to_string(i), out.hidden[i], mask);
  for (std::size_t i = 0; i < out.decoder_hidden.size(); ++i)
    compare("dec_hidden." + std::to_string(i), out.decoder_hidden[i], {});
  for (const auto& t : io.tensors())
    if (!is_input(t.name) && !compared.contains(t.name) && !t.name.starts_with("grad."))
      table.fail("hidden " + t.name, "is no output of this model");
}

/// Logits stand beside the tokens of the mask.
bool has_hidden_places(models::ModelKind kind) {
  return kind == models::ModelKind::kCausal || kind == models::ModelKind::kMaskedLm;
}

/// How many labels a loss is the mean of; causal models never predict the first of a row.
double counted_labels(const at::Tensor& labels, models::ModelKind kind) {
  const at::Tensor counted = kind == models::ModelKind::kCausal ? labels.slice(1, 1) : labels;
  return counted.ne(-100).sum().item<double>();
}

using Gradients = std::map<std::string, at::Tensor>;

Gradients collect_gradients(nn::HookedModule& model, fsdp::FullyShardedDataParallel* sharded) {
  Gradients grads;
  if (sharded) {
    sharded->visit_full_grads([&](const std::string& name, const at::Tensor& g) { grads[name] = g.clone(); });
    sharded->zero_grad();
  } else {
    for (auto& p : model.named_parameters()) {
      if (p.value().grad().defined()) grads[p.key()] = p.value().grad().clone();
      p.value().mutable_grad().reset();
    }
  }
  return grads;
}

/// has_all: the file has every gradient, not some of them.
void compare_gradients(Comparison& table, const io::TensorSource& io, const Gradients& grads,
                       const models::NamesInFiles& names, bool has_all, double tolerance) {
  const std::string prefix = "grad.";
  double scale = 0;  // of all gradients: what is rounding noise is judged by it
  for (const auto& t : io.tensors()) {
    if (t.name.starts_with(prefix)) scale = std::max(scale, io::read_tensor(io, t.name).abs().max().item<double>());
  }
  std::set<std::string> compared;
  for (const auto& t : io.tensors()) {
    if (!t.name.starts_with(prefix)) continue;
    const std::string name = t.name.substr(prefix.size());
    if (is_unused_bias(names, io, name, prefix)) continue;
    const auto it = grads.find(names.parameter_of(name));
    if (it != grads.end()) compared.insert(it->first);
    const at::Tensor expected = io::read_tensor(io, t.name);
    const double largest = expected.abs().max().item<double>();
    if (it == grads.end() && largest == 0) {
      table.add("gradient " + name, 0.0, 0.0, tolerance);  // an expert that no token reached
    } else if (it == grads.end()) {
      table.fail("gradient " + name, "was not computed");
    } else if (largest <= 1e-6 * scale) {
      table.add("gradient " + name, it->second.abs().max().item<double>() <= 1e-5 * scale ? 1.0 : 0.0, 1.0, tolerance);
    } else {  // a router of one expert a token: terms as large as the others cancel
      table.add("gradient " + name, it->second, expected, tolerance + 1e-7 * scale / largest);
    }
  }
  for (const auto& [name, gradient] : grads)
    if (has_all && !compared.contains(name)) table.fail_unless_zero("gradient " + name, gradient);
}

/// References are there, whatever device computed.
models::ModelOutput on_host(models::ModelOutput out) {
  std::vector<at::Tensor*> tensors;
  collect_tensors(out, tensors);
  for (auto* t : tensors)
    if (t->defined()) *t = t->cpu();
  return out;
}

/// expect.json may hold the loss of the same batch with the experts' balance.
void compare_router_loss(const std::string& folder, models::Model& model, models::ModelInput in,
                         comm::Communicator& group, double tolerance, Comparison& table) {
  const fs::path expect = fs::path(folder) / "expect.json";
  if (!fs::exists(expect)) return;
  const auto text = read_reference_json(expect.string());
  if (!text.contains("with_router_aux_loss")) return;
  in.router_loss = true;
  const c10::NoGradGuard no_grad;
  const double loss = train::sum_over_ranks(group, model(std::move(in)).loss.item<double>());
  table.add("loss with the experts' balance", loss, text["with_router_aux_loss"]["loss"].get<double>(), tolerance);
}

/// expect.json may hold other losses of the same logits: of independent labels, and of numbers.
void compare_label_losses(const std::string& folder, const at::Tensor& logits, const RowShare& rows,
                          comm::Communicator& group, double tolerance, Comparison& table) {
  using families::ProblemType;
  const fs::path expect = fs::path(folder) / "expect.json";
  if (!fs::exists(expect) || !logits.defined()) return;
  const auto text = read_reference_json(expect.string());
  for (const auto& [key, problem] : {std::pair{"multi_label", ProblemType::kMultiLabel},
                                     std::pair{"regression_on_logits", ProblemType::kRegression}}) {
    if (!text.contains(key)) continue;
    const auto numbers = text[key]["labels"].get<std::vector<std::vector<float>>>();
    std::vector<at::Tensor> labels;
    for (const auto& row : numbers) labels.push_back(at::tensor(row));
    const at::Tensor all = at::stack(labels);
    const at::Tensor loss =
        models::classification_loss(logits, all.slice(0, rows.begin, rows.end), {all.size(1), problem},
                                    rows.copies * static_cast<double>(all.numel()));
    table.add("loss " + std::string(key), train::sum_over_ranks(group, loss.item<double>()),
              text[key]["loss"].get<double>(), tolerance);
  }
}

/// The adapter of each row, as expect.json says or the only one; the loss and what it would train are not compared
/// then.
std::vector<std::string> adapters_of_rows(const VerifyOptions& options, std::int64_t rows) {
  const fs::path expect = fs::path(options.folder) / "expect.json";
  const auto text = fs::exists(expect) ? read_reference_json(expect.string()) : nlohmann::json::object();
  if (!text.contains("adapter_names") && options.adapters.size() == 1)
    return std::vector<std::string>(static_cast<std::size_t>(rows), options.adapters[0].name);
  const auto names = text.value("adapter_names", std::vector<std::string>());
  if (static_cast<std::int64_t>(names.size()) != rows)
    throw DataError(fmt::format("'{}' lists {} adapter_names, expected one for each of the {} rows", expect.string(),
                                names.size(), rows),
                    expect.string());
  return names;
}

/// The inputs, where they lie in a file of their own that expect.json names.
std::shared_ptr<io::TensorSource> with_batch(const std::string& folder, std::shared_ptr<io::TensorSource> io) {
  const fs::path expect = fs::path(folder) / "expect.json";
  if (io->find("input_ids") || !fs::exists(expect)) return io;
  const auto text = read_reference_json(expect.string());
  if (!text.contains("batch")) return io;
  return io::joined_source({io, io::open_safetensors((fs::path(folder) / text["batch"].get<std::string>()).string())});
}

}  // namespace

RowShare row_share(std::int64_t rows, const comm::Communicator& group) {
  const std::int64_t n = group.size(), r = group.rank();
  if (rows < n) return {0, rows, static_cast<double>(n)};
  return {rows * r / n, rows * (r + 1) / n, 1};
}

bool verify_outputs(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const auto weights = models::open_model_weights(hub::find_model(options.folder).folder);
  const tasks::Assembled loaded = load_model(options, group);
  const double unit = storage_unit(*weights);
  const double logits_tolerance = std::max(options.logits_tolerance, 16 * unit);
  if (unit > 0) out << "the weights are stored in 16 bits: gradients are not compared\n";
  loaded.model->eval();

  bool passed = true;
  for (const std::string& file : reference_files(options.folder)) {
    const auto own = io::open_safetensors(file);
    const auto io = with_batch(options.folder, own);
    const auto all_rows = io::read_tensor(*io, "input_ids").size(0);
    const RowShare rows = row_share(all_rows, *group);
    models::ModelInput in;
    in.input_ids = optional_rows(*io, "input_ids", rows);
    in.attention_mask = optional_rows(*io, "attention_mask", rows);
    in.decoder_input_ids = optional_rows(*io, "decoder_input_ids", rows);
    in.position_ids = optional_rows(*io, "position_ids", rows);
    in.token_type_ids = optional_rows(*io, "token_type_ids", rows);
    in.labels = optional_rows(*io, "labels", rows);
    in.want_hidden = true;
    in.sum_over_ranks = tasks::sum_over(*group);
    if (in.labels.defined())
      in.loss_normalizer = rows.copies * counted_labels(io::read_tensor(*io, "labels"), loaded.config.kind);
    if (io->find("seq_lengths")) in.router_loss = false;  // packed rows' loss is that of their tokens
    const bool has_gradients = std::any_of(io->tensors().begin(), io->tensors().end(),
                                           [](const auto& t) { return t.name.starts_with("grad."); });
    const bool backward = unit == 0 && !loaded.several && has_gradients && in.labels.defined();
    Comparison table;
    models::ModelOutput result;
    if (loaded.several) {
      const c10::NoGradGuard no_grad;
      in.labels = at::Tensor();
      in.want_hidden = false;
      result.logits = logits_by_row(loaded, in, adapters_of_rows(options, all_rows), rows.begin);
    } else {
      c10::AutoGradMode grad_mode(backward);
      result = on_host((*loaded.model)(in));
    }
    if (io->find("logits")) {
      at::Tensor logits = result.logits.detach();
      const at::Tensor expected = optional_rows(*io, "logits", rows);
      if (expected.dim() == 1 && logits.dim() == 2 && logits.size(1) == 1) logits = logits.squeeze(1);  // DeBERTa's
      compare_visible(table, "logits", logits, expected,
                      has_hidden_places(loaded.config.kind) ? in.attention_mask : at::Tensor(), logits_tolerance);
    } else {
      table.fail("logits", "are not in the reference");
    }
    if (!loaded.several) compare_states(table, *io, rows, result, in.attention_mask, logits_tolerance);
    if (io->find("loss") && result.loss.defined()) {
      const double loss = train::sum_over_ranks(*group, result.loss.item<double>());
      table.add("loss", loss, io::read_tensor(*io, "loss").item<double>(), logits_tolerance);
    } else if (!loaded.several && own->find("labels") &&
               (has_gradients || loaded.config.kind != models::ModelKind::kSeq2Seq)) {  // whose decoder reads labels
      table.fail("loss", "is not in the reference");
    } else if (!loaded.several && (io->find("loss") || has_gradients)) {
      table.fail("loss", "was not computed: the file has no labels");
    }
    const bool first_file = fs::path(file).filename() == "io.safetensors" && !loaded.several;
    if (first_file) compare_label_losses(options.folder, result.logits.detach(), rows, *group, logits_tolerance, table);
    if (backward) {
      result.loss.backward();
      result = {};
      compare_gradients(table, *io, collect_gradients(*loaded.model, loaded.sharded.get()),
                        models::NamesInFiles(*loaded.model), first_file, options.grad_tolerance);
    }
    if (first_file) compare_router_loss(options.folder, *loaded.model, in, *group, logits_tolerance, table);
    table.merge(*group);
    out << fmt::format("{} ({}, {} rank{}, {})\n", fs::path(file).filename().string(), loaded.config.model_type,
                       group->size(), group->size() == 1 ? "" : "s", options.sharded ? "sharded" : "unsharded");
    table.print(out);
    passed = passed && table.passed();
  }
  return passed;
}

}  // namespace tessera::verify
