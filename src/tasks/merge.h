#pragma once
// `tessera merge`: a model and an adapter become one Hugging Face folder, sharded over as many ranks as are launched,
// so that no rank holds the whole model.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

int merge(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
