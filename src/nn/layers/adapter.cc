#include "tessera/nn/adapter.h"

namespace tessera::nn {

namespace {

thread_local bool adapters_off = false;

}  // namespace

AdaptersOff::AdaptersOff() : before_(adapters_off) {
  adapters_off = true;
}

AdaptersOff::~AdaptersOff() {
  adapters_off = before_;
}

bool AdaptersOff::active() {
  return adapters_off;
}

AdapterModule& Adapter::add_module(const std::string& name, const std::string& printed) {
  return *modules_.emplace_back(name, std::make_shared<AdapterModule>(printed)).second;
}

std::set<std::string> adapter_parameters(const torch::nn::Module& root) {
  std::set<std::string> names;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (!dynamic_cast<const AdapterModule*>(item.value().get())) continue;
    for (const auto& parameter : item.value()->named_parameters()) names.insert(item.key() + "." + parameter.key());
  }
  return names;
}

}  // namespace tessera::nn
