#include "fsdp/params/load_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tensor/shape_text.h"
#include "tensor/staging.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::fsdp {
namespace {

/// The whole parameter as its segment has it: flat, of a packed one the bytes.
at::Tensor own_value(const UnitParameter& p) {
  const auto flat = p.tensor.detach().to(at::kCPU).contiguous().view(-1);
  return p.spec.packed() ? flat.view(at::kByte) : flat;
}

/// The same, as rank 0 has it; the others need not have any.
at::Tensor value_of_rank_zero(const UnitParameter& p, comm::Communicator& world) {
  const auto dtype = p.spec.packed() ? at::kByte : p.spec.stored;
  at::Tensor value =
      world.rank() == 0 ? own_value(p) : at::empty({p.spec.segment_numel()}, at::TensorOptions().dtype(dtype));
  world.broadcast(value, 0)->wait_input_free();
  return value;
}

void read_piece(const io::TensorSource& source, const std::string& name, const ParameterSpec& spec, const Piece& piece,
                const at::Tensor& out) {
  tensor::Staging staging;
  if (spec.packed())
    source.read_bytes(name, piece.in_parameter, staging.host_of(out));
  else
    source.read(name, piece.in_parameter, staging.host_of(out));
  staging.finish();
}

}  // namespace

std::string name_in_source(const FsdpOptions& options, const std::string& parameter) {
  if (!options.source) return {};
  auto name = options.source_name ? options.source_name(parameter) : parameter;
  return !name.empty() && options.source->find(name) ? name : std::string();
}

void check_source_shape(const FsdpOptions& options, const ParameterSpec& spec) {
  const auto name = name_in_source(options, spec.name);
  if (name.empty()) return;
  const auto& info = *options.source->find(name);
  if (spec.packed() && info.nbytes() != spec.segment_numel())
    throw DataError(info.file + ": tensor '" + name + "' has " + std::to_string(info.nbytes()) +
                        " bytes, the model's packed parameter '" + spec.name + "' has " +
                        std::to_string(spec.segment_numel()) + "; is it packed in another way?",
                    info.file);
  if (!spec.packed() && info.shape != spec.shape)
    throw DataError(info.file + ": tensor '" + name + "' has shape " + tensor::shape_text(info.shape) +
                        ", the model's parameter '" + spec.name + "' has " + tensor::shape_text(spec.shape) +
                        "; do config.json and the weights belong together?",
                    info.file);
}

/// Tensors of the parameter's module that are not the parameter's: of what is packed in an unknown form.
std::vector<io::TensorInfo> found_beside(const io::TensorSource& source, const std::string& parameter) {
  constexpr std::size_t kMost = 4;
  const auto module = parameter.substr(0, parameter.rfind('.') + 1);
  std::vector<io::TensorInfo> out;
  for (const auto& info : source.tensors())
    if (!module.empty() && info.name.starts_with(module) && out.size() < kMost) out.push_back(info);
  return out;
}

void check_has_value(const at::Tensor& parameter, const std::string& name, const FsdpOptions& options) {
  if (!tensor::is_detached(parameter)) return;
  const auto beside = options.source ? found_beside(*options.source, name) : std::vector<io::TensorInfo>();
  std::string found;
  for (const auto& info : beside) found += (found.empty() ? "" : ", ") + info.name;
  throw DataError(
      "parameter '" + name + "' has no value: it is not in the weight files" +
          (options.source ? "" : " (none were given)") + " and was not initialised" +
          (beside.empty() ? std::string(options.source ? ". A folder of a body alone (\"architectures\" in "
                                                         "config.json: LlamaModel, BertModel) has no head: "
                                                         "name one that has it; classify and reward train a "
                                                         "head of their own"
                                                       : "")
                          : ". " + beside.front().file + " has " + found +
                                " in its place: a form that is not read here? Name the folder of the model "
                                "that it was made from"),
      beside.empty() ? std::string() : beside.front().file);
}

void load_slices(const Unit& unit, int rank, const FsdpOptions& options, comm::Communicator& world) {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < unit.segments().size(); ++i) {
    const auto shard = unit.store().shard(i).detach();
    const auto pieces = pieces_of_slice(unit.segments()[i], rank);
    for (const auto& entry : unit.segments()[i].entries) {
      const auto& p = unit.parameters()[static_cast<std::size_t>(entry.parameter)];
      const auto name = name_in_source(options, p.spec.name);
      const bool received = options.sync_module_states && world.rank() > 0;
      if (name.empty() && !received && options.param_init_fn && tensor::is_detached(p.tensor)) {
        options.param_init_fn(p.spec.name, p.tensor);
        check_has_value(p.tensor, p.spec.name, options);
      }
      const bool synced = name.empty() && options.sync_module_states && world.size() > 1;
      const at::Tensor value = synced ? value_of_rank_zero(p, world) : at::Tensor();
      const auto piece = std::find_if(pieces.begin(), pieces.end(),
                                      [&](const Piece& held) { return held.parameter == entry.parameter; });
      if (piece == pieces.end()) continue;
      auto out = shard.narrow(0, piece->in_slice, piece->numel);
      if (!name.empty())
        read_piece(*options.source, name, p.spec, *piece, out);
      else
        out.copy_((synced ? value : own_value(p)).narrow(0, piece->in_parameter, piece->numel));
    }
    shard.unsafeGetTensorImpl()->bump_version();  // a source writes behind autograd's back
  }
}

std::vector<NamedBuffer> named_buffers(torch::nn::Module& root) {
  std::vector<NamedBuffer> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : root.named_buffers())
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      result.push_back({item.key(), item.value()});
  return result;
}

void read_buffers(const std::vector<NamedBuffer>& buffers, const FsdpOptions& options) {
  at::NoGradGuard no_grad;
  for (const auto& [buffer, tensor] : buffers) {
    const auto name = name_in_source(options, buffer);
    if (name.empty()) continue;
    const auto& info = *options.source->find(name);
    if (info.shape != tensor.sizes())
      throw DataError(info.file + ": tensor '" + name + "' has shape " + tensor::shape_text(info.shape) +
                          ", the model's buffer '" + buffer + "' has " + tensor::shape_text(tensor.sizes().vec()) +
                          "; do the module and the weights belong together?",
                      info.file);
    tensor.copy_(io::read_tensor(*options.source, name));
  }
}

void sync_buffers(torch::nn::Module& root, comm::Communicator& world) {
  at::NoGradGuard no_grad;
  if (world.size() == 1) return;
  for (auto& buffer : root.buffers()) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    auto bytes = buffer.detach().to(at::kCPU).contiguous().view(-1).view(at::kByte);
    world.broadcast(bytes, 0)->wait();
    buffer.copy_(bytes.view(buffer.scalar_type()).view(buffer.sizes()));
  }
}

}  // namespace tessera::fsdp
