// Templates that fail.
#include <gtest/gtest.h>

#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template.h"

namespace tessera::chat {
namespace {

std::string render(const std::string& source, const std::map<std::string, Value>& variables = {}) {
  return Template(source).render(variables).text;
}

TemplateError failure(const std::string& source, const std::map<std::string, Value>& variables = {}) {
  try {
    const std::string text = render(source, variables);
    ADD_FAILURE() << "rendered: " << text;
  } catch (const TemplateError& e) {
    return e;
  }
  return {ErrorKind::kValue, ""};
}

TEST(TemplateErrors, NameLineAndColumnInCodePoints) {
  const auto error = failure("line one\n\xc3\xa9\xc3\xa9 {{ a.b.c }}", {{"a", make_dict({})}});
  EXPECT_EQ(error.kind, ErrorKind::kUndefined);
  EXPECT_EQ(error.message, "'dict object' has no attribute 'b'");
  EXPECT_EQ(error.at.line, 2);
  EXPECT_EQ(error.at.column, 11);
  EXPECT_STREQ(error.what(), "'dict object' has no attribute 'b' (line 2, column 11 of the template)");
}

TEST(TemplateErrors, SyntaxErrorsPointAtTheTag) {
  const auto error = failure("a\n{% for x in y %}\n{% endif %}");
  EXPECT_EQ(error.kind, ErrorKind::kSyntax);
  EXPECT_EQ(error.at.line, 3);
  EXPECT_EQ(error.message,
            "Encountered unknown tag 'endif'. Jinja was looking for the following tags: 'endfor' or 'else'. The "
            "innermost block that needs to be closed is 'for'.");
}

TEST(TemplateErrors, RaiseExceptionSaysOnlyWhatTheAuthorWrote) {
  const auto error = failure("\n{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(error.kind, ErrorKind::kRaised);
  EXPECT_STREQ(error.what(), "roles must alternate");
  EXPECT_EQ(error.at.line, 2);
}

TEST(TemplateErrors, TheSandboxRefusesToChangeValues) {
  EXPECT_EQ(failure("{{ [1].append(2) }}").kind, ErrorKind::kSecurity);
  EXPECT_EQ(failure("{{ 'a'.__class__.__mro__ }}").kind, ErrorKind::kSecurity);
}

// Python slices, not jinja2: what has no slices is an error where a missing element is an undefined value.
TEST(TemplateErrors, WhatCannotBeSlicedIsRefused) {
  const std::map<std::string, Value> variables{
      {"none", Value()}, {"list", make_list({std::int64_t{1}, std::int64_t{2}})}, {"dict", make_dict({})}};
  EXPECT_EQ(failure("{{ none[1:] }}", variables).message, "'NoneType' object is not subscriptable");
  EXPECT_EQ(failure("{{ dict[1:] }}", variables).message, "unhashable type: 'slice'");
  EXPECT_NE(failure("{{ (list|reverse)[:1] }}", variables).message.find("not subscriptable"), std::string::npos);
  EXPECT_EQ(failure("{{ list['a':] }}", variables).message,
            "slice indices must be integers or None or have an __index__ method");
  EXPECT_EQ(render("{{ list[1:] }}", variables), "[2]");
}

TEST(TemplateErrors, AFilterBlockMustGiveText) {
  EXPECT_EQ(failure("{% filter length %}abc{% endfilter %}").message, "a filter block must give text, not int");
  EXPECT_EQ(failure("{% filter first %}{% endfilter %}").kind, ErrorKind::kType);
  EXPECT_EQ(render("{% filter list|join('-') %}abc{% endfilter %}"), "a-b-c");
  EXPECT_EQ(render("{% set n | length %}abc{% endset %}{{ n + 1 }}"), "4");
}

TEST(TemplateErrors, EscapingOfAllOutputIsRefused) {
  EXPECT_EQ(render("{% autoescape false %}{{ '<' }}{% endautoescape %}"), "<");
  EXPECT_EQ(failure("{% autoescape true %}{{ '<' }}{% endautoescape %}").kind, ErrorKind::kSyntax);
}

TEST(TemplateErrors, UnknownFiltersMatterOnlyWhereTheyAreReachedInsideOfIf) {
  EXPECT_EQ(render("{% if false %}{{ 1|nope }}{% endif %}{{ 1|nope if false else 2 }}"), "2");
  EXPECT_EQ(failure("{% for x in [] %}{{ 1|nope }}{% endfor %}").kind, ErrorKind::kSyntax);
}

TEST(TemplateLimits, DeepNestingIsRefusedNotFatal) {
  std::string parentheses(100000, '('), sum = "{{ 1", tags, brackets = "[";
  for (int i = 0; i < 100000; ++i) {
    sum += " + 1";
    tags += "{% if x %}";
    brackets += "[";
  }
  EXPECT_EQ(failure("{{ " + parentheses).kind, ErrorKind::kLimit);
  EXPECT_EQ(failure(sum + " }}").kind, ErrorKind::kLimit);
  EXPECT_EQ(failure(tags).kind, ErrorKind::kLimit);
  EXPECT_EQ(failure("{{ " + brackets).kind, ErrorKind::kLimit);
  EXPECT_THROW(parse_json(brackets), TemplateError);
}

TEST(Json, AZeroByteIsNotTheEnd) {
  using namespace std::string_view_literals;
  for (const auto text : {"[1]\0"sv, "[1]\0, 2]"sv, "\0"sv})
    EXPECT_THROW(parse_json(text), TemplateError) << text.size();
}

TEST(TemplateLimits, NamespacesThatHoldThemselvesArePrintedOrRefused) {
  EXPECT_EQ(failure("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}").kind, ErrorKind::kLimit);
}

TEST(RenderChat, ContinuesTheFinalMessage) {
  const Template chatml(builtin_template("chatml"));
  const Value messages = parse_json(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "so"}])");
  const auto out = render_chat(chatml, {{"messages", messages}, {"continue_final_message", true}});
  EXPECT_EQ(out.text, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nso");
  EXPECT_THROW(
      render_chat(chatml, {{"messages", messages}, {"continue_final_message", true}, {"add_generation_prompt", true}}),
      TemplateError);
}

TEST(RenderChat, BuiltinZephyrEndsTurnsWithEos) {
  const Template zephyr(builtin_template("zephyr"));
  const Value messages = parse_json(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])");
  EXPECT_EQ(render_chat(zephyr, {{"messages", messages}, {"eos_token", "</s>"}, {"add_generation_prompt", true}}).text,
            "<|user|>\nq</s>\n<|assistant|>\na</s>\n<|assistant|>\n");
  EXPECT_EQ(builtin_template("none"), nullptr);
}

TEST(TemplateErrors, AnUndefinedValueIsNoDict) {
  EXPECT_EQ(failure("{{ dict(d) }}").message, "'d' is undefined");
  EXPECT_EQ(failure("{% set ns = namespace(d, a=1) %}").message, "'d' is undefined");
}

TEST(TemplateErrors, AMacrosCallerHasADefaultWhereItIsUsed) {
  EXPECT_EQ(failure("{% macro x(caller) %}{{ caller() }}{% endmacro %}").kind, ErrorKind::kSyntax);
  EXPECT_EQ(render("{% macro x(caller=1) %}{{ caller }}{% endmacro %}{{ x() }}"), "1");
  EXPECT_EQ(render("{% macro x(caller) %}a{% endmacro %}{{ x(1) }}"), "a");
}

TEST(TemplateErrors, AParameterHasANameOfItsOwn) {
  EXPECT_EQ(failure("{% macro x(a, b, a) %}{% endmacro %}").kind, ErrorKind::kSyntax);
  EXPECT_EQ(failure("{% call(a, a) range(1) %}{% endcall %}").kind, ErrorKind::kSyntax);
}

TEST(TemplateErrors, AJoinerTakesNothing) {
  EXPECT_EQ(failure("{% call joiner('x')() %}{% endcall %}").kind, ErrorKind::kType);
}

// What jinja2 3.1.6 writes.
TEST(TemplateSelf, HasWhatEachBlockWrites) {
  EXPECT_EQ(render("{{ self }}{{ self is defined }}{{ self is callable }}{{ self.a is callable }}{{ self.b }}"
                   "{% block a %}{% endblock %}"),
            "<TemplateReference None>TrueFalseTrue");
  EXPECT_EQ(render("{% block a %}x{{ v }}{% endblock %}{% set v = 2 %}{{ self.a() }}{{ self['a']() ~ '<' }}"),
            "xx2x2<");
  EXPECT_EQ(render("{% for i in [1, 2] %}{% block a scoped %}[{{ i }}]{% endblock %}{% endfor %}{{ self.a() }}"),
            "[1][2][]");
  EXPECT_EQ(render("{% if false %}{% block a %}z{% endblock %}{% endif %}{% macro m() %}{{ self.a() }}{% endmacro %}"
                   "{{ m()|upper }}"),
            "Z");
  EXPECT_EQ(render("{% set self = 1 %}{{ self }}"), "1");
  EXPECT_EQ(failure("{{ self.a(1) }}{% block a %}{% endblock %}").kind, ErrorKind::kType);
  EXPECT_EQ(failure("{{ self.a() }}{% block a required %}{% endblock %}").kind, ErrorKind::kType);
  EXPECT_EQ(failure("{% block a %}{{ self.a() }}{% endblock %}").kind, ErrorKind::kLimit);
  EXPECT_EQ(failure("{{ self.nope() }}").kind, ErrorKind::kUndefined);
}

}  // namespace
}  // namespace tessera::chat
