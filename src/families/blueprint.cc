#include "families/blueprint.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::families {
namespace {

void collect(const Blueprint& module, const std::string& prefix, std::vector<Blueprint::Parameter>& out) {
  for (const auto& p : module.parameters) out.push_back({prefix + p.name, p.shape});
  for (const auto& part : module.parts) collect(part, prefix + part.name + ".", out);
}

}  // namespace

const Blueprint* Blueprint::find(const std::string& part) const {
  const auto it = std::find_if(parts.begin(), parts.end(), [&](const Blueprint& p) { return p.name == part; });
  return it == parts.end() ? nullptr : &*it;
}

const Blueprint& Blueprint::at(const std::string& part) const {
  const auto* found = find(part);
  TESSERA_CHECK(found, "the blueprint of '" + name + "' has no part '" + part + "'");
  return *found;
}

Blueprint linear(const std::string& name, std::int64_t inputs, std::int64_t outputs, Bias bias) {
  Blueprint out{.name = name, .sizes = {inputs, outputs}, .parameters = {{"weight", {outputs, inputs}}}};
  if (bias == Bias::kWith) out.parameters.push_back({"bias", {outputs}});
  return out;
}

Blueprint transposed_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs, Bias bias) {
  auto out = linear(name, inputs, outputs, bias);
  std::reverse(out.parameters[0].shape.begin(), out.parameters[0].shape.end());
  return out;
}

Blueprint embedding(const std::string& name, std::int64_t rows, std::int64_t size) {
  return {.name = name, .sizes = {rows, size}, .parameters = {{"weight", {rows, size}}}};
}

Blueprint norm(const std::string& name, std::int64_t size, NormForm form) {
  Blueprint out{.name = name, .sizes = {size}};
  if (form != NormForm::kBare) out.parameters.push_back({"weight", {size}});
  if (form == NormForm::kWeightAndBias) out.parameters.push_back({"bias", {size}});
  return out;
}

Blueprint list(const std::string& name, std::int64_t count, const std::function<Blueprint(std::int64_t)>& part) {
  Blueprint out{.name = name};
  for (std::int64_t i = 0; i < count; ++i) {
    out.parts.push_back(part(i));
    out.parts.back().name = std::to_string(i);
  }
  return out;
}

std::vector<Blueprint::Parameter> parameters_of(const Blueprint& root) {
  std::vector<Blueprint::Parameter> out;
  collect(root, "", out);
  return out;
}

}  // namespace tessera::families
