#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/loop.h"
#include "chat/jinja/macro.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

constexpr std::int64_t kStatementWork = 30;  // in the budget's units

}  // namespace

Interpreter::Interpreter(const std::map<std::string, Value>& variables, int max_depth)
    : variables_(variables), max_depth_(max_depth), outputs_(1) {}

Interpreter::~Interpreter() {
  for (const auto& scope : scopes_with_macros_) scope->clear();
  for (const auto& space : namespaces_) space->attributes = Dict();
}

std::string Interpreter::run(const Body& body, const Blocks& blocks) {
  blocks_ = &blocks;
  try {
    execute(body, top_);
  } catch (const TemplateError& e) {
    if (e.at.line > 0) throw;
    throw TemplateError(e.kind, e.message, at_);
  }
  return outputs_.front().take();
}

void Interpreter::write(std::string_view text) {
  outputs_.back() += text;
  if (outputs_.size() > 1) return;
  ++pieces_;
  written_points_ += count_points(text);
}

std::pair<std::string, Interpreter::Flow> Interpreter::capture(const Body& body, const ScopePtr& scope) {
  outputs_.emplace_back();
  const Flow flow = execute(body, scope);
  std::string text = outputs_.back().take();
  outputs_.pop_back();
  return {std::move(text), flow};
}

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope) {
  for (const auto& statement : body)
    if (const Flow flow = execute(*statement, scope); flow != Flow::kNext) return flow;
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Statement& s, const ScopePtr& scope) {
  const Deeper deeper(*this);
  spend(kStatementWork);
  at_ = s.at;
  switch (s.kind) {
    case StatementKind::kData:
      write(s.text);
      break;
    case StatementKind::kOutput:
      write(to_text(evaluate(*s.expression, scope)));
      break;
    case StatementKind::kIf:
      return run_if(s, scope);
    case StatementKind::kFor:
      return run_for(s, scope);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
    case StatementKind::kSet:
      assign(*s.target, evaluate(*s.expression, scope), scope);
      break;
    case StatementKind::kSetBlock:
    case StatementKind::kFilter: {
      auto [text, flow] = capture(s.body, std::make_shared<Scope>(scope));
      if (flow != Flow::kNext) return flow;
      const Value value = s.expression ? apply_filters(*s.expression, Value(text), scope) : Value(text);
      if (s.kind == StatementKind::kFilter) {
        if (!value.is_text()) type_error(fmt::format("a filter block must give text, not {}", type_name(value)));
        write(value.text());
      } else {
        assign(*s.target, value, scope);
      }
      break;
    }
    case StatementKind::kWith:
      return run_with(s, scope);
    case StatementKind::kMacro:
      scope->set(s.text, make_macro(s, scope));
      break;
    case StatementKind::kCall:
      run_call_block(s, scope);
      break;
    case StatementKind::kGeneration:
      run_generation(s, scope);
      break;
    case StatementKind::kScope:
      return execute(s.body, std::make_shared<Scope>(scope));
    case StatementKind::kBlock:
    case StatementKind::kRequired:
      return run_block(s);
    case StatementKind::kImport:
      type_error(fmt::format("'{}' needs other templates; a chat template stands alone", s.text));
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Statement& s, const ScopePtr& scope) {
  if (truth(evaluate(*s.expression, scope))) return execute(s.body, scope);
  for (const auto& branch : s.elifs)
    if (truth(evaluate(*branch->expression, scope))) return execute(branch->body, scope);
  return execute(s.otherwise, scope);
}

Interpreter::Flow Interpreter::run_for(const Statement& s, const ScopePtr& scope) {
  const Value items = evaluate(*s.expression, scope);
  if (!s.recursive) return run_loop(s, scope, items, 0);
  outputs_.emplace_back();
  run_loop(s, scope, items, 0);
  const std::string text = outputs_.back().take();
  outputs_.pop_back();
  write(text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_loop(const Statement& s, const ScopePtr& scope, const Value& over,
                                        std::int64_t depth0) {
  const Deeper deeper(*this);
  Loop::Condition condition;
  if (s.condition)
    condition = [this, &s, scope](const Value& item) {
      const auto inner = std::make_shared<Scope>(scope);
      assign(*s.target, item, inner);
      return truth(evaluate(*s.condition, inner));
    };
  Loop::Again again;
  if (s.recursive)
    again = [this, &s, scope](const Value& more, std::int64_t depth) -> Value {
      outputs_.emplace_back();
      run_loop(s, scope, more, depth);
      std::string text = outputs_.back().take();
      outputs_.pop_back();
      return text;
    };
  bool any_finished = false;  // jinja2 takes the else branch, too, when break or continue ended every iteration
  const auto loop = std::make_shared<Loop>(iterate(over), depth0, std::move(condition), std::move(again));
  while (const Value* item = loop->advance()) {
    const auto inner = std::make_shared<Scope>(scope);
    inner->set("loop", ObjectPtr(loop));
    assign(*s.target, *item, inner);
    const Flow flow = execute(s.body, inner);
    if (flow == Flow::kBreak) break;
    any_finished |= flow == Flow::kNext;
  }
  return any_finished ? Flow::kNext : execute(s.otherwise, std::make_shared<Scope>(scope));
}

Interpreter::Flow Interpreter::run_with(const Statement& s, const ScopePtr& scope) {
  // All values are computed before the first name is known.
  std::vector<Value> values;
  for (const auto& value : s.values) values.push_back(evaluate(*value, scope));
  const auto inner = std::make_shared<Scope>(scope);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*s.targets[i], values[i], inner);
  return execute(s.body, inner);
}

Interpreter::Flow Interpreter::run_block(const Statement& block) {
  if (block.kind == StatementKind::kRequired) type_error(fmt::format("Required block '{}' not found", block.text));
  return execute(block.body, std::make_shared<Scope>(top_));
}

void Interpreter::run_call_block(const Statement& s, const ScopePtr& scope) {
  const Value caller = make_macro(s, scope);
  write(to_text(evaluate_call(*s.expression, scope, &caller)));
}

// As transformers' AssistantTracker: the block is rendered first, then takes its place behind what the text has so far;
// it is not recorded when nothing at all was written before it.
void Interpreter::run_generation(const Statement& s, const ScopePtr& scope) {
  const std::string text = run_macro(s, scope, {});
  if (pieces_ > 0 || !spans_.empty()) spans_.emplace_back(written_points_, written_points_ + count_points(text));
  write(text);
}

Value Interpreter::make_macro(const Statement& s, const ScopePtr& scope) {
  if (scopes_with_macros_.empty() || scopes_with_macros_.back() != scope) scopes_with_macros_.push_back(scope);
  return ObjectPtr(std::make_shared<Macro>(*this, s, scope));
}

std::string Interpreter::run_macro(const Statement& s, const ScopePtr& scope, Arguments arguments) {
  const Deeper deeper(*this);
  const auto inner = std::make_shared<Scope>(scope);
  auto& named = arguments.named;
  const auto take_named = [&](const std::string& name) -> std::optional<Value> {
    const auto it =
        std::find_if(named.begin(), named.end(), [&](const auto& argument) { return argument.first == name; });
    if (it == named.end()) return std::nullopt;
    Value value = std::move(it->second);
    named.erase(it);
    return value;
  };
  const std::size_t count = s.parameters.size(), given = std::min(count, arguments.positional.size());
  std::vector<std::size_t> absent;
  for (std::size_t i = 0; i < count; ++i) {
    if (i < given) {
      inner->set(s.parameters[i], std::move(arguments.positional[i]));
    } else if (auto value = take_named(s.parameters[i])) {
      inner->set(s.parameters[i], std::move(*value));
    } else {
      absent.push_back(i);
    }
  }
  if (s.uses_caller) inner->set("caller", take_named("caller").value_or(make_undefined("No caller defined")));
  if (s.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : named) rest.set(name, std::move(value));
    inner->set("kwargs", make_dict(std::move(rest)));
  } else if (!named.empty()) {
    type_error(fmt::format("macro {} takes no keyword argument {}", repr_text(s.text), repr_text(named[0].first)));
  }
  std::vector<Value> more(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given),
                          arguments.positional.end());
  if (s.uses_varargs)
    inner->set("varargs", make_tuple(std::move(more)));
  else if (!more.empty())
    type_error(fmt::format("macro {} takes not more than {} argument(s)", repr_text(s.text), count));
  // Defaults see the parameters before them.
  for (const std::size_t i : absent) {
    const std::size_t first_default = count - s.defaults.size();
    inner->set(s.parameters[i], i >= first_default ? evaluate(*s.defaults[i - first_default], inner)
                                                   : make_undefined(fmt::format("parameter {} was not provided",
                                                                                repr_text(s.parameters[i]))));
  }
  return capture(s.body, inner).first;
}

void Interpreter::assign(const Expression& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == ExpressionKind::kName) {
    scope->set(target.name, value);
    return;
  }
  if (target.kind == ExpressionKind::kNamespaceName) {
    const Value space = evaluate_name(target, scope);
    const auto* names = space.get<NamespacePtr>();
    if (names == nullptr) type_error("cannot assign attribute on non-namespace object");
    (*names)->attributes.set(target.attribute, value);
    return;
  }
  const auto items = iterate(value);
  const std::size_t wanted = target.parts.size();
  if (items.size() < wanted)
    value_error(fmt::format("not enough values to unpack (expected {}, got {})", wanted, items.size()));
  if (items.size() > wanted) value_error(fmt::format("too many values to unpack (expected {})", wanted));
  for (std::size_t i = 0; i < wanted; ++i) assign(*target.parts[i], items[i], scope);
}

}  // namespace tessera::chat
