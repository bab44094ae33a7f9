#pragma once
// Template text -> AST: jinja2's grammar with the loop controls and transformers' generation tag.
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/token.h"

namespace tessera::chat {

struct ParsedTemplate {
  Body body;
  Blocks blocks;
  std::set<std::string> names;  // every variable that is read somewhere
};

/// TemplateError(kSyntax); kLimit when tags or expressions nest too deep.
ParsedTemplate parse_template(std::string_view source);

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}
  ParsedTemplate run();

 private:
  using Tags = std::vector<std::string>;
  using StatementPtr = std::unique_ptr<Statement>;

  // parse_statements.cc
  Body parse_body(const Tags* end_tags);
  Body parse_block(const Tags& end_tags, bool drop_end);
  // A block with a scope of its own. `in_loop`: break and continue may stand in it.
  Body parse_inner(const Tags& end_tags, bool drop_end, bool in_loop);
  StatementPtr parse_statement();
  StatementPtr parse_tag(const std::string& tag);
  StatementPtr parse_if();
  StatementPtr parse_for();
  StatementPtr parse_set();
  StatementPtr parse_with();
  StatementPtr parse_macro();
  StatementPtr parse_call_block();
  StatementPtr parse_filter_block();
  StatementPtr parse_print();
  StatementPtr parse_scope(const std::string& tag);
  StatementPtr parse_import(const std::string& tag);
  void parse_signature(Statement& macro);
  void parse_macro_body(Statement& macro, const char* end_tag);
  [[noreturn]] void fail_tag(const std::string* tag, Position at);

  // parse_expressions.cc
  ExpressionPtr parse_expression(bool with_condition = true);
  ExpressionPtr parse_condition();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter = true);
  ExpressionPtr parse_primary(bool with_namespace = false);
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_slice_or_index(ExpressionPtr object);
  ExpressionPtr parse_call(ExpressionPtr node);
  ExpressionPtr parse_filter(ExpressionPtr node, bool inline_start = false);
  ExpressionPtr parse_test(ExpressionPtr node);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  void parse_arguments(Expression& call);
  struct TupleRules {
    bool names_only = false, with_condition = true, parentheses = false, with_namespace = false;
    const char* end_word = nullptr;
  };
  ExpressionPtr parse_tuple(const TupleRules& rules);
  ExpressionPtr parse_target(const char* end_word = nullptr, bool with_namespace = false);
  std::string parse_name_target();
  std::string parse_dotted_name();

  // tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take();
  bool is_operator(std::string_view text) const {
    return current().kind == TokenKind::kOperator && current().text == text;
  }
  bool is_word(std::string_view text) const { return current().kind == TokenKind::kName && current().text == text; }
  bool skip_operator(std::string_view text);
  bool skip_word(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_word(std::string_view text);
  void expect(TokenKind kind);
  [[noreturn]] void fail_expected(const std::string& what);
  [[noreturn]] void fail_at(Position at, const std::string& message) const;

  ExpressionPtr node(ExpressionKind kind, Position at) const;
  // Takes `part` in and keeps account of the depth.
  void adopt(Expression& parent, ExpressionPtr part);
  void grow(Expression& parent, const Expression& part) const;
  ExpressionPtr binary(ExpressionKind kind, Position at, ExpressionPtr left, ExpressionPtr right);

  struct Nested {
    Nested(Parser& parser, Position at);
    ~Nested() { --parser.nesting_; }
    Parser& parser;
  };

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::set<std::string> names_;
  std::vector<std::string> open_tags_;
  std::vector<Tags> end_tags_;
  std::vector<std::set<std::string>*> macro_names_;  // of the macros around here
  Blocks blocks_;
  // Filters and tests that do not exist. Inside of {% if %} and x if y else z they are an error only when they are
  // reached, as in jinja2: there `soft_` is set, or they are taken from the list again.
  struct Unknown {
    Position at;
    std::string message;
  };
  std::vector<Unknown> unknown_;
  bool soft_ = false;
  int nesting_ = 0, loops_ = 0, in_for_ = 0;  // loops_: that break ends; in_for_: all around here
};

}  // namespace tessera::chat
