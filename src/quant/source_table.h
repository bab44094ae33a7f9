#pragma once
// The list of tensors that a source shows, sorted by name.
#include <algorithm>
#include <string>
#include <vector>

#include "io/tensor_source.h"

namespace tessera::quant {

class SourceTable {
 public:
  void add(io::TensorInfo info) { infos_.push_back(std::move(info)); }
  void sort() {
    std::sort(infos_.begin(), infos_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  }
  const std::vector<io::TensorInfo>& all() const { return infos_; }
  const io::TensorInfo* find(const std::string& name) const {
    const auto it = std::lower_bound(infos_.begin(), infos_.end(), name,
                                     [](const io::TensorInfo& info, const std::string& n) { return info.name < n; });
    return it != infos_.end() && it->name == name ? &*it : nullptr;
  }

 private:
  std::vector<io::TensorInfo> infos_;
};

}  // namespace tessera::quant
