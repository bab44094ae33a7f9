#include <fmt/format.h>

#include "chat/jinja/arithmetic.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/globals.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/loop.h"
#include "chat/jinja/native_function.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/template_self.h"
#include "chat/jinja/tests.h"

namespace tessera::chat {
namespace {

// In the budget's units.
constexpr std::int64_t kNodeWork = 30, kCallWork = 100;

}  // namespace

Interpreter::Deeper::Deeper(Interpreter& interpreter) : interpreter(interpreter) {
  if (++interpreter.depth_ <= interpreter.max_depth_) return;
  --interpreter.depth_;
  fail(ErrorKind::kLimit, "maximum recursion depth exceeded");
}

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  const Deeper deeper(*this);
  spend(kNodeWork);
  at_ = expression.at;
  return evaluate_node(expression, scope);
}

Value Interpreter::evaluate_node(const Expression& e, const ScopePtr& scope) {
  switch (e.kind) {
    case ExpressionKind::kConstant:
      return e.constant;
    case ExpressionKind::kName:
      return evaluate_name(e, scope);
    case ExpressionKind::kTuple:
      return make_tuple(evaluate_parts(e, scope));
    case ExpressionKind::kList:
      return make_list(evaluate_parts(e, scope));
    case ExpressionKind::kDict:
      return evaluate_dict(e, scope);
    case ExpressionKind::kAttribute:
      return evaluate_attribute(e, scope);
    case ExpressionKind::kItem: {
      const auto parts = evaluate_parts(e, scope);
      return get_item(parts[0], parts[1]);
    }
    case ExpressionKind::kSlice: {
      const auto parts = evaluate_parts(e, scope);
      return get_slice(parts[0], parts[1], parts[2], parts[3]);
    }
    case ExpressionKind::kCall:
      return evaluate_call(e, scope, nullptr);
    case ExpressionKind::kFilter: {
      const Value input = evaluate(*e.parts[0], scope);
      Arguments arguments = evaluate_arguments(e, scope);
      at_ = e.at;
      return filter(e.name, input, std::move(arguments));
    }
    case ExpressionKind::kTest: {
      const Value input = evaluate(*e.parts[0], scope);
      Arguments arguments = evaluate_arguments(e, scope);
      at_ = e.at;
      return test(e.name, input, std::move(arguments));
    }
    case ExpressionKind::kNot:
      return !truth(evaluate(*e.parts[0], scope));
    case ExpressionKind::kNegative:
      return negative(evaluate(*e.parts[0], scope));
    case ExpressionKind::kPositive:
      return positive(evaluate(*e.parts[0], scope));
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      Value left = evaluate(*e.parts[0], scope);
      return truth(left) == (e.kind == ExpressionKind::kOr) ? left : evaluate(*e.parts[1], scope);
    }
    case ExpressionKind::kCompare:
      return evaluate_compare(e, scope);
    case ExpressionKind::kArithmetic: {
      const Value left = evaluate(*e.parts[0], scope), right = evaluate(*e.parts[1], scope);
      at_ = e.at;
      return arithmetic(e.name, left, right);
    }
    case ExpressionKind::kConcat:
      return evaluate_concat(e, scope);
    case ExpressionKind::kConditional:
      if (truth(evaluate(*e.parts[0], scope))) return evaluate(*e.parts[1], scope);
      if (e.parts[2]) return evaluate(*e.parts[2], scope);
      return make_undefined(fmt::format(
          "the inline if-expression on line {} evaluated to false and no else section was defined.", e.at.line));
    case ExpressionKind::kNamespaceName:
      break;
  }
  throw InternalError("an expression that is only a target was evaluated");
}

Value Interpreter::evaluate_name(const Expression& e, const ScopePtr& scope) {
  const std::string& name = e.name;
  if (const Value* found = scope->find(name)) return *found;
  if (e.is_set_here) return make_undefined(fmt::format("{} is undefined", repr_text(name)));
  if (const auto it = variables_.find(name); it != variables_.end()) return it->second;
  if (name == "namespace")
    return make_function("namespace",
                         [this](Runtime&, Arguments arguments) { return make_namespace(std::move(arguments)); });
  if (name == "self") return ObjectPtr(std::make_shared<TemplateSelf>(*this));
  if (const Value* found = find_global(name)) return *found;
  return make_undefined(fmt::format("{} is undefined", repr_text(name)));
}

