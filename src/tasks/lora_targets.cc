#include "tasks/lora_targets.h"

namespace tessera::tasks {

void set_targets(peft::LoraConfig& lora, const std::vector<std::string>& words) {
  const bool regex = words.size() == 1 && words[0].find_first_of("*+?()[]|^$\\") != std::string::npos;
  if (regex) {
    lora.target_regex = words[0];
  } else {
    lora.target_modules = words;
  }
}

}  // namespace tessera::tasks
