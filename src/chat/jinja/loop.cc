#include "chat/jinja/loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/native_function.h"
#include "chat/jinja/template_error.h"

namespace tessera::chat {

Loop::Loop(std::vector<Value> items, std::int64_t depth0, Condition condition, Again again)
    : items_(std::move(items)), depth0_(depth0), condition_(std::move(condition)), again_(std::move(again)) {
  held.add(static_cast<std::int64_t>(items_.capacity() * sizeof(Value)));
  for (const auto& item : items_) depth = std::max(depth, depth_of(item) + 1);
}

std::string Loop::repr() const {
  return fmt::format("<LoopContext {}/{}>", index0_ + 1, size());
}

bool Loop::reaches(std::int64_t i) const {
  while (i >= static_cast<std::int64_t>(taken_) && asked_ < items_.size()) {
    const std::size_t at = asked_++;
    if (condition_ && !condition_(items_[at])) continue;
    if (taken_ != at) items_[taken_] = std::move(items_[at]);
    ++taken_;
  }
  return i < static_cast<std::int64_t>(taken_);
}

std::int64_t Loop::size() const {
  reaches(static_cast<std::int64_t>(items_.size()));
  return static_cast<std::int64_t>(taken_);
}

const Value* Loop::advance() {
  ++index0_;
  return reaches(index0_) ? &item(index0_) : nullptr;
}

Value Loop::call(Runtime&, Arguments arguments) {
  if (!again_) type_error("The loop must have the 'recursive' marker to be called recursively.");
  if (arguments.positional.size() != 1 || !arguments.named.empty()) type_error("loop() takes exactly one argument");
  return again_(arguments.positional[0], depth0_ + 1);
}

bool Loop::changed(std::vector<Value> values) {
  if (last_ && std::equal(last_->begin(), last_->end(), values.begin(), values.end(), equal)) return false;
  last_ = std::move(values);
  return true;
}

std::optional<Value> Loop::attribute(std::string_view name) const {
  if (name == "index") return index0_ + 1;
  if (name == "index0") return index0_;
  if (name == "revindex") return size() - index0_;
  if (name == "revindex0") return size() - index0_ - 1;
  if (name == "first") return index0_ == 0;
  if (name == "last") return !reaches(index0_ + 1);
  if (name == "length") return size();
  if (name == "depth") return depth0_ + 1;
  if (name == "depth0") return depth0_;
  if (name == "previtem") return index0_ > 0 ? item(index0_ - 1) : make_undefined("there is no previous item");
  if (name == "nextitem") return reaches(index0_ + 1) ? item(index0_ + 1) : make_undefined("there is no next item");
  return std::nullopt;
}

Value loop_method(const std::shared_ptr<Loop>& loop, std::string_view name) {
  if (name == "cycle")
    return make_function("cycle", [loop](Runtime&, Arguments arguments) {
      const auto& items = arguments.positional;
      if (items.empty()) type_error("no items for cycling given");
      return items[static_cast<std::size_t>(loop->index0()) % items.size()];
    });
  return make_function(
      "changed", [loop](Runtime&, Arguments arguments) { return loop->changed(std::move(arguments.positional)); });
}

}  // namespace tessera::chat