Value Interpreter::make_namespace(Arguments arguments) {
  auto space = std::make_shared<Namespace>(Namespace{make_dict_from(std::move(arguments))});
  namespaces_.push_back(space);
  spend(kCallWork);
  return space;
}

std::vector<Value> Interpreter::evaluate_parts(const Expression& e, const ScopePtr& scope) {
  std::vector<Value> out;
  out.reserve(e.parts.size());
  for (const auto& part : e.parts) out.push_back(part ? evaluate(*part, scope) : Value());
  at_ = e.at;
  return out;
}

Value Interpreter::evaluate_dict(const Expression& e, const ScopePtr& scope) {
  auto parts = evaluate_parts(e, scope);
  Dict dict;
  for (std::size_t i = 0; i + 1 < parts.size(); i += 2) dict.set(parts[i], std::move(parts[i + 1]));
  return make_dict(std::move(dict));
}

Value Interpreter::evaluate_attribute(const Expression& e, const ScopePtr& scope) {
  const Value object = evaluate(*e.parts[0], scope);
  at_ = e.at;
  if (const auto* special = object.get<ObjectPtr>(); special && (e.name == "cycle" || e.name == "changed"))
    if (auto loop = std::dynamic_pointer_cast<Loop>(*special)) return loop_method(loop, e.name);
  return get_attribute(object, e.name);
}

Value Interpreter::evaluate_compare(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.parts[0], scope);
  for (std::size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.parts[i + 1], scope);
    at_ = e.at;
    if (!compare(e.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_concat(const Expression& e, const ScopePtr& scope) {
  TextBuilder out;
  for (const auto& value : evaluate_parts(e, scope)) value.is_text() ? out += value.text() : out += to_text(value);
  return out.take();
}

Arguments Interpreter::evaluate_arguments(const Expression& e, const ScopePtr& scope) {
  Arguments out;
  for (const auto& argument : e.arguments) out.positional.push_back(evaluate(*argument, scope));
  for (const auto& [name, argument] : e.named) out.named.emplace_back(name, evaluate(*argument, scope));
  if (e.star) {
    const auto more = iterate(evaluate(*e.star, scope));
    out.positional.insert(out.positional.end(), more.begin(), more.end());
  }
  if (e.double_star) {
    const Value more = evaluate(*e.double_star, scope);
    const auto* dict = more.get<DictPtr>();
    if (dict == nullptr) type_error(fmt::format("argument after ** must be a mapping, not {}", type_name(more)));
    for (const auto& [key, value] : (*dict)->items()) {
      if (!key.is_text()) type_error("keywords must be strings");
      spend(kCallWork + static_cast<std::int64_t>(key.text().size()));
      out.named.emplace_back(key.text(), value);
    }
  }
  return out;
}

Value Interpreter::evaluate_call(const Expression& e, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*e.parts[0], scope);
  Arguments arguments = evaluate_arguments(e, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  at_ = e.at;
  return call(callee, std::move(arguments));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  require_defined(callee);
  spend(kCallWork);
  const auto* object = callee.get<ObjectPtr>();
  if (object == nullptr) type_error(fmt::format("'{}' object is not callable", type_name(callee)));
  const ObjectPtr alive = *object;
  return alive->call(*this, std::move(arguments));
}

Value Interpreter::filter(const std::string& name, const Value& input, Arguments arguments) {
  const Filter function = find_filter(name);
  if (function == nullptr) fail(ErrorKind::kSyntax, fmt::format("No filter named {} found.", repr_text(name)));
  const Deeper deeper(*this);
  spend(kCallWork);
  return function(*this, input, std::move(arguments));
}

bool Interpreter::test(const std::string& name, const Value& input, Arguments arguments) {
  const Test function = find_test(name);
  if (function == nullptr) fail(ErrorKind::kSyntax, fmt::format("No test named {} found.", repr_text(name)));
  spend(kCallWork);
  return function(*this, input, std::move(arguments));
}

Value Interpreter::apply_filters(const Expression& chain, const Value& input, const ScopePtr& scope) {
  const Deeper deeper(*this);
  const Value value = chain.parts[0] ? apply_filters(*chain.parts[0], input, scope) : input;
  Arguments arguments = evaluate_arguments(chain, scope);
  at_ = chain.at;
  return filter(chain.name, value, std::move(arguments));
}

}  // namespace tessera::chat
