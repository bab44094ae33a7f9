#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/open_file.h"
#include "checkpoint/torch_state.h"
#include "io/dcp_folder.h"
#include "io/torch_file.h"
#include "tensor/staging.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<io::TensorSource> open_either(const std::string& file, const std::string& dcp_folder) {
  if (is_there(file)) return io::make_stored_source(io::list_nested_torch_file(file));
  if (io::is_dcp_folder(dcp_folder)) return io::open_dcp(dcp_folder);
  return nullptr;
}

/// The slices of LOCAL files: of every rank that wrote one.
std::shared_ptr<io::TensorSource> open_slices(const std::string& folder, const std::string& prefix) {
  std::vector<std::shared_ptr<const io::TensorSource>> sources;
  for (int rank = 0;; ++rank) {
    const std::string file = fmt::format("{}/{}{}.bin", folder, prefix, rank);
    if (!is_there(file)) break;
    sources.push_back(io::make_stored_source(io::list_nested_torch_file(file)));
  }
  if (sources.empty()) return nullptr;
  return io::joined_source(std::move(sources));
}

/// Reads of whole tensors and ranges out of sources that hold either tensors or slices "name@offset".
class StateReader {
 public:
  StateReader(std::shared_ptr<io::TensorSource> whole, std::shared_ptr<io::TensorSource> slices, std::string folder)
      : whole_(std::move(whole)), slices_(std::move(slices)), folder_(std::move(folder)) {
    if (!slices_) return;
    for (const auto& info : slices_->tensors()) {
      const auto at = info.name.rfind('@');
      const auto digits = at == std::string::npos ? std::string() : info.name.substr(at + 1);
      if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos)
        throw CheckpointError(
            fmt::format("{}: '{}' has no offset; this LOCAL file is of another program and reads only "
                        "there, with as many ranks",
                        info.file, info.name),
            info.file);
      parts_[info.name.substr(0, at)].push_back({std::stoll(digits), &info});
    }
    for (auto& [name, list] : parts_)
      std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  explicit operator bool() const { return whole_ || slices_; }

  void read(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t begin,
            const at::Tensor& out) const {
    if (whole_) {
      const auto* info = whole_->find(name);
      if (!info) missing(name);
      if (info->shape != shape)
        throw CheckpointError(
            fmt::format("'{}': '{}' has {} elements, here it has {}; the checkpoint belongs to another "
                        "model",
                        folder_, name, info->numel(), c10::multiply_integers(shape)),
            folder_);
      return whole_->read(name, begin, out);
    }
    std::int64_t position = begin;
    const std::int64_t end = begin + out.numel();
    const auto found = parts_.find(name);
    if (found == parts_.end()) missing(name);
    for (const auto& [offset, info] : found->second) {
      const std::int64_t stop = std::min(end, offset + info->numel());
      if (offset > position || stop <= position) continue;
      slices_->read(info->name, position - offset, out.narrow(0, position - begin, stop - position));
      position = stop;
    }
    if (position < end) missing(name);
  }

  [[noreturn]] void missing(const std::string& name) const {
    throw CheckpointError(
        fmt::format("'{}' lacks '{}' or a part of it; the folder belongs to another model, to another "
                    "choice of what is trained, or files of some ranks are missing",
                    folder_, name),
        folder_);
  }

 private:
  std::shared_ptr<io::TensorSource> whole_, slices_;
  std::string folder_;
  std::map<std::string, std::vector<std::pair<std::int64_t, const io::TensorInfo*>>> parts_;
};

}  // namespace

std::shared_ptr<io::TensorSource> open_torch_model(const std::string& folder) {
  return open_either(folder + "/pytorch_model_fsdp.bin", folder + "/pytorch_model_fsdp_0");
}

std::shared_ptr<io::TensorSource> open_torch_optimizer(const std::string& folder) {
  return open_either(folder + "/optimizer.bin", folder + "/optimizer_0");
}

void refuse_rank_files(const std::string& folder) {
  constexpr const char* kFile = "pytorch_model_fsdp_0_rank0.bin";
  if (!is_there(folder + "/" + kFile)) return;
  throw CheckpointError(
      fmt::format(
          "'{}' holds {}, one rank's part as Accelerate writes it with use_dcp=False: it reads only there, on as "
          "many ranks. Load it there and save it with use_dcp=True, or with FULL_STATE_DICT",
          folder, kFile),
      folder);
}

bool has_torch_state(const std::string& folder) {
  return is_there(folder + "/pytorch_model_fsdp.bin") || io::is_dcp_folder(folder + "/pytorch_model_fsdp_0") ||
         is_there(folder + "/pytorch_model_fsdp_rank0.bin") || is_there(folder + "/pytorch_model_fsdp_0_rank0.bin");
}

void load_torch_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer, const TorchNames& names,
                      const std::string& folder) {
  const at::NoGradGuard no_grad;
  tensor::Staging staging;
  const auto in_file = [](const TorchName& name, const std::string& parameter) {
    return name ? name(parameter) : parameter;
  };
  const auto whole = open_torch_model(folder);
  const StateReader weights(whole, whole ? nullptr : open_slices(folder, "pytorch_model_fsdp_rank"), folder);
  if (!weights) refuse_rank_files(folder);
  if (!weights)
    throw CheckpointError(fmt::format("'{}' holds no pytorch_model_fsdp.bin, pytorch_model_fsdp_0/ or "
                                      "pytorch_model_fsdp_rank0.bin",
                                      folder),
                          folder);
  for (const auto& view : model.shards())
    if (view.trainable && view.local.numel() > 0)
      weights.read(in_file(names.model, view.name), view.shape, view.offset, staging.host_of(view.local));
  staging.finish();
  model.mark_updated();
  if (!optimizer) return;
  const auto whole_state = open_torch_optimizer(folder);
  const StateReader state(whole_state, whole_state ? nullptr : open_slices(folder, "optimizer_rank"), folder);
  if (!state) refuse_rank_files(folder);
  if (!state)
    throw CheckpointError(fmt::format("'{}' holds no optimizer.bin, optimizer_0/ or optimizer_rank0.bin", folder),
                          folder);
  std::string any;
  for (const auto& s : optimizer->state()) {
    const std::string parameter = in_file(names.optimizer, s.parameter);
    if (any.empty()) any = parameter;
    if (s.local.numel() > 0)
      state.read("state/" + parameter + "/" + s.state, s.shape, s.offset, staging.host_of(s.local));
  }
  staging.finish();
  if (any.empty()) return;
  at::Tensor steps = at::empty({1}, at::kDouble);
  state.read("state/" + any + "/step", {}, 0, steps);
  optimizer->set_steps(std::llround(steps.item<double>()));
}

}  // namespace tessera::checkpoint
