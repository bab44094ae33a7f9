#pragma once
// A parsed template.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/template_error.h"
#include "chat/jinja/value.h"

namespace tessera::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kConstant,
  kName,
  kNamespaceName,  // ns.attribute, as the target of {% set %}
  kTuple,
  kList,
  kDict,       // parts: key, value, key, value, ...
  kAttribute,  // parts[0].name
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], null where left out
  kCall,       // parts[0](...)
  kFilter,     // parts[0] | name(...); parts[0] is null in {% filter %} and {% set x | f %}
  kTest,       // parts[0] is name(...)
  kNot,        // not parts[0]
  kNegative,   // -parts[0]
  kPositive,   // +parts[0]
  kAnd,
  kOr,
  kCompare,      // parts[0] operators[0] parts[1] operators[1] ...
  kArithmetic,   // parts[0] name parts[1]
  kConcat,       // parts[0] ~ parts[1] ~ ...
  kConditional,  // parts[1] if parts[0] else parts[2], which may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  Position at;
  std::string name, attribute;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;
  // Arguments of calls, filters and tests.
  std::vector<ExpressionPtr> arguments;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star, double_star;
  bool is_set_here = false;  // kName: the context is not asked for it (resolve_names.h)
  int depth = 1;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;
using Blocks = std::map<std::string, const Statement*>;  // by name: of {% block %}

enum class StatementKind {
  kData,    // text
  kOutput,  // expression
  kIf,      // if expression: body, elif ..., else otherwise
  kFor,     // for target in expression if condition: body, else otherwise
  kBreak,
  kContinue,
  kSet,       // target = expression
  kSetBlock,  // target = body | expression (a chain of filters, or null)
  kFilter,    // body | expression
  kWith,      // targets[i] = values[i]
  kMacro,
  kCall,        // expression (a call) with body as its caller
  kGeneration,  // body, whose place in the text is recorded
  kScope,       // body in a scope of its own: {% autoescape %}, {% block %} with scoped
  kBlock,       // body that sees what the template itself sets, but nothing of loops and macros around it
  kRequired,    // a block that another template would have to fill: there is none
  kImport,      // include, import, from, extends: there is no other template
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  Position at;
  std::string text;  // data; the macro's name; the tag of kImport; the name of kRequired
  ExpressionPtr expression, condition, target;
  bool recursive = false;
  Body body, otherwise;
  std::vector<std::unique_ptr<Statement>> elifs;  // each a kIf
  std::vector<ExpressionPtr> targets, values;     // kWith
  // Parameters of kMacro and kCall; defaults belong to the last ones.
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

}  // namespace tessera::chat
