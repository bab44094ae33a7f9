// Expressions in Oniguruma's syntax, as tokenizers matches them (checked against tokenizers 0.22.2).
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "text/regex.h"

namespace tessera::text {
namespace {

/// The matches in `text`, each in brackets, the rest as it is.
std::string marked(const std::string& pattern, const std::string& text) {
  std::string out;
  std::size_t at = 0;
  for (const auto& [begin, end] : Regex(pattern, "test").find_all(text)) {
    out += text.substr(at, begin - at) + "<" + text.substr(begin, end - begin) + ">";
    at = end;
  }
  return out + text.substr(at);
}

TEST(RegexSyntax, LatinFractionsArePartsOfWordsButNotBetweenBrackets) {
  EXPECT_EQ(marked(R"(\w)", "½!"), "<½>!");
  EXPECT_EQ(marked(R"([\w])", "½a"), "½<a>");
  EXPECT_EQ(marked(R"([^\s\w]+)", "a½²!b ①"), "a<½²!>b <①>");
}

TEST(RegexSyntax, ComplementsBetweenBracketsAreThoseOfTheClass) {
  EXPECT_EQ(marked(R"([^\W\d_]+)", "ab1_é\u0301c!"), "<ab>1_<é\u0301c>!");
  EXPECT_EQ(marked(R"([\W_]+)", "a_-b"), "a<_->b");
}

TEST(RegexSyntax, AnExpressionThatGivesUpSaysWhatToDo) {
  try {
    Regex("(?:a+)+$", "tokenizer.json").find_all(std::string(100, 'a') + "b");
    FAIL() << "it does not give up";
  } catch (const DataError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("tokenizer.json: its regular expression gives up on a text of 101 bytes"), std::string::npos)
        << text;
    EXPECT_EQ(text.find("PCRE"), std::string::npos) << text;
  }
}

TEST(RegexSyntax, ClassesNestAndIntersect) {
  EXPECT_EQ(marked(R"([a-z&&[^aeiou]]+)", "streets"), "<str>ee<ts>");
  EXPECT_EQ(marked(R"([^a-z&&[^aeiou]]+)", "streets"), "str<ee>ts");
  EXPECT_EQ(marked(R"([\p{L}&&[^\p{Han}]]+)", "ab中文cd"), "<ab>中文<cd>");
  EXPECT_EQ(marked(R"([ab[cd]]+)", "xabcdx"), "x<abcd>x");
}

TEST(RegexSyntax, PropertiesHaveTheirLongNamesAndScriptsNoExtensions) {
  EXPECT_EQ(marked(R"(\p{Han}+)", "中。文"), "<中>。<文>");
  EXPECT_EQ(marked(R"(\p{Letter}+|\P{^Number})", "ab-1"), "<ab>-<1>");
  EXPECT_EQ(marked(R"([[:punct:]])", "a€+."), "a<€><+><.>");
  EXPECT_EQ(marked(R"([[:alpha:]]+)", "aé1"), "<aé>1");
  EXPECT_EQ(marked(R"([\u3041-\u3096]+)", "xひらx"), "x<ひら>x");
}

TEST(RegexSyntax, ABracketMayBeAMemberOrEscaped) {
  EXPECT_EQ(marked(R"([]x]+)", "a]x"), "a<]x>");
  EXPECT_EQ(marked(R"([\[\]]+)", "a[]b"), "a<[]>b");
  EXPECT_EQ(marked(R"(\[a\])", "[a]"), "<[a]>");
}

TEST(RegexSyntax, ACaretOrHyphenAmongNestedClassesStandsForItself) {
  EXPECT_EQ(marked(R"([\W^]+)", "ab^-c"), "ab<^->c");
  EXPECT_EQ(marked(R"([^\W^]+)", "ab^-c"), "<ab>^-<c>");
  EXPECT_EQ(marked(R"([[x]^c]+)", "axc^b"), "a<xc^>b");
  EXPECT_EQ(marked(R"([^^\p{Lu}&&\w]+)", "aB^"), "<a>B<^>");
  EXPECT_EQ(marked(R"([a^&&^]+)", "a^b"), "a<^>b");
  EXPECT_EQ(marked(R"([a[x]-c]+)", "xbc-"), "<x>b<c->");
}

TEST(RegexSyntax, AComplementGivesBackWhatTheNextOneNeeds) {
  EXPECT_EQ(marked(R"(-\P{N}?\P{L})", "a--b"), "a<-->b");
  EXPECT_EQ(marked(R"(\D+\P{Ll})", "abC1"), "<abC1>");
  EXPECT_EQ(marked(R"(\P{Han}*\P{Latin})", "ab1"), "<ab1>");
}

TEST(RegexSyntax, ANumberOfTimesMayLackItsLowerEnd) {
  EXPECT_EQ(marked("xa{,2}", "xaaa"), "<xaa>a");
  EXPECT_EQ(marked("a{,}", "aaa{,}"), "aa<a{,}>");
}

// In PCRE2 the sign behind it says how it matches.
TEST(RegexSyntax, ASignBehindANumberOfTimesRepeatsTheWhole) {
  EXPECT_EQ(marked("a{2}+", "aaaaa"), "<aaaa>a");
  EXPECT_EQ(marked("a{1,2}+a", "aaaa"), "<aaaa>");
  EXPECT_EQ(marked("(?:ab){2}+b", "ababababb"), "<ababababb>");
  EXPECT_EQ(marked("(a{2}+b)+", "aaaabaab"), "<aaaabaab>");
  EXPECT_EQ(marked("é{2}+", "ééé"), "<éé>é");
  EXPECT_EQ(marked(R"(\x61{2}+|\142{2}+|\cA{2}+)", "aaabbb\1\1"), "<aa>a<bb>b<\1\1>");
  EXPECT_EQ(marked(R"([ab]{2}+|\p{L}{2}+)", "ababa cdefg"), "<abab>a <cdef>g");
  EXPECT_EQ(marked("a{2}?b", "aab ab b"), "<aab> a<b> <b>");
  EXPECT_EQ(marked("a{2,3}?", "aaaaaa"), "<aa><aa><aa>");
}

TEST(RegexSyntax, VIsTheVerticalTabAlone) {
  EXPECT_EQ(marked(R"(\v)", "a\v\n"), "a<\v>\n");
  EXPECT_EQ(marked(R"([^\v]+)", "a\v\nb"), "<a>\v<\nb>");
}

TEST(RegexSyntax, OptionsReachOverAlternativesToTheEndOfTheGroup) {
  EXPECT_EQ(marked("a(?i)b|c", "aB C aC ac AC c b"), "<aB> C <aC> <ac> AC c b");
  EXPECT_EQ(marked("(?:a(?i)b|c)d", "aBd Cd aCd cd aCD"), "<aBd> Cd <aCd> cd aCD");
  EXPECT_EQ(marked("x(?i)a(?-i)b|c", "xAb xAc xc"), "<xAb> <xAc> xc");
  EXPECT_EQ(marked("(?m).+", "a\nb"), "<a\nb>");
}

TEST(RegexSyntax, PosixClassesAndTheirComplementsAreUnicodes) {
  EXPECT_EQ(marked("[[:^punct:]]+", "a$\xC2\xA2.b"), "<a>$\xC2\xA2.<b>");
  EXPECT_EQ(marked("[[:^word:]]+", "a\u0301-½b"), "a\u0301<-½>b");
  EXPECT_EQ(marked("[[:^alnum:]]+", "aé1_²"), "aé1<_²>");
  EXPECT_EQ(marked("[[:graph:]]+", "a\u2066 \uE000\n"), "<a\u2066> <\uE000>\n");
  EXPECT_EQ(marked("[[:print:]]+", "a\u3000\tb"), "<a\u3000>\t<b>");
}

TEST(RegexSyntax, PropertiesMayHavePosixNames) {
  EXPECT_EQ(marked(R"(\p{Punct}+)", "a$.-"), "a$<.->");  // other than [:punct:]
  EXPECT_EQ(marked(R"([[:punct:]]+)", "a$.-"), "a<$.->");
  EXPECT_EQ(marked(R"(\p{Alnum}+)", "é1_"), "<é1>_");
  EXPECT_EQ(marked(R"(\P{XDigit}+)", "fgF-"), "f<g>F<->");
  EXPECT_EQ(marked(R"([^\P{Blank}]+)", "a \t\n"), "a< \t>\n");
  EXPECT_EQ(marked(R"(\p{Word}+)", "½a!"), "<½a>!");
}

TEST(RegexSyntax, ABackslashBeforeOtherLettersChangesNothing) {
  EXPECT_EQ(marked(R"(\Qa.\E)", "QaxE a."), "<QaxE> a.");
  EXPECT_EQ(marked(R"(\pL)", "pL x"), "<pL> x");
  EXPECT_EQ(marked(R"([\pL\N]+)", "pLN x"), "<pLN> x");
  EXPECT_EQ(marked(R"(\C-a)", "\x01 C-a"), "<\x01> C-a");
}

TEST(RegexSyntax, NumbersOfBytesAreThoseOfUtf8) {
  EXPECT_EQ(marked(R"(\xE3\x81\x82)", "あ\u00e3"), "<あ>\u00e3");
  EXPECT_EQ(marked(R"([\xC3\xA0-\xC3\xA9]+)", "aàéz"), "a<àé>z");
  EXPECT_EQ(marked(R"(\x41\x{e9})", "Aé"), "<Aé>");
}

TEST(RegexSyntax, AnIntersectionWithNothingIsEmpty) {
  EXPECT_EQ(marked("x|[a&&]", "xa"), "<x>a");
  EXPECT_EQ(marked("[^&&a]+", "ab"), "<ab>");
}

/// What the error says, of an expression or a search that must be refused.
std::string refusal(const std::string& pattern, const std::string& text = "") {
  try {
    Regex(pattern, "tokenizer.json").find_all(text);
  } catch (const DataError& e) {
    return e.what();
  }
  return "not refused";
}

TEST(RegexSyntax, LongAndDeepExpressionsAreRefused) {
  EXPECT_EQ(refusal(std::string(65'537, 'a')),
            "tokenizer.json: a regular expression of 65537 bytes; at most 65536 are taken");
  EXPECT_EQ(refusal(std::string(60'000, '[')),
            "tokenizer.json: a regular expression whose classes nest deeper than 100 levels");
}

TEST(RegexSyntax, BytesThatAreNoCharacterAndControlWithoutALetterAreRefused) {
  EXPECT_NE(refusal(R"(\xE9)").find("not all those of one character; write \\x{E9}"), std::string::npos);
  EXPECT_NE(refusal(R"(\xE3\x81a)").find("not all those of one character"), std::string::npos);
  EXPECT_NE(refusal(R"(a\Cb)").find("\\C and no letter behind it"), std::string::npos);
}

// Oniguruma's [\p{Lu}] has the letters of the other case, too, behind (?i); outside of brackets it has not.
TEST(RegexSyntax, LettersOfOneCaseInBracketsAreRefusedWhereCaseIsIgnored) {
  for (const char* pattern : {R"((?i)[\p{Lu}])", R"((?i:a[^\p{Uppercase}]))", "(?i)[[:lower:]a]", "(?i)[[:^upper:]]"})
    EXPECT_NE(refusal(pattern).find("(?i) and letters of one case in brackets"), std::string::npos) << pattern;
  EXPECT_EQ(marked(R"((?i)\p{Lu}|b)", "AaB"), "<A>a<B>");
  EXPECT_EQ(marked(R"((?i:a)[\p{Lu}])", "ABab"), "<AB>ab");
}

TEST(RegexSyntax, ASearchThatLooksAtTheWholeTextFromEveryPlaceGivesUp) {
  const std::string said = refusal("(?:a|x)+b(?=c)", std::string(100'000, 'a') + "b!");
  EXPECT_NE(said.find("it needs too much time"), std::string::npos) << said;
}

TEST(RegexSyntax, APlaceFarBehindIsFound) {
  const std::string far(1'000'000, ' ');
  EXPECT_EQ(Regex("é+", "test").find_all(far + "éé").front().first, far.size());
}

}  // namespace
}  // namespace tessera::text
