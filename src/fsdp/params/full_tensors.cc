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

namespace {

at::Tensor gather_whole(const Unit& unit, const Segment& segment, const at::Tensor& slice, comm::Communicator& group) {
  if (slice.numel() != segment.slice_numel)
    throw Error("unit '" + unit.name() + "': a tensor laid out like the parameters must have " +
                std::to_string(segment.slice_numel) + " elements, found " + std::to_string(slice.numel()));
  auto whole = at::empty({segment.numel}, slice.scalar_type());
  group.all_gather(whole, tensor::on_host(slice.detach()).contiguous().view(-1))->wait_input_free();
  return whole;
}

}  // namespace

void visit_segment(const Unit& unit, const Segment& segment, const at::Tensor& slice, comm::Communicator& group,
                   const VisitTensor& visit) {
  at::NoGradGuard no_grad;
  visit_whole(unit, segment, gather_whole(unit, segment, slice, group), visit);
}

void update_segment(const Unit& unit, const Segment& segment, const at::Tensor& slice, comm::Communicator& group,
                    const VisitTensor& change) {
  at::NoGradGuard no_grad;
  const auto whole = gather_whole(unit, segment, slice, group);
  visit_whole(unit, segment, whole, change);
  slice.detach().copy_(whole.narrow(0, group.rank() * segment.slice_numel, segment.slice_numel));
}

}  // namespace tessera::fsdp
