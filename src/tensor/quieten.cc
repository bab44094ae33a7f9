#include "tensor/quieten.h"

#include <c10/util/Logging.h>

#include <cstdlib>

namespace tessera::tensor {

void quieten_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr)
    c10::initLogging();
  else
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
}

}  // namespace tessera::tensor
