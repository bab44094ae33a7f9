// Checkpoints of Accelerate beside the values that they should hold: expect_model.safetensors ("parameter") and
// expect_optimizer.safetensors ("parameter.state").
#include <filesystem>
#include <ostream>

#include "checkpoint/torch_state.h"
#include "io/dcp_folder.h"
#include "io/torch_file.h"
#include "tessera/base/error.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;

std::string name_in_optimizer(const std::string& expected) {
  const auto dot = expected.rfind('.');
  return "state/" + expected.substr(0, dot) + "/" + expected.substr(dot + 1);
}

void compare_all(const std::string& form, const io::TensorSource& found, const std::string& expected_file,
                 bool optimizer, Comparison& table) {
  const auto expected = io::open_safetensors(expected_file);
  for (const auto& info : expected->tensors()) {
    const std::string name = optimizer ? name_in_optimizer(info.name) : info.name;
    if (!found.find(name)) {
      table.fail(form + " " + info.name, "is missing");
      continue;
    }
    if (found.find(name)->dtype != info.dtype)
      table.fail(form + " " + info.name, "has another dtype");
    else
      table.add(form + " " + info.name, io::read_tensor(found, name), io::read_tensor(*expected, info.name), 0.0);
  }
}

}  // namespace

bool verify_checkpoint(const VerifyOptions& options, std::shared_ptr<comm::Communicator>, std::ostream& out) {
  const std::string folder = options.folder + "/";
  Comparison table;
  int forms[2] = {};  // of the model and of its optimizer
  const auto compare = [&](const std::string& name, bool optimizer) {
    const std::string expected = folder + (optimizer ? "expect_optimizer.safetensors" : "expect_model.safetensors");
    if (!fs::exists(expected) || !fs::exists(folder + name)) return;
    ++forms[optimizer];
    const auto found = fs::is_directory(folder + name)
                           ? io::open_dcp(folder + name)
                           : io::make_stored_source(io::list_nested_torch_file(folder + name));
    compare_all(name, *found, expected, optimizer, table);
  };
  out << "checkpoint " << options.folder << "\n";
  compare("pytorch_model_fsdp.bin", false);
  compare("pytorch_model_fsdp_0", false);
  compare("optimizer.bin", true);
  // FSDP1 on CPUs gathers exp_avg wrongly into optimizer.bin, and the expected values are those of that file.
  if (!fs::exists(folder + "optimizer.bin")) compare("optimizer_0", true);
  for (const bool optimizer : {false, true})
    if (forms[optimizer] == 0 &&
        fs::exists(folder + (optimizer ? "expect_optimizer.safetensors" : "expect_model.safetensors")))
      throw DataError("'" + options.folder + "' has expected values of " + (optimizer ? "an optimizer" : "a model") +
                          ", but no checkpoint of Accelerate beside them",
                      options.folder);
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
