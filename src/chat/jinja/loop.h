#pragma once
// The variable `loop` inside of {% for %}.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chat/jinja/value.h"

namespace tessera::chat {

class Loop : public Object {
 public:
  /// `again` renders the loop's body over other items; empty where the loop is not recursive.
  using Again = std::function<Value(const Value& items, std::int64_t depth0)>;
  Loop(std::vector<Value> items, std::int64_t depth0, Again again);

  std::string type_name() const override { return "LoopContext"; }
  std::string repr() const override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override;
  std::optional<Value> attribute(std::string_view name) const override;

  /// The next item, or null at the end.
  const Value* advance();
  /// Whether loop.changed() sees other values than before.
  bool changed(std::vector<Value> values);
  std::int64_t index0() const { return index0_; }

 private:
  const Value& item(std::int64_t i) const { return items_[static_cast<std::size_t>(i)]; }

  std::vector<Value> items_;
  std::int64_t index0_ = -1, depth0_ = 0;
  Again again_;
  std::optional<std::vector<Value>> last_;
};

/// loop.cycle and loop.changed.
Value loop_method(const std::shared_ptr<Loop>& loop, std::string_view name);

}  // namespace tessera::chat
