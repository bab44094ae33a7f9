#pragma once
// Read by this project's sources in the place of libtorch's file, which declares every operation. They include the
// operations that they call; torch/nn/module.h includes this file and needs none. See cmake/Rooms.cmake.
#include <ATen/Context.h>
#include <ATen/Device.h>
#include <ATen/ScalarOps.h>
#include <ATen/TensorOptions.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
