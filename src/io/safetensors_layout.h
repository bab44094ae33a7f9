#pragma once
// Where everything of a safetensors file lies, from names, dtypes and shapes alone.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/io/tensor_source.h"

namespace tessera::io {

struct SafetensorsLayout {
  /// In the reference writer's order. CheckpointError for dtypes that the format lacks.
  SafetensorsLayout(const std::string& file, std::vector<TensorInfo> infos,
                    const std::vector<std::pair<std::string, std::string>>& metadata = {{"format", "pt"}});

  struct Place {
    TensorInfo info;
    std::uint64_t offset = 0;  // in the file
  };
  std::string header;  // with the 8 bytes of its length
  std::map<std::string, Place> places;
  std::uint64_t bytes = 0;  // of the whole file
};

}  // namespace tessera::io
