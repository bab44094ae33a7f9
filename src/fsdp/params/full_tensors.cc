#include "fsdp/params/full_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "tensor/device.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {

void visit_whole(const Unit& unit, const Segment& segment, const at::Tensor& whole, const VisitTensor& visit) {
  for (const auto& e : segment.entries) {
    const auto& spec = unit.parameters()[static_cast<std::size_t>(e.parameter)].spec;
    const auto flat = whole.narrow(0, e.offset, e.numel);
    visit(spec.name, (spec.packed() ? flat.view(spec.stored) : flat).view(spec.shape));
  }
}

void visit_segment(const Unit& unit, const Segment& segment, const at::Tensor& slice, comm::Communicator& group,
                   const VisitTensor& visit) {
  at::NoGradGuard no_grad;
  if (slice.numel() != segment.slice_numel)
    throw Error("unit '" + unit.name() + "': a tensor laid out like the parameters must have " +
                std::to_string(segment.slice_numel) + " elements, found " + std::to_string(slice.numel()));
  auto whole = at::empty({segment.numel}, slice.scalar_type());
  group.all_gather(whole, tensor::on_host(slice.detach()).contiguous().view(-1))->wait_input_free();
  visit_whole(unit, segment, whole, visit);
}

}  // namespace tessera::fsdp
