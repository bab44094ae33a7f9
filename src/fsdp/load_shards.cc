#include "fsdp/load_shards.h"

#include <ATen/core/grad_mode.h>

#include <sstream>

#include "io/tensor_source.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::ostringstream out;
  out << '[';
  for (std::size_t i = 0; i < shape.size(); ++i) out << (i ? ", " : "") << shape[i];
  out << ']';
  return out.str();
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
  if (info.shape != spec.shape)
    throw DataError(info.file + ": tensor '" + name + "' has shape " + shape_text(info.shape) +
                        ", the model's parameter '" + spec.name + "' has " + shape_text(spec.shape) +
                        "; do config.json and the weights belong together?",
                    info.file);
}

void load_slices(const Unit& unit, int rank, const FsdpOptions& options) {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < unit.segments().size(); ++i) {
    const auto shard = unit.store().shard(i).detach();
    for (const auto& piece : pieces_of_slice(unit.segments()[i], rank)) {
      const auto& p = unit.parameters()[static_cast<std::size_t>(piece.parameter)];
      auto out = shard.narrow(0, piece.in_slice, piece.numel);
      const auto name = name_in_source(options, p.spec.name);
      if (!name.empty()) {
        options.source->read(name, piece.in_parameter, out);
      } else {
        out.copy_(p.tensor.detach().contiguous().view(-1).narrow(0, piece.in_parameter, piece.numel));
      }
    }
  }
}

}  // namespace tessera::fsdp
