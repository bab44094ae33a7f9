#include "tasks/parse_task.h"

#include "config/other_spellings.h"
#include "launch/launch.h"
#include "tasks/lora_flags.h"

namespace tessera::tasks {

config::ParseResult parse_task(config::OptionTable& table, const std::vector<std::string>& args,
                               config::Problems& problems) {
  if (launch::is_launched()) table.pass_over_in_files(config::is_launch_flag);
  return table.parse(with_method_keys(args), problems);
}

}  // namespace tessera::tasks
