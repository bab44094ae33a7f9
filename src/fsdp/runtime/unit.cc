#include "fsdp/runtime/unit.h"

#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "fsdp/params/precision.h"
#include "fsdp/runtime/runtime.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

class ReducerPlace final : public tensor::GradientPlace {
 public:
  ReducerPlace(Runtime& runtime, GradientId id, std::vector<std::int64_t> shape)
      : runtime_(runtime), id_(id), shape_(std::move(shape)) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    auto grad = parameter.grad();
    if (!grad.defined()) return;  // operations wrote theirs here themselves
    parameter.mutable_grad().reset();
    if (grad.layout() != at::kStrided) grad = grad.to_dense();  // of an Embedding with sparse gradients
    runtime_.begin_backward();
    runtime_.reducer().accumulate(id_, grad);
  }
  std::shared_ptr<tensor::PreparedGradient> reserve() override {
    if (runtime_.copies_to_device()) return nullptr;  // what computes the gradient cannot write there
    auto prepared = runtime_.reducer().reserve(id_);
    if (!prepared) return nullptr;
    prepared->memory = prepared->memory.view(shape_);
    prepared->place = this;
    return prepared;
  }
  void commit(const std::shared_ptr<tensor::PreparedGradient>& prepared) override {
    runtime_.begin_backward();
    runtime_.reducer().commit(id_, *prepared);
  }

 private:
  Runtime& runtime_;
  GradientId id_;
  std::vector<std::int64_t> shape_;
};

std::shared_ptr<const tensor::FilePages> file_pages_of(const std::vector<UnitParameter>& parameters) {
  std::vector<at::Tensor> views;
  for (const auto& p : parameters)
    if (p.spec.mapped) views.push_back(p.mapped);
  return std::make_shared<tensor::FilePages>(views);
}

}  // namespace

Unit::Unit(Runtime& runtime, int index, std::string name, nn::HookedModule* module,
           std::vector<UnitParameter> parameters, std::vector<Segment> segments, std::unique_ptr<ParameterStore> store)
    : runtime_(runtime),
      index_(index),
      name_(std::move(name)),
      module_(module),
      ignored_(module == nullptr),
      parameters_(std::move(parameters)),
      segments_(std::move(segments)),
      store_(std::move(store)),
      file_pages_(file_pages_of(parameters_)),
      pinned_(module == nullptr || runtime.always_whole()) {
  if (runtime.offload() && index_ != 0) file_pages_->expect_passes();  // of the root's tables a step reads some rows
  if (runtime.copies_to_device())
    copy_ = std::make_unique<DeviceCopy>(parameters_, *store_, runtime.options().device, runtime.uploader(),
                                         runtime.device_meter());
}

Unit::~Unit() {
  if (module_) module_->set_hooks(nullptr);
  for (const auto& p : parameters_)
    if (p.spec.trainable) set_gradient_place(p.tensor, nullptr);
  detach("' belonged to a FullyShardedDataParallel that was destroyed");
}

void Unit::activate() {
  detach("' is sharded; unshard its unit first");
  hook_gradients();
  if (module_) module_->set_hooks(this);
  if (pinned_) gather();
}

void Unit::hook_gradients() {
  int trainable_segment = 0;
  for (const auto& s : segments_) {
    if (!s.trainable) continue;
    for (std::size_t e = 0; e < s.entries.size(); ++e) {
      const auto& p = parameters_[static_cast<std::size_t>(s.entries[e].parameter)];
      const GradientId id{index_, trainable_segment, static_cast<int>(e)};
      set_gradient_place(p.tensor, std::make_unique<ReducerPlace>(runtime_, id, p.spec.shape));
      if (!s.alone) continue;
      last_gradient_hooks_.push_back(on_last_gradient(p.tensor, [this, id] {
        runtime_.begin_backward();
        runtime_.reducer().parameter_finished(id);
      }));
    }
    ++trainable_segment;
  }
}

void Unit::zero_grad() {
  runtime_.finish_step();
  for (std::size_t s = 0; s < segments_.size(); ++s)
    if (segments_[s].trainable) store_->shard(s).mutable_grad().reset();
  if (!runtime_.in_backward()) runtime_.reducer().forget_unsynced(index_);
}

