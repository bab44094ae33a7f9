#pragma once
#include <array>

#include "text/tokenizer.h"

namespace tessera::text {

/// One special token as configuration files and chat templates call it.
struct SpecialName {
  const char* name;
  std::string SpecialTokens::* token;
};

/// for (const auto& [name, token] : kSpecialNames) use(name, special.*token);
inline constexpr std::array<SpecialName, 7> kSpecialNames{{
    {"bos_token", &SpecialTokens::bos},
    {"eos_token", &SpecialTokens::eos},
    {"unk_token", &SpecialTokens::unk},
    {"sep_token", &SpecialTokens::sep},
    {"pad_token", &SpecialTokens::pad},
    {"cls_token", &SpecialTokens::cls},
    {"mask_token", &SpecialTokens::mask},
}};

}  // namespace tessera::text
