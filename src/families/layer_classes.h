#pragma once
#include <string>
#include <vector>

#include "families/families.h"

namespace tessera::families {

/// The classes of a model that are not split, the one of its blocks first: transformers' _no_split_modules,
/// {"LlamaDecoderLayer"}.
std::vector<std::string> no_split_classes(const FamilyConfig& config);

}  // namespace tessera::families