void Unit::module_destroyed() noexcept {
  module_ = nullptr;
}

// What a segment's parameters have in common decides whether its slices get gradients: see Note [What trains].
void Unit::check_what_trains() const {
  for (const auto& p : parameters_)
    if (!p.spec.trainable && p.tensor.requires_grad())
      throw ConfigError("parameter '" + p.spec.name +
                        "' requires grad but was frozen when fully_shard() was called: nothing would train it. Let it "
                        "require grad before, and freeze its unit afterwards as long as it is not to train");
  for (const auto& segment : segments_) {
    if (!segment.trainable) continue;
    const UnitParameter *frozen = nullptr, *trains = nullptr;
    for (const auto& entry : segment.entries) {
      const auto& p = parameters_[static_cast<std::size_t>(entry.parameter)];
      (p.tensor.requires_grad() ? trains : frozen) = &p;
    }
    if (frozen && trains)
      throw ConfigError("parameter '" + frozen->spec.name + "' was frozen after fully_shard(), '" + trains->spec.name +
                        "' of the same unit was not, and optimizers step both together. Freeze all parameters of the "
                        "unit; or freeze it before fully_shard(); or let it require grad and give the optimizer "
                        "parameter_slices() without it");
  }
}

/// Grows with each write to a parameter in place.
std::uint64_t Unit::written() const {
  std::uint64_t writes = 0;
  for (const auto& p : parameters_)
    if (!p.tensor.is_inference()) writes += static_cast<std::uint64_t>(p.tensor._version());
  return writes;
}

bool Unit::stale() const {
  return store_->stale() || (copy_ && copy_->stale());
}

void Unit::attach() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& p = parameters_[i];
    if (p.segment < 0 && !copy_) continue;
    const auto whole = copy_ ? copy_->memory_of(i) : store_->whole(static_cast<std::size_t>(p.segment));
    auto* data =
        static_cast<std::byte*>(whole.mutable_data_ptr()) + p.offset * static_cast<std::int64_t>(whole.element_size());
    tensor::attach(p.tensor, data, whole);
  }
}

void Unit::detach(const char* why) noexcept {
  for (auto& p : parameters_)
    if (p.segment >= 0 || copy_) tensor::detach(p.tensor, "parameter '" + p.spec.name + why);
}

void Unit::prefetch() {
  if (state_ != State::kSharded) return;
  if (runtime_.offload()) fetch();
  const tensor::Span span("fsdp::start_gather", shown_name());
  store_->start_gather();
  state_ = State::kGathering;
  if (!segments_.empty() && !runtime_.always_whole()) runtime_.count_gather(*this);
  if (copy_ && (segments_.empty() || store_->always_whole())) copy_->start();
}

void Unit::gather() {
  if (auto* step = runtime_.background_step()) step->wait_for(*this);
  if (state_ != State::kSharded && stale()) drop();
  prefetch();
  if (state_ != State::kGathering) return;
  const tensor::Span span("fsdp::gather", shown_name());
  store_->finish_gather();
  if (copy_) {
    copy_->start();
    copy_->finish();
  }
  attach();
  if (copy_) release_host();
  state_ = State::kWhole;
}

void Unit::refresh() {
  if (!pinned_) return;
  if (auto* step = runtime_.background_step()) step->wait_for(*this);
  if (stale()) gather();
}

void Unit::release() {
  if ((state_ != State::kSharded || fetched_) && !pinned_) drop();
}

void Unit::drop() {
  if (state_ == State::kWhole) detach("' is sharded; unshard its unit first");
  state_ = State::kSharded;
  if (copy_ && !pinned_) copy_->clear();  // else it is gathered again at once
  release_host();
}

void Unit::release_host() {
  store_->release();
  if (runtime_.offload()) evict();
}

void Unit::fetch() {
  if (fetched_) return;
  file_pages_->check_unchanged();
  store_->fetch(*runtime_.offload());
  if (index_ != 0 && !file_pages_->empty()) runtime_.page_reader().bring(file_pages_);
  fetched_ = true;
}

