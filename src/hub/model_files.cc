#include "hub/model_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "base/open_file.h"
#include "formats/model_folder.h"
#include "formats/weight_index.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

bool holds(const Names& sorted, const std::string& name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

class ModelFiles {
 public:
  ModelFiles(const std::string& repository, const Names& files, const std::string& folder)
      : repository_(repository), files_(files), folder_(folder) {}

  Names settings() const {
    Names out;
    std::copy_if(files_.begin(), files_.end(), std::back_inserter(out),
                 [](const std::string& file) { return folder_file(file) != FolderFile::kOther; });
    return out;
  }

  Names weights() const {
    Names out = of_the_model(), more = of_an_adapter();
    if (out.empty() && more.empty()) out = gguf();
    out.insert(out.end(), more.begin(), more.end());
    if (out.empty())
      throw DataError(fmt::format("'{}' has no weights that are read here (model.safetensors, pytorch_model.bin, their "
                                  "parts with an index, adapter_model.safetensors, one .gguf file); it has: {}",
                                  repository_, fmt::join(files_, ", ")),
                      repository_);
    return out;
  }

 private:
  Names of_the_model() const {
    for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
      if (holds(files_, name)) return {name};
      const std::string index = std::string(name) + ".index.json";
      if (holds(files_, index)) return with_parts(index);
    }
    return {};
  }

  Names with_parts(const std::string& index) const {
    Names out{index};
    const std::string here = folder_ + "/" + index;
    if (!is_there(here)) return out;  // asked again when it is
    std::set<std::string> parts;
    for (auto& [tensor, part] : read_weight_map(here)) parts.insert(part);
    out.insert(out.end(), parts.begin(), parts.end());
    return out;
  }

  Names of_an_adapter() const {
    if (!holds(files_, "adapter_config.json")) return {};
    for (const char* name : {"adapter_model.safetensors", "adapter_model.bin"})
      if (holds(files_, name)) return {name};
    return {};
  }

  Names gguf() const {
    Names out;
    for (const auto& file : files_)
      if (file.ends_with(".gguf")) out.push_back(file);
    if (out.size() > 1)
      throw DataError(
          fmt::format("'{}' holds {} GGUF files, of which one is to be chosen: download it ({}/...) and give "
                      "its path. They are: {}",
                      repository_, out.size(), repository_, fmt::join(out, ", ")),
          repository_);
    return out;
  }

  const std::string& repository_;
  const Names& files_;
  const std::string& folder_;
};

/// Transformers asks for these; a note that there are none saves it the question.
const Names kMayLack = {"adapter_config.json",     "added_tokens.json", kTemplateFile,
                        "generation_config.json",  "model.safetensors", "model.safetensors.index.json",
                        "special_tokens_map.json", "tokenizer.json",    "tokenizer_config.json",
                        kProcessorTemplate};

}  // namespace

Wanted model_files(const RepositoryName& name, ModelParts parts) {
  const auto select = [id = text_of(name), parts](const Names& files, const std::string& folder) {
    const ModelFiles all(id, files, folder);
    Names out = all.settings();
    if (parts == ModelParts::kSettings) return out;
    const Names weights = all.weights();
    out.insert(out.end(), weights.begin(), weights.end());
    return out;
  };
  return {.select = select, .may_lack = kMayLack};
}

}  // namespace tessera::hub
