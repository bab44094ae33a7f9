#pragma once
// Runs a parsed template once.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/runtime.h"
#include "chat/jinja/scope.h"
#include "chat/jinja/text_builder.h"

namespace tessera::chat {

/// [begin, end) in code points of the text.
using Span = std::pair<std::int64_t, std::int64_t>;

class Interpreter : public Runtime {
 public:
  /// `max_depth`: of nested evaluations. What is made and done is charged to the thread's budget.
  Interpreter(const std::map<std::string, Value>& variables, int max_depth);
  ~Interpreter() override;
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// TemplateError, with the place that was being run. `blocks`: those that `self` has.
  std::string run(const Body& body, const Blocks& blocks = {});
  const std::vector<Span>& spans() const { return spans_; }

  Value call(const Value& callee, Arguments arguments) override;
  Value filter(const std::string& name, const Value& input, Arguments arguments) override;
  bool test(const std::string& name, const Value& input, Arguments arguments) override;

 private:
  friend class Macro;
  friend class TemplateSelf;
  enum class Flow { kNext, kBreak, kContinue };

  // run_statements.cc
  Flow execute(const Body& body, const ScopePtr& scope);
  Flow execute(const Statement& statement, const ScopePtr& scope);
  Flow run_if(const Statement& statement, const ScopePtr& scope);
  Flow run_for(const Statement& statement, const ScopePtr& scope);
  Flow run_loop(const Statement& statement, const ScopePtr& scope, const Value& items, std::int64_t depth0);
  Flow run_with(const Statement& statement, const ScopePtr& scope);
  void run_call_block(const Statement& statement, const ScopePtr& scope);
  void run_generation(const Statement& statement, const ScopePtr& scope);
  Flow run_block(const Statement& block);
  Value make_macro(const Statement& statement, const ScopePtr& scope);
  std::string run_macro(const Statement& macro, const ScopePtr& scope, Arguments arguments);
  void assign(const Expression& target, const Value& value, const ScopePtr& scope);
  // What the body writes, instead of writing it.
  std::pair<std::string, Flow> capture(const Body& body, const ScopePtr& scope);
  void write(std::string_view text);

  // evaluate.cc
  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_node(const Expression& expression, const ScopePtr& scope);
  Value evaluate_name(const Expression& e, const ScopePtr& scope);
  Value evaluate_compare(const Expression& expression, const ScopePtr& scope);
  Value evaluate_concat(const Expression& expression, const ScopePtr& scope);
  Value evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller);
  Value evaluate_attribute(const Expression& expression, const ScopePtr& scope);
  Value evaluate_dict(const Expression& expression, const ScopePtr& scope);
  std::vector<Value> evaluate_parts(const Expression& expression, const ScopePtr& scope);
  Arguments evaluate_arguments(const Expression& expression, const ScopePtr& scope);
  // A chain of filters whose innermost input is `input`.
  Value apply_filters(const Expression& chain, const Value& input, const ScopePtr& scope);
  Value make_namespace(Arguments arguments);

  struct Deeper {
    explicit Deeper(Interpreter& interpreter);
    ~Deeper() { --interpreter.depth_; }
    Interpreter& interpreter;
  };

  const std::map<std::string, Value>& variables_;
  int max_depth_;
  const Blocks* blocks_ = nullptr;
  ScopePtr top_ = std::make_shared<Scope>(nullptr);
  std::vector<TextBuilder> outputs_;  // the text, and what is being captured
  std::int64_t pieces_ = 0;           // written to the text
  std::int64_t written_points_ = 0;   // of the text
  std::vector<Span> spans_;
  int depth_ = 0;
  Position at_;
  std::vector<ScopePtr> scopes_with_macros_;
  std::vector<NamespacePtr> namespaces_;
};

}  // namespace tessera::chat
