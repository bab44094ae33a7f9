#include "fsdp/grads/gradient_bucket.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera::fsdp {

bool TrainableSegment::trains() const {
  const auto requires_grad = [](const at::Tensor& t) { return t.requires_grad(); };
  return parameters.empty() || std::any_of(parameters.begin(), parameters.end(), requires_grad);
}

void GradientBucket::add_segment(TrainableSegment segment) {
  entries_.emplace_back(segment.layout.entries.size());
  segments.push_back(std::move(segment));
}

void GradientBucket::open(std::vector<at::Tensor> buffers, Place place) {
  buffers_ = std::move(buffers);
  place_ = place;
  for (std::size_t i = 0; i < segments.size(); ++i)
    for (auto [begin, end] : gaps(segments[i].layout)) buffers_[i].narrow(0, begin, end - begin).zero_();
  if (!reducing() && state != BucketState::kFinished) state = BucketState::kOpen;
}

void GradientBucket::move_to_transport(const std::vector<at::Tensor>& places) {
  for (std::size_t i = 0; i < segments.size(); ++i) {
    places[i].copy_(buffers_[i]);
    buffers_[i] = places[i];
  }
  place_ = Place::kTransport;
}

void GradientBucket::leave_transport() {
  evict();
  land();
  for (std::size_t i = 0; i < segments.size(); ++i)
    buffers_[i] = buffers_[i].to(segments[i].reduce, /*non_blocking=*/false, /*copy=*/true);
  place_ = Place::kPrivate;
}

/// 1-D, in the open buffer.
at::Tensor GradientBucket::view_of(std::size_t segment, std::size_t entry) const {
  const auto& e = segments[segment].layout.entries[entry];
  return buffers_[segment].narrow(0, e.offset, e.numel);
}

void GradientBucket::accumulate(std::size_t segment, std::size_t entry, const at::Tensor& grad) {
  auto& state_of_entry = entries_[segment][entry];
  if (!state_of_entry.prepared.expired()) evict();
  const auto view = view_of(segment, entry).view(grad.sizes());
  if (state_of_entry.written) {
    land();
    view.add_(grad.to(view.device()));
  } else if (to_host_ && view.is_pinned()) {
    send(view, grad);
  } else {
    view.copy_(grad);
  }
  state_of_entry.written = true;
}

void GradientBucket::send(const at::Tensor& view, const at::Tensor& grad) {
  while (!leaving_.empty() && leaving_.front().done.query()) leaving_.pop_front();
  auto sent = grad.to(view.scalar_type()).contiguous();
  to_host_->wait_for_computation();
  to_host_->copy(view, sent);
  leaving_.push_back({to_host_->mark(), std::move(sent)});
}

void GradientBucket::land() {
  if (!leaving_.empty()) leaving_.back().done.synchronize();
  leaving_.clear();
}

std::shared_ptr<tensor::PreparedGradient> GradientBucket::reserve(std::size_t segment, std::size_t entry) {
  auto& state_of_entry = entries_[segment][entry];
  if (!state_of_entry.prepared.expired()) return nullptr;
  auto prepared = std::make_shared<tensor::PreparedGradient>();
  prepared->memory = view_of(segment, entry);
  prepared->filled = state_of_entry.written;
  state_of_entry.prepared = prepared;
  return prepared;
}

bool GradientBucket::commit(std::size_t segment, std::size_t entry, const tensor::PreparedGradient& prepared) {
  auto& state_of_entry = entries_[segment][entry];
  if (state_of_entry.prepared.lock().get() != &prepared) return false;
  state_of_entry.prepared.reset();
  state_of_entry.written = true;
  return true;
}

void GradientBucket::evict() {
  for (auto& segment : entries_)
    for (auto& e : segment)
      if (const auto prepared = e.prepared.lock()) {
        prepared->memory = prepared->memory.clone();
        e.prepared.reset();
      }
}

void GradientBucket::accumulate_late(const at::Tensor& grad) {
  const auto& s = segments.front();
  if (!late.defined()) late = at::zeros({s.layout.numel}, s.leaf.options().dtype(s.reduce));
  const auto& entry = s.layout.entries.front();
  late.narrow(0, entry.offset, entry.numel).view(grad.sizes()).add_(grad.to(late.device()));
}

void GradientBucket::take_late() {
  buffers_.front().copy_(late);
  late.reset();
  entries_.front().front().written = true;
}

void GradientBucket::fill_missing() {
  for (std::size_t i = 0; i < segments.size(); ++i)
    for (std::size_t e = 0; e < entries_[i].size(); ++e) {
      auto& written = entries_[i][e].written;
      if (!written) view_of(i, e).zero_();
      written = false;
    }
}

void GradientBucket::forget() noexcept {
  try {
    land();
    evict();
  } catch (...) {  // no memory: what was prepared is lost, as its backward is
  }
  leaving_.clear();
  close();
  late.reset();
  state = BucketState::kIdle;
  for (auto& segment : entries_) segment.assign(segment.size(), {});
}

}  // namespace tessera::fsdp