void Unit::evict() {
  store_->evict(*runtime_.offload());
  runtime_.page_reader().forget(*file_pages_);
  file_pages_->drop();
  fetched_ = false;
}

void Unit::publish() {
  store_->publish();
  if (runtime_.offload()) store_->evict(*runtime_.offload());
}

void Unit::before_forward(const std::vector<at::Tensor*>& inputs) {
  runtime_.enter_forward();
  ++forwards_;
  tickets_.emplace_back();
  written_.push_back(written());
  forward_spans_.push_back(std::make_unique<tensor::Span>("fsdp::forward", shown_name()));
  try {
    check_what_trains();
    runtime_.begin_unit_forward(*this);
    gather();
    runtime_.prefetch_after(*this);
    if (index_ == 0) move_to(runtime_.options().device, inputs);
    const auto& precision = runtime_.options().precision;
    if (precision.param_dtype && precision.cast_forward_inputs) cast_floating(inputs, *precision.param_dtype);
    runtime_.reducer().expect(index_);
    if (at::GradMode::is_enabled()) {
      tickets_.back() = c10::make_intrusive<BackwardTicket>(weak_from_this(), pending_, open_forwards_, kept_forwards_);
      attach_post_backward(inputs, tickets_.back());
    }
  } catch (...) {
    abort_forward();
    throw;
  }
}

void Unit::after_forward(const std::vector<at::Tensor*>& outputs) {
  check_files();
  if (written() != written_.back())
    throw Error("the forward of unit '" + std::string(shown_name()) +
                "' wrote to one of its parameters (an Embedding with max_norm does). That would change what is "
                "gathered, not what is trained. Write to shards() between steps and call mark_updated()");
  const auto& precision = runtime_.options().precision;
  if (index_ == 0 && precision.output_dtype) cast_floating(outputs, *precision.output_dtype);
  if (tickets_.back()) tickets_.back()->position = runtime_.record_forward(index_);
  const bool armed = tickets_.back() && attach_pre_backward(outputs, tickets_.back());
  // A forward inside a backward is a recomputation: its own backward follows at once.
  const bool soon = runtime_.in_backward() || index_ == 0;
  leaving_ = true;
  leave_forward(armed && (soon || !reshards_after_forward(runtime_.options().strategy)));
  leaving_ = false;
}

void Unit::abort_forward() noexcept {
  if (std::exchange(leaving_, false)) return;  // what threw is the end of after_forward()
  try {
    leave_forward(false);
  } catch (...) {  // the forward's own exception is the one to report
    state_ = State::kSharded;
  }
}

void Unit::leave_forward(bool keep) {
  tickets_.pop_back();
  written_.pop_back();
  forward_spans_.pop_back();
  --forwards_;
  runtime_.leave_forward();
  if (!keep && forwards_ == 0 && !in_backward_) release();
}

void Unit::pre_backward(const BackwardTicket& ticket) {
  runtime_.begin_backward();
  in_backward_ = true;
  if (!backward_span_) backward_span_.emplace(tensor::kBackwardOfUnit, shown_name());
  runtime_.announce("backward of", *this);
  gather();
  if (runtime_.options().backward_prefetch == BackwardPrefetch::kPre) runtime_.prefetch_before(ticket.position);
}

void Unit::post_backward(BackwardTicket& ticket) {
  runtime_.begin_backward();
  check_files();
  ticket.redeem(torch::autograd::get_current_graph_task_keep_graph());
  if (*ticket.pending > 0 || repeats_) return;  // more of this unit is still to come back, perhaps
  in_backward_ = false;
  backward_span_.reset();
  if (forwards_ == 0) release();
  if (runtime_.options().backward_prefetch == BackwardPrefetch::kPost) runtime_.prefetch_before(ticket.position);
  runtime_.reducer().unit_finished(index_);
}

void Unit::begin_backward() {
  repeats_ = *kept_forwards_ > 0;
  if (awaits_backward()) runtime_.reducer().expect(index_);
}

void Unit::end_backward() {
  in_backward_ = repeats_ = false;
  backward_span_.reset();
  pending_ = std::make_shared<std::int64_t>(0);
  if (forwards_ == 0) release();
}

}  // namespace tessera::fsdp
