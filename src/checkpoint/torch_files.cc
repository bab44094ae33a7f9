#include "checkpoint/torch_files.h"

#include <functional>

#include "io/pickle_writer.h"

namespace tessera::checkpoint {
namespace {

using io::PickleWriter;
using PutValue = std::function<void(PickleWriter&)>;

/// torch 2.13's AdamW.
std::vector<std::pair<std::string, PutValue>> group_values(const TorchParamGroup& group) {
  const auto& o = group.options;
  const auto real = [](double value) { return [=](PickleWriter& out) { out.real(value); }; };
  const auto no = [](PickleWriter& out) { out.boolean(false); };
  const auto none = [](PickleWriter& out) { out.none(); };
  return {{"lr", real(o.lr)},
          {"betas",
           [&o](PickleWriter& out) {
             out.begin_tuple();
             out.real(o.beta1);
             out.real(o.beta2);
             out.end_tuple();
           }},
          {"eps", real(o.eps)},
          {"weight_decay", real(o.weight_decay)},
          {"amsgrad", no},
          {"maximize", no},
          {"foreach", none},
          {"capturable", no},
          {"differentiable", no},
          {"fused", none},
          {"decoupled_weight_decay", [](PickleWriter& out) { out.boolean(true); }},
          {"params", [&group](PickleWriter& out) {
             out.begin_list();
             for (const auto& name : group.parameters) out.text(name);
             out.end_list();
           }}};
}

}  // namespace

std::string optimizer_pickle(const std::vector<TorchStateEntry>& entries, const std::vector<TorchParamGroup>& groups) {
  PickleWriter out;
  out.begin_dict();
  out.text("state");
  out.begin_dict();
  for (std::size_t i = 0; i < entries.size();) {
    const std::string& parameter = entries[i].parameter;
    out.text(parameter);
    out.begin_dict();
    for (; i < entries.size() && entries[i].parameter == parameter; ++i) {
      out.text(entries[i].state);
      out.tensor(std::to_string(entries[i].storage), entries[i].dtype, entries[i].shape);
    }
    out.end_dict();
  }
  out.end_dict();
  out.text("param_groups");
  out.begin_list();
  for (const auto& group : groups) {
    out.begin_dict();
    for (const auto& [key, put] : group_values(group)) {
      out.text(key);
      put(out);
    }
    out.end_dict();
  }
  out.end_list();
  out.end_dict();
  return out.take();
}

std::vector<std::pair<std::string, std::string>> group_pickles(const TorchParamGroup& group) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [key, put] : group_values(group)) {
    PickleWriter pickle;
    put(pickle);
    out.emplace_back(key, pickle.take());
  }
  return out;
}

}  // namespace tessera::checkpoint
