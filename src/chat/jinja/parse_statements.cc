#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/parser.h"

namespace tessera::chat {
namespace {

void forbid_loop(const Expression& target) {
  if (target.kind == ExpressionKind::kName && target.name == "loop")
    throw TemplateError(ErrorKind::kSyntax, "Can't assign to special loop variable in for-loop target", target.at);
  for (const auto& part : target.parts) forbid_loop(*part);
}

std::unique_ptr<Statement> statement(StatementKind kind, Position at) {
  auto out = std::make_unique<Statement>();
  out->kind = kind;
  out->at = at;
  return out;
}

}  // namespace

Body Parser::parse_body(const Tags* end_tags) {
  Body body;
  if (end_tags) end_tags_.push_back(*end_tags);
  while (current().kind != TokenKind::kEnd) {
    const Token& token = take();
    if (token.kind == TokenKind::kData) {
      auto data = statement(StatementKind::kData, token.at);
      data->text = token.text;
      body.push_back(std::move(data));
    } else if (token.kind == TokenKind::kVariableBegin) {
      auto output = statement(StatementKind::kOutput, token.at);
      output->expression = parse_tuple({});
      body.push_back(std::move(output));
      expect(TokenKind::kVariableEnd);
    } else {
      if (end_tags)
        for (const auto& tag : *end_tags)
          if (is_word(tag)) {
            end_tags_.pop_back();
            return body;
          }
      body.push_back(parse_statement());
      expect(TokenKind::kBlockEnd);
    }
  }
  if (end_tags) fail_tag(nullptr, current().at);
  return body;
}

Body Parser::parse_block(const Tags& end_tags, bool drop_end) {
  skip_operator(":");
  expect(TokenKind::kBlockEnd);
  Body body = parse_body(&end_tags);
  if (drop_end) take();
  return body;
}

Body Parser::parse_inner(const Tags& end_tags, bool drop_end, bool in_loop) {
  const int loops = std::exchange(loops_, in_loop ? loops_ : 0);
  const bool soft = std::exchange(soft_, false);
  Body body = parse_block(end_tags, drop_end);
  loops_ = loops;
  soft_ = soft;
  return body;
}

Parser::StatementPtr Parser::parse_statement() {
  const Token token = current();
  if (token.kind != TokenKind::kName) fail_at(token.at, "tag name expected");
  const Nested nested(*this, token.at);
  open_tags_.push_back(token.text);
  auto out = parse_tag(token.text);
  if (!out) {
    open_tags_.pop_back();
    fail_tag(&token.text, token.at);
  }
  open_tags_.pop_back();
  out->at = token.at;
  return out;
}

Parser::StatementPtr Parser::parse_tag(const std::string& tag) {
  if (tag == "if") return parse_if();
  if (tag == "for") return parse_for();
  if (tag == "set") return parse_set();
  if (tag == "macro") return parse_macro();
  if (tag == "call") return parse_call_block();
  if (tag == "filter") return parse_filter_block();
  if (tag == "with") return parse_with();
  if (tag == "print") return parse_print();
  if (tag == "block" || tag == "autoescape") return parse_scope(tag);
  if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") return parse_import(tag);
  if (tag == "generation") {
    auto out = statement(StatementKind::kGeneration, take().at);
    parse_macro_body(*out, "endgeneration");
    return out;
  }
  if (tag == "break" || tag == "continue") {
    const Token& token = take();
    if (loops_ == 0) fail_at(token.at, fmt::format("'{}' outside loop", tag));
    return statement(tag == "break" ? StatementKind::kBreak : StatementKind::kContinue, token.at);
  }
  return nullptr;
}

Parser::StatementPtr Parser::parse_if() {
  const bool soft = std::exchange(soft_, true);
  auto out = statement(StatementKind::kIf, take().at);
  Statement* branch = out.get();
  for (;;) {
    branch->expression = parse_tuple({.with_condition = false});
    branch->body = parse_block({"elif", "else", "endif"}, false);
    const Token token = take();
    if (token.text == "elif") {
      out->elifs.push_back(statement(StatementKind::kIf, token.at));
      branch = out->elifs.back().get();
      continue;
    }
    if (token.text == "else") out->otherwise = parse_block({"endif"}, true);
    soft_ = soft;
    return out;
  }
}

Parser::StatementPtr Parser::parse_for() {
  auto out = statement(StatementKind::kFor, take().at);
  out->target = parse_target("in");
  forbid_loop(*out->target);
  expect_word("in");
  out->expression = parse_tuple({.with_condition = false, .end_word = "recursive"});
  if (skip_word("if")) out->condition = parse_expression();
  out->recursive = skip_word("recursive");
  ++in_for_;
  ++loops_;
  out->body = parse_inner({"endfor", "else"}, false, true);
  --loops_;
  if (take().text == "else") out->otherwise = parse_inner({"endfor"}, true, true);
  --in_for_;
  return out;
}

Parser::StatementPtr Parser::parse_set() {
  auto out = statement(StatementKind::kSet, take().at);
  out->target = parse_target(nullptr, true);
  if (in_for_ > 0) forbid_loop(*out->target);
  if (skip_operator("=")) {
    out->expression = parse_tuple({});
    return out;
  }
  out->kind = StatementKind::kSetBlock;
  out->expression = parse_filter(nullptr);
  out->body = parse_inner({"endset"}, true, true);
  return out;
}

Parser::StatementPtr Parser::parse_with() {
  auto out = statement(StatementKind::kWith, take().at);
  while (current().kind != TokenKind::kBlockEnd) {
    if (!out->targets.empty()) expect_operator(",");
    out->targets.push_back(parse_target());
    expect_operator("=");
    out->values.push_back(parse_expression());
  }
  out->body = parse_inner({"endwith"}, true, true);
  return out;
}

void Parser::parse_signature(Statement& macro) {
  expect_operator("(");
  while (!is_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    const Position at = current().at;
    auto name = parse_name_target();
    if (std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end())
      fail_at(at, fmt::format("duplicate argument '{}' in the definition", name));
    macro.parameters.push_back(std::move(name));
    if (skip_operator("="))
      macro.defaults.push_back(parse_expression());
    else if (!macro.defaults.empty())
      fail_at(at, "non-default argument follows default argument");
  }
  expect_operator(")");
}

void Parser::parse_macro_body(Statement& macro, const char* end_tag) {
  std::set<std::string> names;
  macro_names_.push_back(&names);
  macro.body = parse_inner({end_tag}, true, false);
  macro_names_.pop_back();
  if (!macro_names_.empty()) macro_names_.back()->insert(names.begin(), names.end());
  const auto special = [&](const char* name) {
    if (!names.contains(name)) return false;
    for (const auto& parameter : macro.parameters)
      if (parameter == name) return false;
    return true;
  };
  macro.uses_caller = special("caller");
  const auto caller = std::find(macro.parameters.begin(), macro.parameters.end(), "caller");
  const auto required = macro.parameters.end() - static_cast<std::ptrdiff_t>(macro.defaults.size());
  if (names.contains("caller") && caller < required)
    fail_at(
        macro.at,
        "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a default.");
  macro.uses_kwargs = special("kwargs");
  macro.uses_varargs = special("varargs");
}

Parser::StatementPtr Parser::parse_macro() {
  auto out = statement(StatementKind::kMacro, take().at);
  out->text = parse_name_target();
  parse_signature(*out);
  parse_macro_body(*out, "endmacro");
  return out;
}

Parser::StatementPtr Parser::parse_call_block() {
  auto out = statement(StatementKind::kCall, take().at);
  if (is_operator("(")) parse_signature(*out);
  const Position at = current().at;
  out->expression = parse_expression();
  if (out->expression->kind != ExpressionKind::kCall) fail_at(at, "expected call");
  out->text = "caller";
  parse_macro_body(*out, "endcall");
  return out;
}

Parser::StatementPtr Parser::parse_filter_block() {
  auto out = statement(StatementKind::kFilter, take().at);
  out->expression = parse_filter(nullptr, true);
  out->body = parse_inner({"endfilter"}, true, true);
  return out;
}

Parser::StatementPtr Parser::parse_print() {
  auto out = statement(StatementKind::kScope, take().at);
  bool first = true;
  while (current().kind != TokenKind::kBlockEnd) {
    if (!std::exchange(first, false)) expect_operator(",");
    auto output = statement(StatementKind::kOutput, current().at);
    output->expression = parse_expression();
    out->body.push_back(std::move(output));
  }
  return out;
}

Parser::StatementPtr Parser::parse_scope(const std::string& tag) {
  auto out = statement(StatementKind::kScope, take().at);
  if (tag == "autoescape") {
    const auto on = parse_expression();
    if (on->kind != ExpressionKind::kConstant || truth(on->constant))
      fail_at(on->at, "only {% autoescape false %} is supported: chat templates escape by the filter e alone");
    out->body = parse_inner({"endautoescape"}, true, true);
    return out;
  }
  const std::string name = current().text;
  expect(TokenKind::kName);
  if (!blocks_.emplace(name, out.get()).second) fail_at(out->at, fmt::format("block '{}' defined twice", name));
  if (!skip_word("scoped")) out->kind = StatementKind::kBlock;
  const bool is_required = skip_word("required");
  if (is_operator("-"))
    fail_at(current().at,
            "Block names in Jinja have to be valid Python identifiers and may not contain hyphens, use an underscore "
            "instead.");
  out->body = parse_inner({"endblock"}, true, false);
  skip_word(name);
  if (!is_required) return out;
  for (const auto& inner : out->body)
    if (inner->kind != StatementKind::kData || inner->text.find_first_not_of(" \t\n\v\f\r") != std::string::npos)
      fail_at(out->at, "Required blocks can only contain comments or whitespace");
  out->kind = StatementKind::kRequired;
  out->text = name;
  return out;
}

Parser::StatementPtr Parser::parse_import(const std::string& tag) {
  auto out = statement(StatementKind::kImport, take().at);
  out->text = tag;
  while (current().kind != TokenKind::kBlockEnd && current().kind != TokenKind::kEnd) take();
  return out;
}

}  // namespace tessera::chat
