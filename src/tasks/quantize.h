#pragma once
// `tessera quantize MODEL OUT`: a model folder whose linear layers are packed in 4 or 8 bits, as transformers and
// bitsandbytes write and read it. One tensor is in memory at a time.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

int quantize(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
