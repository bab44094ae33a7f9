#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "chat/jinja/filters.h"
#include "chat/jinja/parser.h"
#include "chat/jinja/tests.h"

namespace tessera::chat {
namespace {

constexpr std::array<std::string_view, 6> kComparisons{"==", "!=", "<", "<=", ">", ">="};

// As jinja2's error messages call what cannot be assigned to.
std::string kind_name(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return "const";
    case ExpressionKind::kList:
      return "list";
    case ExpressionKind::kDict:
      return "dict";
    default:
      return "expression";
  }
}

bool can_assign(const Expression& target) {
  if (target.kind == ExpressionKind::kTuple)
    return std::all_of(target.parts.begin(), target.parts.end(), [](const auto& part) { return can_assign(*part); });
  return target.kind == ExpressionKind::kName || target.kind == ExpressionKind::kNamespaceName;
}

}  // namespace

std::string Parser::parse_name_target() {
  const std::string name = current().text;
  const Position at = current().at;
  expect(TokenKind::kName);
  for (const char* word : {"true", "false", "none", "True", "False", "None"})
    if (name == word) fail_at(at, "can't assign to 'name'");
  return name;
}

ExpressionPtr Parser::parse_target(const char* end_word, bool with_namespace) {
  const Position at = current().at;
  auto target = parse_tuple({.names_only = true, .with_namespace = with_namespace, .end_word = end_word});
  if (!can_assign(*target)) fail_at(at, fmt::format("can't assign to '{}'", kind_name(*target)));
  return target;
}

ExpressionPtr Parser::parse_tuple(const TupleRules& rules) {
  const Position at = current().at;
  std::vector<ExpressionPtr> parts;
  bool is_tuple = false;
  for (;;) {
    if (!parts.empty()) expect_operator(",");
    const auto kind = current().kind;
    if (kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || is_operator(")") ||
        (rules.end_word != nullptr && is_word(rules.end_word)))
      break;
    parts.push_back(rules.names_only ? parse_primary(rules.with_namespace) : parse_expression(rules.with_condition));
    if (!is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!parts.empty()) return std::move(parts.front());
    if (!rules.parentheses) fail_at(current().at, fmt::format("Expected an expression, got '{}'", describe(current())));
  }
  auto out = node(ExpressionKind::kTuple, at);
  for (auto& part : parts) adopt(*out, std::move(part));
  return out;
}

ExpressionPtr Parser::parse_expression(bool with_condition) {
  const Nested nested(*this, current().at);
  return with_condition ? parse_condition() : parse_or();
}

ExpressionPtr Parser::parse_condition() {
  const Position at = current().at;
  const std::size_t known_unknown = unknown_.size();
  auto left = parse_or();
  while (skip_word("if")) {
    auto out = node(ExpressionKind::kConditional, at);
    adopt(*out, parse_or());
    adopt(*out, std::move(left));
    const Nested nested(*this, current().at);
    adopt(*out, skip_word("else") ? parse_condition() : nullptr);
    left = std::move(out);
    unknown_.resize(known_unknown);
  }
  return left;
}

ExpressionPtr Parser::parse_or() {
  const Position at = current().at;
  auto left = parse_and();
  while (skip_word("or")) left = binary(ExpressionKind::kOr, at, std::move(left), parse_and());
  return left;
}

ExpressionPtr Parser::parse_and() {
  const Position at = current().at;
  auto left = parse_not();
  while (skip_word("and")) left = binary(ExpressionKind::kAnd, at, std::move(left), parse_not());
  return left;
}

ExpressionPtr Parser::parse_not() {
  const Position at = current().at;
  if (!skip_word("not")) return parse_compare();
  const Nested nested(*this, at);
  auto out = node(ExpressionKind::kNot, at);
  adopt(*out, parse_not());
  return out;
}

ExpressionPtr Parser::parse_compare() {
  const Position at = current().at;
  auto first = parse_sum();
  ExpressionPtr out;
  const auto add = [&](std::string operation) {
    if (!out) {
      out = node(ExpressionKind::kCompare, at);
      adopt(*out, std::move(first));
    }
    out->operators.push_back(std::move(operation));
    adopt(*out, parse_sum());
  };
  for (;;) {
    if (current().kind == TokenKind::kOperator &&
        std::find(kComparisons.begin(), kComparisons.end(), current().text) != kComparisons.end()) {
      add(take().text);
    } else if (skip_word("in")) {
      add("in");
    } else if (is_word("not") && next().kind == TokenKind::kName && next().text == "in") {
      take();
      take();
      add("not in");
    } else {
      return out ? std::move(out) : std::move(first);
    }
  }
}

