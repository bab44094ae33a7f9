#include "peft/method.h"

#include "peft/methods/adalora.h"
#include "peft/methods/beft.h"
#include "peft/methods/boft.h"
#include "peft/methods/c3a.h"
#include "peft/methods/delora.h"
#include "peft/methods/fourierft.h"
#include "peft/methods/gralora.h"
#include "peft/methods/hira.h"
#include "peft/methods/hra.h"
#include "peft/methods/ia3.h"
#include "peft/methods/ln_tuning.h"
#include "peft/methods/lora.h"
#include "peft/methods/lycoris.h"
#include "peft/methods/miss.h"
#include "peft/methods/oft.h"
#include "peft/methods/p_tuning.h"
#include "peft/methods/prefix_tuning.h"
#include "peft/methods/prompt_tuning.h"
#include "peft/methods/psoft.h"
#include "peft/methods/pvera.h"
#include "peft/methods/randlora.h"
#include "peft/methods/road.h"
#include "peft/methods/shira.h"
#include "peft/methods/trainable_tokens.h"
#include "peft/methods/unilora.h"
#include "peft/methods/vblora.h"
#include "peft/methods/vera.h"
#include "peft/methods/waveft.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

struct Row {
  const char* type;
  std::unique_ptr<PeftMethod> (*make)();
};

template <class Method>
std::unique_ptr<PeftMethod> make() {
  return std::make_unique<Method>();
}

constexpr Row kMethods[] = {
    {"LORA", make<Lora>},
    {"IA3", make<Ia3>},
    {"PROMPT_TUNING", make<PromptTuning>},
    {"P_TUNING", make<PTuning>},
    {"PREFIX_TUNING", make<PrefixTuning>},
    {"LN_TUNING", make<LnTuning>},
    {"TRAINABLE_TOKENS", make<TrainableTokens>},
    {"LOHA", make<LoHa>},
    {"LOKR", make<LoKr>},
    {"VERA", make<Vera>},
    {"VBLORA", make<VbLora>},
    {"RANDLORA", make<RandLora>},
    {"FOURIERFT", make<FourierFt>},
    {"MISS", make<Miss>},
    {"HRA", make<Hra>},
    {"OFT", make<Oft>},
    {"BOFT", make<Boft>},
    {"ROAD", make<Road>},
    {"SHIRA", make<Shira>},
    {"WAVEFT", make<WaveFt>},
    {"ADALORA", make<AdaLora>},
    {"DELORA", make<DeLora>},
    {"GRALORA", make<GraLora>},
    {"C3A", make<C3a>},
    {"HIRA", make<Hira>},
    {"BEFT", make<Beft>},
    {"PVERA", make<Pvera>},
    {"UNILORA", make<UniLora>},
    {"PSOFT", make<Psoft>},
};

}  // namespace

std::unique_ptr<PeftMethod> make_method(const std::string& type) {
  std::string known;
  for (const auto& row : kMethods) {
    if (type == row.type) return row.make();
    known += (known.empty() ? "" : ", ") + std::string(row.type);
  }
  throw ConfigError("peft_type is '" + type + "', which is not supported; there are " + known, "peft_type");
}

std::vector<std::string> method_types() {
  std::vector<std::string> types;
  for (const auto& row : kMethods) types.emplace_back(row.type);
  return types;
}

std::string PeftMethod::file_name(const std::string& parameter) const {
  const std::string part = ".default";
  const auto at = parameter.rfind(part);
  return prefix() + (at == std::string::npos ? parameter : std::string(parameter).erase(at, part.size()));
}

at::Tensor PeftMethod::merged(const Slot&, const std::string&, const at::Tensor& value, const Values&) const {
  return value;
}

}  // namespace tessera::peft
