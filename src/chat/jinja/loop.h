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
  /// The loop's own condition; empty: it has none. An item is asked about when it is reached, or when something reads
  /// what lies ahead (last, nextitem, length ...): as in jinja2, the condition sees what the body has changed until
  /// then.
  using Condition = std::function<bool(const Value& item)>;
  Loop(std::vector<Value> items, std::int64_t depth0, Condition condition, Again again);

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
  /// Whether there is an item of this number.
  bool reaches(std::int64_t i) const;
  std::int64_t size() const;

  // Items that the condition has taken stand at the front; those behind `asked_` are still to be asked about.
  mutable std::vector<Value> items_;
  mutable std::size_t taken_ = 0, asked_ = 0;
  std::int64_t index0_ = -1, depth0_ = 0;
  Condition condition_;
  Again again_;
  std::optional<std::vector<Value>> last_;
};

/// loop.cycle and loop.changed.
Value loop_method(const std::shared_ptr<Loop>& loop, std::string_view name);

}  // namespace tessera::chat