ExpressionPtr Parser::parse_sum() {
  auto left = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    const Token operation = take();
    left = binary(ExpressionKind::kArithmetic, operation.at, std::move(left), parse_concat());
    left->name = operation.text;
  }
  return left;
}

ExpressionPtr Parser::parse_concat() {
  const Position at = current().at;
  auto first = parse_product();
  if (!is_operator("~")) return first;
  auto out = node(ExpressionKind::kConcat, at);
  adopt(*out, std::move(first));
  while (skip_operator("~")) adopt(*out, parse_product());
  return out;
}

ExpressionPtr Parser::parse_product() {
  auto left = parse_power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const Token operation = take();
    left = binary(ExpressionKind::kArithmetic, operation.at, std::move(left), parse_power());
    left->name = operation.text;
  }
  return left;
}

// Binds to the left: jinja2 hands the chain to Python with parentheses of its own.
ExpressionPtr Parser::parse_power() {
  auto left = parse_unary();
  while (is_operator("**")) {
    const Token operation = take();
    left = binary(ExpressionKind::kArithmetic, operation.at, std::move(left), parse_unary());
    left->name = operation.text;
  }
  return left;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Position at = current().at;
  ExpressionPtr out;
  if (is_operator("-") || is_operator("+")) {
    const Nested nested(*this, at);
    out = node(take().text == "-" ? ExpressionKind::kNegative : ExpressionKind::kPositive, at);
    adopt(*out, parse_unary(false));
  } else {
    out = parse_primary();
  }
  out = parse_postfix(std::move(out));
  return with_filter ? parse_filters_and_tests(std::move(out)) : std::move(out);
}

ExpressionPtr Parser::parse_primary(bool with_namespace) {
  const Token token = current();
  auto out = node(ExpressionKind::kConstant, token.at);
  if (token.kind == TokenKind::kName) {
    take();
    if (token.text == "true" || token.text == "True") {
      out->constant = true;
    } else if (token.text == "false" || token.text == "False") {
      out->constant = false;
    } else if (token.text == "none" || token.text == "None") {
      out->constant = Value();
    } else if (with_namespace && is_operator(".")) {
      take();
      out->kind = ExpressionKind::kNamespaceName;
      out->name = token.text;
      out->attribute = current().text;
      expect(TokenKind::kName);
    } else {
      out->kind = ExpressionKind::kName;
      out->name = token.text;
      names_.insert(token.text);
      if (!macro_names_.empty()) macro_names_.back()->insert(token.text);
    }
    return out;
  }
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += take().text;
    out->constant = Value(text);
    return out;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    out->constant = take().number;
    return out;
  }
  const Nested nested(*this, token.at);
  if (is_operator("(")) {
    take();
    out = parse_tuple({.parentheses = true});
    expect_operator(")");
    return out;
  }
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  fail_at(token.at, fmt::format("unexpected '{}'", describe(token)));
}

ExpressionPtr Parser::parse_list() {
  auto out = node(ExpressionKind::kList, take().at);
  while (!is_operator("]")) {
    if (!out->parts.empty()) expect_operator(",");
    if (is_operator("]")) break;
    adopt(*out, parse_expression());
  }
  expect_operator("]");
  return out;
}

