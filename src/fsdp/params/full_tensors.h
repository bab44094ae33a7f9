#pragma once
// Whole tensors out of slices, one segment at a time.
#include <functional>
#include <string>
#include <vector>

#include "fsdp/runtime/unit.h"
#include "tessera/comm/communicator.h"

namespace tessera::fsdp {

using VisitTensor = std::function<void(const std::string& name, const at::Tensor& tensor)>;

/// Collective. `slice`: 1-D, this rank's part of something laid out like the segment.
void visit_segment(const Unit& unit, const Segment& segment, const at::Tensor& slice, comm::Communicator& group,
                   const VisitTensor& visit);

/// Collective. What the visitor writes becomes the slice.
void update_segment(const Unit& unit, const Segment& segment, const at::Tensor& slice, comm::Communicator& group,
                    const VisitTensor& change);

/// The same for what is whole already.
void visit_whole(const Unit& unit, const Segment& segment, const at::Tensor& whole, const VisitTensor& visit);

}  // namespace tessera::fsdp
