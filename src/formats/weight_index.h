#pragma once
#include <map>
#include <string>

namespace tessera {

/// "weight_map" of an index beside sharded weight files: tensor name -> file name, each beside the index. DataError.
std::map<std::string, std::string> read_weight_map(const std::string& index);

}  // namespace tessera