ExpressionPtr Parser::parse_dict() {
  auto out = node(ExpressionKind::kDict, take().at);
  while (!is_operator("}")) {
    if (!out->parts.empty()) expect_operator(",");
    if (is_operator("}")) break;
    adopt(*out, parse_expression());
    expect_operator(":");
    adopt(*out, parse_expression());
  }
  expect_operator("}");
  return out;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr out) {
  for (;;) {
    if (is_operator(".") || is_operator("["))
      out = parse_subscript(std::move(out));
    else if (is_operator("("))
      out = parse_call(std::move(out));
    else
      return out;
  }
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr out) {
  for (;;) {
    if (is_operator("|"))
      out = parse_filter(std::move(out));
    else if (is_word("is"))
      out = parse_test(std::move(out));
    else if (is_operator("("))
      out = parse_call(std::move(out));
    else
      return out;
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr object) {
  const Token token = take();
  if (token.text == "[") return parse_slice_or_index(std::move(object));
  const Token name = current();
  take();
  if (name.kind == TokenKind::kName) {
    auto out = node(ExpressionKind::kAttribute, name.at);
    adopt(*out, std::move(object));
    out->name = name.text;
    return out;
  }
  if (name.kind != TokenKind::kInteger) fail_at(name.at, "expected name or number");
  auto index = node(ExpressionKind::kConstant, name.at);
  index->constant = name.number;
  return binary(ExpressionKind::kItem, name.at, std::move(object), std::move(index));
}

ExpressionPtr Parser::parse_slice_or_index(ExpressionPtr object) {
  const Position at = current().at;
  auto out = node(ExpressionKind::kItem, at);
  adopt(*out, std::move(object));
  std::vector<ExpressionPtr> parts;
  bool sliced = false;
  const auto part = [&] {
    const bool absent = is_operator(":") || is_operator("]") || is_operator(",");
    parts.push_back(absent ? nullptr : parse_expression());
  };
  part();
  while (is_operator(":") && parts.size() < 3) {
    take();
    sliced = true;
    part();
  }
  if (!sliced && parts[0] == nullptr) fail_at(current().at, fmt::format("unexpected '{}'", describe(current())));
  if (!sliced && is_operator(",")) {
    auto tuple = node(ExpressionKind::kTuple, at);
    adopt(*tuple, std::move(parts[0]));
    while (skip_operator(",")) adopt(*tuple, parse_expression());
    parts[0] = std::move(tuple);
  }
  expect_operator("]");
  if (sliced) {
    out->kind = ExpressionKind::kSlice;
    parts.resize(3);
  }
  for (auto& p : parts) adopt(*out, std::move(p));
  return out;
}

void Parser::parse_arguments(Expression& call) {
  const Position at = current().at;
  expect_operator("(");
  const auto ensure = [&](bool fine) {
    if (!fine) fail_at(at, "invalid syntax for function call expression");
  };
  bool first = true;
  while (!is_operator(")")) {
    if (!std::exchange(first, false)) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    if (skip_operator("*")) {
      ensure(!call.star && !call.double_star);
      call.star = parse_expression();
      grow(call, *call.star);
    } else if (skip_operator("**")) {
      ensure(!call.double_star);
      call.double_star = parse_expression();
      grow(call, *call.double_star);
    } else if (current().kind == TokenKind::kName && next().kind == TokenKind::kOperator && next().text == "=") {
      ensure(!call.double_star);
      std::string name = take().text;
      take();
      call.named.emplace_back(std::move(name), parse_expression());
      grow(call, *call.named.back().second);
    } else {
      ensure(!call.star && !call.double_star && call.named.empty());
      call.arguments.push_back(parse_expression());
      grow(call, *call.arguments.back());
    }
  }
  expect_operator(")");
}

ExpressionPtr Parser::parse_call(ExpressionPtr function) {
  auto out = node(ExpressionKind::kCall, current().at);
  adopt(*out, std::move(function));
  parse_arguments(*out);
  return out;
}

std::string Parser::parse_dotted_name() {
  std::string name = current().text;
  expect(TokenKind::kName);
  while (skip_operator(".")) {
    name += "." + current().text;
    expect(TokenKind::kName);
  }
  return name;
}

ExpressionPtr Parser::parse_filter(ExpressionPtr input, bool inline_start) {
  while (is_operator("|") || inline_start) {
    if (!std::exchange(inline_start, false)) take();
    auto out = node(ExpressionKind::kFilter, current().at);
    out->name = parse_dotted_name();
    if (!soft_ && find_filter(out->name) == nullptr)
      unknown_.push_back({out->at, fmt::format("No filter named '{}'.", out->name)});
    adopt(*out, std::move(input));
    if (is_operator("(")) parse_arguments(*out);
    input = std::move(out);
  }
  return input;
}

ExpressionPtr Parser::parse_test(ExpressionPtr object) {
  const Position at = take().at;
  const bool negated = skip_word("not");
  auto out = node(ExpressionKind::kTest, current().at);
  out->name = parse_dotted_name();
  if (!soft_ && find_test(out->name) == nullptr)
    unknown_.push_back({out->at, fmt::format("No test named '{}'.", out->name)});
  adopt(*out, std::move(object));
  const auto kind = current().kind;
  const bool begins_value = kind == TokenKind::kString || kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
                            (kind == TokenKind::kName && !is_word("else") && !is_word("or") && !is_word("and")) ||
                            is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    parse_arguments(*out);
  } else if (begins_value) {
    if (is_word("is")) fail_at(current().at, "You cannot chain multiple tests with is");
    out->arguments.push_back(parse_postfix(parse_primary()));
    grow(*out, *out->arguments.back());
  }
  if (!negated) return out;
  auto inverse = node(ExpressionKind::kNot, at);
  adopt(*inverse, std::move(out));
  return inverse;
}

}  // namespace tessera::chat
