// Which names a template sees where, and what it may set: each output is jinja2's (3.1.6).
#include <gtest/gtest.h>

#include <algorithm>

#include "chat/jinja/template.h"
#include "chat/jinja/template_error.h"

namespace tessera::chat {
namespace {

std::string text_or_error(const std::string& source) {
  const std::map<std::string, Value> variables{{"messages", make_list({std::int64_t{1}, std::int64_t{2}})}, {"x", "X"}};
  try {
    return Template(source).render(variables).text;
  } catch (const TemplateError& e) {
    return e.message;
  }
}

TEST(JinjaNames, WhatAFrameSetsIsNotTheContexts) {
  const std::string loop = "{% for m in messages %}[{{ x }}]{% endfor %}", set = "{% set x = 'x' %}";
  EXPECT_EQ(text_or_error(loop + set + loop), "[][][x][x]");
  EXPECT_EQ(text_or_error("{{ x }}" + loop + set), "X[X][X]");
  EXPECT_EQ(text_or_error(loop + "{% if messages %}" + set + "{% endif %}"), "[X][X]");
  EXPECT_EQ(text_or_error("{% if messages %}" + loop + set + "{% endif %}{{ x }}"), "[X][X]x");
  EXPECT_EQ(text_or_error(loop + "{% if false %}{% elif true %}" + set + "{% endif %}" + set + "{{ x }}"), "[X][X]x");
  EXPECT_EQ(text_or_error(loop + "{% for x in [2] %}{{ x }}{% endfor %}"), "[X][X]2");
  EXPECT_EQ(text_or_error(loop + "{% macro x() %}{% endmacro %}"), "[][]");
  EXPECT_EQ(text_or_error("{% set y = x %}{% set x = 1 %}{{ y }}{{ x }}"), "X1");
  EXPECT_EQ(text_or_error("{% for i in [1] %}{{ range(2) }}{% endfor %}{% set range = 1 %}"), "'range' is undefined");
}

TEST(JinjaNames, EveryKindOfFrameHasItsOwn) {
  const std::string set = "{% set x = 1 %}";
  EXPECT_EQ(text_or_error("{% macro m() %}{{ x }}{% endmacro %}{{ m() }}" + set + "{{ m() }}"), "1");
  EXPECT_EQ(text_or_error("{% macro f(a=x) %}{{ a }}{% endmacro %}{{ f() }}" + set + "{{ f() }}"), "1");
  EXPECT_EQ(text_or_error("{% filter upper %}[{{ x }}]{% endfilter %}" + set), "[]");
  EXPECT_EQ(text_or_error("{% set z %}[{{ x }}]{% endset %}" + set + "{{ z }}"), "[]");
  EXPECT_EQ(text_or_error("{% generation %}[{{ x }}]{% endgeneration %}" + set), "[]");
  EXPECT_EQ(text_or_error("{% with y = x %}{{ y }}{% set x = 5 %}{% endwith %}{{ x }}"), "XX");
  EXPECT_EQ(text_or_error("{% for j in [1] if x == 'X' %}{{ j }}{% else %}E{{ x }}{% endfor %}"), "1");
  EXPECT_EQ(
      text_or_error(
          "{% for i in [1] %}{% for j in [1] if x == 'X' %}{{ j }}{% else %}E{{ x }}{% endfor %}{% endfor %}" + set),
      "E");
  EXPECT_EQ(
      text_or_error("{% for m in messages %}{% for k in [1] %}{{ x }}{% endfor %}{% set x = m %}{{ x }}{% endfor %}"),
      "12");
}

TEST(JinjaNames, ABlockSeesWhatTheTemplateSetsAndNoLoops) {
  EXPECT_EQ(text_or_error("{% for i in messages %}{% block b %}[{{ i }}{{ x }}{{ loop }}]{% endblock %}{% endfor %}"),
            "[X][X]");
  EXPECT_EQ(
      text_or_error(
          "{% for i in messages %}{% block b scoped %}[{{ i }}{{ x }}{{ loop.index }}]{% endblock %}{% endfor %}"),
      "[1X1][2X2]");
  EXPECT_EQ(
      text_or_error("{% set t = 1 %}{% for i in messages %}{% set u = 2 %}{% block b %}[{{ t }}{{ u }}]{% set t = 3 %}"
                    "{{ t }}{% endblock %}{% endfor %}{{ t }}"),
      "[1]3[1]31");
  EXPECT_EQ(text_or_error("{% block b %}{% endblock %}{% block b %}{% endblock %}"), "block 'b' defined twice");
}

// No template extends this one, which would have to fill it.
TEST(JinjaNames, ARequiredBlockIsMissingWhereItIsReached) {
  const std::string missing = "Required block 'b' not found";
  EXPECT_EQ(text_or_error("a{% block b required %}{% endblock %}"), missing);
  EXPECT_EQ(text_or_error("{% block b scoped required %} \n{# none #} {% endblock b %}"), missing);
  EXPECT_EQ(text_or_error("{% if false %}{% block b required %}{% endblock %}{% endif %}c"), "c");
  EXPECT_EQ(text_or_error("{% block required %}d{% endblock %}"), "d");
  for (const char* inside : {"a", "{{ 1 }}", "{% if 0 %}{% endif %}"})
    EXPECT_EQ(text_or_error(std::string("{% block b required %}") + inside + "{% endblock %}"),
              "Required blocks can only contain comments or whitespace");
}

TEST(JinjaNames, TheBodyOfACallHasNoName) {
  EXPECT_EQ(
      text_or_error("{% macro m() %}{{ kwargs }}{{ kwargs.caller.name }}{% endmacro %}{% call m() %}{% endcall %}"),
      "{'caller': <Macro anonymous>}None");
  EXPECT_EQ(text_or_error("{% macro m() %}{% endmacro %}{{ m }}{{ m.name }}"), "<Macro 'm'>m");
}

TEST(JinjaNames, LoopIsNotToBeSetInALoop) {
  const std::string refused = "Can't assign to special loop variable in for-loop target";
  EXPECT_EQ(text_or_error("{% set loop = 3 %}{{ loop }}"), "3");
  for (const char* body : {"{% set loop = 3 %}", "{% set a, loop = 1, 3 %}", "{% set loop %}a{% endset %}",
                           "{% else %}{% set loop = 3 %}", "{% macro f() %}{% set loop = 3 %}{% endmacro %}"})
    EXPECT_EQ(text_or_error("{% for i in [1] %}" + std::string(body) + "{% endfor %}"), refused) << body;
  EXPECT_EQ(text_or_error("{% for i in [1] %}{% with loop = 3 %}{{ loop }}{% endwith %}{% endfor %}"), "3");
}

TEST(JinjaNames, AGenerationHasTheArgumentsOfAMacroWithoutAny) {
  EXPECT_EQ(text_or_error("a{% generation %}{{ kwargs }}{{ varargs }}{{ caller }}{% endgeneration %}"), "a{}()");
  EXPECT_EQ(text_or_error("a{% generation %}{{ caller() }}{% endgeneration %}"), "No caller defined");
  EXPECT_EQ(text_or_error("{% macro f() %}{% generation %}{{ kwargs }}{% endgeneration %}{% endmacro %}{{ f(a=1) }}"),
            "{}");
}

TEST(Strftime, HasPythonsOwnFormats) {
  EXPECT_EQ(text_or_error("{{ strftime_now('%z|%Z|%%z|%%%z%%f|%') }}"), "||%z|%%f|%");
  EXPECT_EQ(text_or_error("{{ strftime_now('%z') }}"), "");
  const auto digits = text_or_error("{{ strftime_now('%f') }}");
  EXPECT_EQ(digits.size(), 6U);
  EXPECT_TRUE(std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) << digits;
  EXPECT_EQ(text_or_error("{{ strftime_now(3) }}"), "strftime_now() argument must be str, not int");
}

}  // namespace
}  // namespace tessera::chat
