#pragma once
// What connects a unit to autograd. One ticket stands for one forward whose backward is still to come; the graph owns
// it, so that a graph which is dropped without a backward gives its ticket back.
#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tensor/gradient_place.h"

namespace tessera::fsdp {

class Unit;

/// A number of forwards of one unit.
using PendingCount = std::shared_ptr<std::int64_t>;

struct BackwardTicket : torch::CustomClassHolder {
  /// Counts of forwards that wait for their backward: pending, of those since the unit's last completed backward; open,
  /// of all. kept: of those that had one, and whose graph may have another.
  BackwardTicket(std::weak_ptr<Unit> unit, PendingCount pending, PendingCount open, PendingCount kept);
  ~BackwardTicket() override;
  /// Counts this forward as done; only once. kept: this backward keeps its graph (retain_graph, create_graph).
  void redeem(bool kept);

  std::weak_ptr<Unit> unit;
  PendingCount pending, open, kept;
  std::int64_t position = -1;  // in the recorded order of forwards, once this one has ended; -1: not recorded
  bool redeemed = false, counted_as_kept = false;
};
using TicketPtr = c10::intrusive_ptr<BackwardTicket>;

/// Passes the inputs that require grad through an identity node, whose backward runs after everything between it and
/// the unit's outputs. False when no input requires grad. Where that backward is recorded (create_graph), what it
/// passes on is an output of the unit, too.
bool attach_post_backward(const std::vector<at::Tensor*>& inputs, const TicketPtr& ticket);

/// Runs before the backward of whatever produced an output. False when no output takes part in a graph.
bool attach_pre_backward(const std::vector<at::Tensor*>& outputs, const TicketPtr& ticket);

/// Where the parameter's gradients go, until null is set.
void set_gradient_place(const at::Tensor& parameter, std::unique_ptr<tensor::GradientPlace> place);

/// Calls `done` in each backward when nothing more comes for the parameter in it, whether autograd had a gradient for
/// it or the operations wrote theirs into its place; as long as the result lives.
std::shared_ptr<void> on_last_gradient(const at::Tensor& parameter, std::function<void()> done);

}  // namespace tessera::fsdp
