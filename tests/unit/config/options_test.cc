#include "config/options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

struct Sample {
  std::string model = "t5-base";
  std::int64_t batch = 8;
  double rate = 5e-5;
  bool bf16 = false;
  bool shuffle = true;
  std::optional<std::int64_t> max_steps;
  std::vector<std::string> splits = {"train", "test"};
  std::string schedule = "linear";
  enum class Mode { kFull, kHalf } mode = Mode::kFull;

  OptionTable table() {
    OptionTable t("tessera sample", "a sample");
    t.add(&model, {"--model_name_or_path"}, "folder of the model", "Model");
    t.add(&batch, {"--per_device_train_batch_size", "--batch-size"}, "rows per rank and step", "Training");
    t.add(&rate, {"--learning_rate", "--lr"}, "peak learning rate", "Training");
    t.add(&bf16, {"--bf16"}, "compute in bf16", "Training");
    t.add(&shuffle, {"--shuffle"}, "shuffle the rows", "Training");
    t.add(&max_steps, {"--max_steps"}, "stop after so many steps", "Training");
    t.add(&splits, {"--splits"}, "names of the splits", "Data");
    t.add(&schedule, {"--lr_scheduler_type"}, "shape", "Training").choices({"linear", "cosine"});
    t.add_enum(&mode, {{"FULL", Mode::kFull}, {"HALF", Mode::kHalf}}, {"--mode"}, "how much", "Training");
    return t;
  }
  void parse(const std::vector<std::string>& args) { EXPECT_EQ(table().parse(args), ParseResult::kRun); }
};

std::string message_of(const std::vector<std::string>& args) {
  Sample s;
  try {
    (void)s.table().parse(args);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

std::string write_temporary(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(Options, TakeDashesOrUnderscoresAndEqualsOrSpace) {
  Sample s;
  s.parse({"--per-device-train-batch-size", "4", "--learning_rate=1e-3", "--model_name_or_path", "m", "--max-steps=7"});
  EXPECT_EQ(s.batch, 4);
  EXPECT_EQ(s.rate, 1e-3);
  EXPECT_EQ(s.model, "m");
  EXPECT_EQ(s.max_steps, 7);
}

TEST(Options, BooleansMayStandAloneOrBeNegatedOrSpelledOut) {
  for (const char* yes : {"y", "Yes", "t", "TRUE", "on", "1"}) {
    Sample s;
    s.parse({"--bf16", yes});
    EXPECT_TRUE(s.bf16) << yes;
  }
  for (const char* no : {"n", "NO", "f", "False", "off", "0"}) {
    Sample s;
    s.parse({"--shuffle", no});
    EXPECT_FALSE(s.shuffle) << no;
  }
  Sample s;
  s.parse({"--bf16", "--no_shuffle"});
  EXPECT_TRUE(s.bf16);
  EXPECT_FALSE(s.shuffle);
}

TEST(Options, FlagsWithoutEffectStillWantAValueOfTheirType) {
  const auto parse = [](const std::vector<std::string>& args) -> std::string {
    OptionTable table("tessera sample", "a sample");
    table.add_without_effect({"--use_reentrant", Unused::kBool, "no difference"});
    table.add_without_effect({"--workers", Unused::kNumber, "none needed"});
    table.add_without_effect({"--hub_token", Unused::kText, "nothing is uploaded"});
    table.add_without_effect({"--label_names", Unused::kList, "known"});
    table.add_without_effect({"--count_tokens", Unused::kMaybeText, "always"});
    try {
      (void)table.parse(args);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  for (const std::vector<std::string>& fine : {std::vector<std::string>{"--use_reentrant"},
                                               {"--use_reentrant", "False", "--workers", "4"},
                                               {"--no_use_reentrant", "--workers=none", "--hub_token", "x"},
                                               {"--label_names", "labels", "mask", "--workers", "1_000"},
                                               {"--count_tokens", "--label_names", "a,b"},
                                               {"--count_tokens", "non_padding", "--count_tokens=all"}})
    EXPECT_EQ(parse(fine), "");
  EXPECT_EQ(parse({"--use_reentrant", "maybe"}), "--use_reentrant expects true or false, found 'maybe'");
  EXPECT_EQ(parse({"--use_reentrant=2"}), "--use_reentrant expects true or false, found '2'");
  EXPECT_EQ(parse({"--workers", "many"}), "--workers expects a number, found 'many'");
}

TEST(Options, AListWithChoicesTakesThoseThatFollowThoughThereArePositionals) {
  std::string model;
  std::vector<std::string> dtypes;
  OptionTable table("tessera sample", "a sample");
  table.positional(&model, "MODEL", "folder");
  table.add(&dtypes, {"--dtypes"}, "some").choices({"float32", "int8"});
  ASSERT_EQ(table.parse({"--dtypes", "float32", "int8", "t5-base"}), ParseResult::kRun);
  EXPECT_EQ(dtypes, (std::vector<std::string>{"float32", "int8"}));
  EXPECT_EQ(model, "t5-base");
}

TEST(Options, KnownValuesAreOfferedAndOthersTaken) {
  std::string rule;
  OptionTable table("tessera sample", "a sample");
  table.add(&rule, {"--rule"}, "how").known_values({"sum", "mean"});
  ASSERT_EQ(table.parse({"--rule", "median"}), ParseResult::kRun);
  EXPECT_EQ(rule, "median");
  EXPECT_NE(table.help().find("how: sum, mean"), std::string::npos) << table.help();
}

TEST(Options, OfDuplicatesTheLastWins) {
  Sample s;
  s.parse({"--lr", "1", "--learning-rate", "2"});
  EXPECT_EQ(s.rate, 2);
}

TEST(Options, OfDuplicatesOfAListThatRepeatsAllCount) {
  std::vector<std::string> adapters;
  OptionTable table("test", "");
  table.add(&adapters, {"--adapter"}, "").repeats();
  ASSERT_EQ(table.parse({"--adapter", "a", "b", "--adapter=c"}), ParseResult::kRun);
  EXPECT_EQ(adapters, (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Options, ListsTakeCommasSpacesAndSeveralWords) {
  Sample s;
  s.parse({"--splits", "a,b", "c d", "--bf16"});
  EXPECT_EQ(s.splits, (std::vector<std::string>{"a", "b", "c", "d"}));
  s.parse({"--splits="});
  EXPECT_TRUE(s.splits.empty());
}

TEST(Options, NegativeNumbersAreValues) {
  Sample s;
  s.parse({"--max_steps", "-1", "--lr", "-.5"});
  EXPECT_EQ(s.max_steps, -1);
  EXPECT_EQ(s.rate, -0.5);
}

TEST(Options, OptionalsCanBeUnset) {
  Sample s;
  s.max_steps = 3;
  s.parse({"--max_steps", "none"});
  EXPECT_FALSE(s.max_steps.has_value());
}

TEST(Options, UnknownFlagsOfOtherProgramsAreTranslated) {
  OptionTable table("tessera sample", "a sample");
  std::int64_t ranks = 1, length = 1;
  table.add(&ranks, {"--num_processes"}, "ranks");
  table.add(&length, {"--max_length", "--max_seq_length"}, "tokens");
  for (const auto& [flag, ours] : {std::pair{"--nproc-per-node", "num_processes"}, {"--cutoff_len", "max_seq_length"}})
    try {
      (void)table.parse({flag, "2"});
      ADD_FAILURE() << flag;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(std::string(flag) + " (did you mean '--" + ours + "'?)"), std::string::npos)
          << e.what();
    }
}

std::string refusal(OptionTable& table, const std::vector<std::string>& args) {
  try {
    (void)table.parse(args);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Options, FlagsAndFilesOfTheLauncherAreSentToIt) {
  OptionTable task("tessera sample", "a sample");
  std::int64_t seed = 1;
  task.add(&seed, {"--seed"}, "a seed");
  for (const std::string flag : {"--num_processes", "--config_file", "--fsdp_sharding_strategy", "--max_restarts"})
    EXPECT_NE(refusal(task, {flag, "2"}).find(flag + " (a flag of 'tessera launch', which stands before the task)"),
              std::string::npos)
        << refusal(task, {flag, "2"});
  const std::string file = testing::TempDir() + "launcher.yaml";
  write_file_atomically(file, "compute_environment: LOCAL_MACHINE\nnum_processes: 2\n");
  EXPECT_EQ(refusal(task, {"--config", file}),
            file + " is a config file of the launcher: 'tessera launch --config_file " + file + " TASK ...'");
}

TEST(Options, KeysOfOthersInAFileArePassedOver) {
  OptionTable task("tessera sample", "a sample");
  std::int64_t seed = 1;
  task.add(&seed, {"--seed"}, "a seed");
  task.pass_over_in_files([](const std::string& key) { return key == "num_processes"; });
  const std::string file = testing::TempDir() + "of_others.yaml";
  write_file_atomically(file, "num_processes: 2\nseed: 3\n");
  EXPECT_EQ(refusal(task, {"--config", file}), "no error");
  EXPECT_EQ(seed, 3);
  EXPECT_NE(refusal(task, {"--num_processes", "2"}), "no error");  // but not on the command line
  write_file_atomically(file, "num_processes: 2\nnum_machines: 1\n");
  EXPECT_NE(refusal(task, {"--config", file}).find("num_machines"), std::string::npos);
}

TEST(Options, CommandsWithArgumentsShowThem) {
  OptionTable table("tessera look", "looks at a model");
  std::string model;
  std::int64_t seed = 1;
  table.positional(&model, "MODEL", "a model");
  table.add(&seed, {"--seed"}, "a seed");
  EXPECT_EQ(refusal(table, {"--model", "m"}),
            "unknown flag --model; usage: tessera look [flags] MODEL; 'tessera look --help' lists all flags");
}

TEST(Options, WhoStartsATaskSaysWhereItsFlagsStand) {
  OptionTable table("tessera start", "starts others");
  std::vector<std::string> rest;
  table.rest(&rest, "TASK ARGS...", "what is started");
  EXPECT_EQ(refusal(table, {"--output_dir", "out", "sft"}),
            "unknown flag --output_dir; 'tessera start --help' lists all flags; those of a task stand behind its name");
}

TEST(Options, EnumerationsTakeNamesInAnyCaseAndNumbers) {
  Sample s;
  s.parse({"--mode", "half"});
  EXPECT_EQ(s.mode, Sample::Mode::kHalf);
  s.parse({"--mode", "1"});
  EXPECT_EQ(s.mode, Sample::Mode::kFull);
  EXPECT_EQ(message_of({"--mode", "3"}), "--mode expects one of FULL, HALF, found '3'");
}

TEST(Options, UnknownFlagsAreNamedWithTheNearestKnownOne) {
  EXPECT_EQ(message_of({"--learnin_rate", "1"}),
            "unknown flag --learnin_rate (did you mean '--learning_rate'?); 'tessera sample --help' lists all flags");
}

TEST(Options, FlagsWithoutEffectAreNotProposed) {
  OptionTable table("tessera sample", "a sample");
  std::int64_t rank = 8;
  table.add(&rank, {"--lora_r"}, "of adapters");
  table.add_without_effect({"--local_rank", Unused::kNumber, "the launcher says it"});
  Problems problems;
  (void)table.parse({"--locl_rank", "4", "--lora_rank", "4"}, problems);
  try {
    problems.throw_all();
    FAIL();
  } catch (const ConfigError& e) {
    const std::string said = e.what();
    EXPECT_NE(said.find("--lora_rank (did you mean '--lora_r'?)"), std::string::npos) << said;
    EXPECT_EQ(said.find("'--local_rank'"), std::string::npos) << said;
  }
}

TEST(Options, WrongTypesNameFlagValueAndExpectation) {
  EXPECT_EQ(message_of({"--lr", "fast"}), "--lr expects a number, found 'fast'");
  EXPECT_EQ(message_of({"--batch_size", "4.5"}), "--batch_size expects an integer, found '4.5'");
  EXPECT_EQ(message_of({"--bf16", "maybe"}), "--bf16 expects true or false, found 'maybe'");
  EXPECT_EQ(message_of({"--lr_scheduler_type", "sinus"}),
            "--lr_scheduler_type expects one of linear, cosine, found 'sinus'");
  EXPECT_EQ(message_of({"--lr", "--bf16"}),
            "--lr expects a number, found the flag --bf16; a value that begins with a dash is written --lr=VALUE");
  EXPECT_EQ(message_of({"stray"}),
            "unexpected argument 'stray'; flags begin with --, and 'tessera sample --help' lists them");
}

TEST(Options, EverythingThatIsWrongIsSaidAtOnce) {
  EXPECT_EQ(message_of({"--lr", "fast", "--learnin_rate", "1", "2", "--bf16=maybe", "--mode", "--what", "--lr=slow"}),
            "5 problems with the command line:\n"
            "  unknown flag --learnin_rate (did you mean '--learning_rate'?)\n"
            "  --mode expects one of FULL, HALF, found the flag --what; a value that begins with a dash is written "
            "--mode=VALUE\n"
            "  unknown flag --what\n"
            "  --lr expects a number, found 'fast'\n"
            "  --bf16 expects true or false, found 'maybe'\n"
            "'tessera sample --help' lists all flags");
  const std::string file = write_temporary("wrong_flags.yaml", "learning_rat: 1\nbf16: perhaps\n");
  EXPECT_EQ(message_of({file, "--max_steps", "few"}),
            "3 problems with the command line:\n  " + file +
                ":1: unknown option 'learning_rat' (did you mean '--learning_rate'?)\n  " + file +
                ":2: bf16 expects true or false, found 'perhaps'\n  --max_steps expects an integer, found 'few'\n"
                "'tessera sample --help' lists all options");
}

bool is_wrong_for_all_ranks(const std::vector<std::string>& args) {
  Sample s;
  Problems problems;
  EXPECT_EQ(s.table().parse(args, problems), ParseResult::kRun);
  problems.require(s.rate > 0, "--learning_rate must be above 0", "learning_rate");
  try {
    problems.throw_all();
  } catch (const UsageError&) {
    return true;
  } catch (const ConfigError&) {
  }
  return false;
}

/// Files are not the same for all ranks, nor what they set.
TEST(Options, WordsAreWrongForAllRanks) {
  EXPECT_TRUE(is_wrong_for_all_ranks({"--what"}));
  EXPECT_TRUE(is_wrong_for_all_ranks({"--lr", "fast"}));
  EXPECT_TRUE(is_wrong_for_all_ranks({"--lr", "-1"}));
  EXPECT_TRUE(is_wrong_for_all_ranks({"stray"}));
  const std::string unknown = write_temporary("unknown.yaml", "learning_rat: 1\n");
  EXPECT_FALSE(is_wrong_for_all_ranks({unknown}));
  EXPECT_FALSE(is_wrong_for_all_ranks({write_temporary("negative.yaml", "learning_rate: -1\n")}));
  EXPECT_FALSE(is_wrong_for_all_ranks({"/nowhere/flags.yaml"}));
  EXPECT_TRUE(is_wrong_for_all_ranks({unknown, "--lr", "fast"}));
  EXPECT_TRUE(is_wrong_for_all_ranks({unknown, "--what"}));
}

TEST(Options, AnUnknownFlagsValueIsNotTakenForWhatIsLaunched) {
  std::vector<std::string> rest;
  int ranks = 1;
  OptionTable t("tessera launch", "starts ranks");
  t.add(&ranks, {"--ranks"}, "how many");
  t.rest(&rest, "PROGRAM", "what to start");
  Problems problems;
  ASSERT_EQ(t.parse({"--unknown", "3", "--ranks", "2", "--other", "prog", "--seed", "1"}, problems), ParseResult::kRun);
  EXPECT_EQ(ranks, 2);
  EXPECT_EQ(rest, (std::vector<std::string>{"prog", "--seed", "1"}));
  EXPECT_FALSE(problems.empty());
}

TEST(Options, OfOneKeyTheFirstProblemIsKept) {
  Problems problems;
  problems.throw_all();
  problems.add("--a is wrong", "a");
  problems.require(false, "--a goes with --b", "a");
  problems.require(true, "never", "c");
  problems.attempt([] { throw ConfigError("--d is wrong", "d"); });
  try {
    problems.throw_all();
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_EQ(std::string(e.what()), "2 problems with the command line:\n  --a is wrong\n  --d is wrong");
    EXPECT_EQ(e.key, "a");
  }
}

struct Saving {
  std::string strategy = "no", where;
  std::int64_t every = 500, keep = 0;
  OptionTable table() {
    OptionTable t("tessera sample", "a sample");
    t.add(&strategy, {"--save_strategy"}, "when");
    t.add(&where, {"--folder"}, "where");
    t.add(&every, {"--save_steps"}, "how often").implies("--save_strategy", "steps");
    t.add(&keep, {"--keep"}, "how many")
        .only_with({{"--save_strategy", {"steps", "epoch"}}})
        .idle_with({"--folder", {kSet}});
    return t;
  }
  std::vector<std::string> notes(const std::vector<std::string>& args) {
    OptionTable t = table();
    EXPECT_EQ(t.parse(args), ParseResult::kRun);
    return t.notes();
  }
};

TEST(Options, AFlagThatNeedsAnotherImpliesIt) {
  Saving implied, against;
  EXPECT_EQ(implied.notes({"--save_steps", "4"}), std::vector<std::string>{});
  EXPECT_EQ(implied.strategy, "steps");
  EXPECT_EQ(against.notes({"--save_steps", "4", "--save_strategy", "epoch"}),
            std::vector<std::string>{"--save_steps has no effect without --save_strategy steps"});
  EXPECT_EQ(against.strategy, "epoch");
}

TEST(Options, AFlagThatDoesNotCountIsNoted) {
  EXPECT_EQ(Saving().notes({"--keep", "2"}),
            std::vector<std::string>{"--keep has no effect without --save_strategy steps (or epoch)"});
  EXPECT_EQ(Saving().notes({"--keep", "2", "--save_strategy", "epoch", "--folder", "x"}),
            std::vector<std::string>{"--keep has no effect with --folder x"});
  EXPECT_EQ(Saving().notes({"--keep", "2", "--save_strategy", "epoch"}), std::vector<std::string>{});
  EXPECT_EQ(Saving().notes({"--keep", "0"}), std::vector<std::string>{});  // as without it
}

TEST(Options, RefusedFlagsMayBeOff) {
  const auto parse = [](const std::vector<std::string>& args) -> std::string {
    OptionTable table("tessera sample", "a sample");
    table.add_refused({"--load_in_4bit", Unused::kBool, "not built yet; leave it out"});
    table.add_refused({"--dtype", Unused::kText, "use --bf16", "float32"});
    try {
      (void)table.parse(args);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(parse({"--load_in_4bit", "False", "--dtype", "float32"}), "");
  EXPECT_EQ(parse({"--no_load_in_4bit", "--dtype", "none"}), "");
  EXPECT_EQ(parse({"--load_in_4bit"}), "--load_in_4bit is not supported: not built yet; leave it out");
  EXPECT_EQ(parse({"--dtype=bfloat16"}), "--dtype is not supported: use --bf16");
}

TEST(Options, FlagFileIsReadAndTheCommandLineWinsOverIt) {
  const std::string json = write_temporary(
      "flags.json", R"({"learning_rate": 0.01, "splits": ["a b", "c"], "max_steps": null, "bf16": true})");
  Sample s;
  s.parse({"--lr", "0.5", json});
  EXPECT_EQ(s.rate, 0.5);
  EXPECT_TRUE(s.bf16);
  EXPECT_EQ(s.splits, (std::vector<std::string>{"a b", "c"}));
  EXPECT_FALSE(s.max_steps.has_value());

  Sample y;
  y.parse({write_temporary("flags.yaml", "learning-rate: 1e-4\nsplits: a, b\nmode: HALF\n")});
  EXPECT_EQ(y.rate, 1e-4);
  EXPECT_EQ(y.splits, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(y.mode, Sample::Mode::kHalf);
}

TEST(Options, AFlagFileMayBeNamedAsByTrlAndSetTheEnvironment) {
  const std::string file = write_temporary(
      "trl", "env:\n  TESSERA_TEST_OF_ENV: some text\n  TESSERA_TEST_OF_ENV_2: 7\nlearning_rate: 0.5\n");
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--config", file, "--bf16"}, {"--config=" + file, "--bf16"}}) {
    ::unsetenv("TESSERA_TEST_OF_ENV");
    ::setenv("TESSERA_TEST_OF_ENV_2", "of before", 1);
    Sample s;
    s.parse(args);
    EXPECT_EQ(s.rate, 0.5);
    EXPECT_TRUE(s.bf16);
    EXPECT_STREQ(std::getenv("TESSERA_TEST_OF_ENV"), "some text");
    EXPECT_STREQ(std::getenv("TESSERA_TEST_OF_ENV_2"), "7");
  }
  EXPECT_EQ(message_of({"--config", file, "--config", "b"}), "two files of flags, " + file + " and b; keep one");
  EXPECT_EQ(message_of({"--config"}), "--config expects a file of flags");
  const std::string nested = write_temporary("nested_env.yaml", "env: {A: [1]}\n");
  EXPECT_EQ(message_of({"--config", nested}), nested + ":1: env expects lines of the form 'VARIABLE: text', found 'A'");
}

TEST(Options, NullInAFlagFileIsNoneWhereTheOptionKnowsIt) {
  for (const auto& [name, text] :
       {std::pair("null.yaml", "max_steps: null\nlimit: ~\nsplits: null\nlearning_rate:\n"),
        std::pair("null.json", R"({"max_steps": null, "limit": null, "learning_rate": null})")}) {
    Sample s;
    s.max_steps = 3;
    std::int64_t limit = 512;
    auto table = s.table();
    table.add(&limit, {"--limit"}, "tokens of a row").reads("none", "0");
    EXPECT_EQ(table.parse({write_temporary(name, text)}), ParseResult::kRun);
    EXPECT_FALSE(s.max_steps.has_value()) << text;
    EXPECT_EQ(limit, 0) << text;
    EXPECT_EQ(s.rate, 5e-5) << text;
    EXPECT_EQ(s.splits.size(), 2U) << text;
    EXPECT_FALSE(table.given("--max_steps")) << text;
  }
}

TEST(Options, NumbersOfAYamlFileAreReadAsPyYamlReadsThem) {
  const auto batch = [](const std::string& number) {
    Sample s;
    s.parse(
        {write_temporary("numbers.yaml", "batch-size: " + number + "\nlearning_rate: 010\nmodel_name_or_path: 010\n")});
    EXPECT_EQ(s.rate, 8);
    EXPECT_EQ(s.model, "010");  // a text stays as it is written
    return s.batch;
  };
  EXPECT_EQ(batch("010"), 8);
  EXPECT_EQ(batch("-0_17"), -15);
  EXPECT_EQ(batch("0x1F"), 31);
  EXPECT_EQ(batch("+0b101"), 5);
  EXPECT_EQ(batch("1_000"), 1000);
  EXPECT_EQ(batch("'010'"), 10);  // a text for Python, whose int() makes a number of it
  EXPECT_EQ(batch("08"), 8);      // no octal digit
  EXPECT_EQ(batch("0"), 0);
}

TEST(Options, FlagFileErrorsNameFileLineAndKey) {
  const std::string nested = write_temporary("nested.yaml", "splits: [train, {test: 0.1}]\n");
  EXPECT_EQ(message_of({nested}),
            nested + ":1: splits expects words parted by commas or spaces, found a list of other things");

  const std::string unknown = write_temporary("unknown.yaml", "bf16: true\nlearning_rat: 1\n");
  EXPECT_EQ(message_of({unknown}),
            unknown +
                ":2: unknown option 'learning_rat' (did you mean '--learning_rate'?); 'tessera sample "
                "--help' lists all options");
  const std::string wrong = write_temporary("wrong.yaml", "learning_rate: [1]\n");
  EXPECT_EQ(message_of({wrong}), wrong + ":1: learning_rate expects a number, found a list");
  const std::string merged = write_temporary("merged.yaml", "bf16: true\n<<: {learning_rate: 1}\n");
  EXPECT_EQ(message_of({merged}), merged + ":2: merging mappings with '<<' is not supported; write the keys out");
  const std::string two = write_temporary("two.yaml", "bf16: true\n---\nlearning_rate: 1\n");
  EXPECT_EQ(message_of({two}), two + ":2: expected one document, found the beginning of another");
  for (const char* text : {"---\n---\nbf16: true\n", "bf16: true\n...\nlearning_rate: 1\n", "bf16: true\n---"})
    EXPECT_NE(message_of({write_temporary("more.yaml", text)}).find("expected one document"), std::string::npos)
        << text;
  for (const char* text : {"%YAML 1.1\n---\nbf16: true\n", "\xEF\xBB\xBF# a\n---\nbf16: true\n",
                           "# a\n--- \nbf16: true\n...\n# b\n", "bf16: true\n...\n"})
    EXPECT_EQ(message_of({write_temporary("one.yaml", text)}), message_of({})) << text;
  EXPECT_EQ(message_of({"/nowhere/x.json"}), "cannot read '/nowhere/x.json': No such file or directory");
}

TEST(Options, PositionalsAreTakenInOrderAndRequired) {
  std::string folder;
  std::optional<std::string> reference;
  bool sharded = false;
  OptionTable t("tessera verify", "checks a model folder");
  t.positional(&folder, "DIR", "the model folder");
  t.positional(&reference, "IO", "reference tensors");
  t.add(&sharded, {"--sharded"}, "shard it");
  EXPECT_THROW((void)t.parse({}), ConfigError);
  EXPECT_EQ(t.parse({"--sharded", "d", "x.json"}), ParseResult::kRun);
  EXPECT_EQ(folder, "d");
  EXPECT_EQ(reference, "x.json");
  EXPECT_TRUE(sharded);
  EXPECT_THROW((void)t.parse({"a", "b", "c"}), ConfigError);
}

TEST(Options, RestIsPassedOnUnparsed) {
  std::vector<std::string> rest;
  bool tee = false;
  OptionTable t("tessera launch", "starts ranks");
  t.add(&tee, {"-t", "--tee"}, "show all");
  t.rest(&rest, "PROGRAM", "what to start");
  EXPECT_EQ(t.parse({"-t", "prog", "--help", "-t", "x y"}), ParseResult::kRun);
  EXPECT_EQ(rest, (std::vector<std::string>{"prog", "--help", "-t", "x y"}));
  EXPECT_TRUE(tee);
}

TEST(Options, RequiredOptionsAreAskedFor) {
  Sample s;
  OptionTable t = s.table();
  std::string data;
  t.add(&data, {"--dataset_path"}, "data file").required();
  try {
    (void)t.parse({"--bf16"});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_EQ(std::string(e.what()), "--dataset_path is required (data file); 'tessera sample --help' lists all flags");
    EXPECT_EQ(e.key, "dataset_path");
  }
}

TEST(Options, HelpListsEveryFlagByGroupWithItsDefault) {
  Sample s;
  OptionTable t = s.table();
  EXPECT_EQ(t.parse({"--lr", "1", "--help"}), ParseResult::kHelp);
  EXPECT_EQ(s.rate, 5e-5);
  const std::string help = t.help();
  for (const std::string& name : t.names()) EXPECT_NE(help.find(name), std::string::npos) << name;
  EXPECT_NE(help.find("\nTraining\n"), std::string::npos);
  EXPECT_NE(help.find("(default: 5e-05)"), std::string::npos);
  EXPECT_NE(help.find("linear, cosine"), std::string::npos);
  EXPECT_EQ(help.find("\nTraining\n"), help.rfind("\nTraining\n"));
}

TEST(Options, HelpShowsFlagsThatDoNothingLast) {
  bool quiet = false, works = false;
  OptionTable t("tessera x", "does x");
  t.add(&quiet, {"--quiet"}, "", "Accepted without effect").without_effect("nothing speaks");
  t.add(&works, {"--works"}, "does something", "What matters");
  const std::string help = t.help();
  EXPECT_LT(help.find("What matters"), help.find("Accepted without effect")) << help;
}

TEST(Options, GivenTellsSetFromDefault) {
  Sample s;
  OptionTable t = s.table();
  ASSERT_EQ(t.parse({"--lr", "1"}), ParseResult::kRun);
  EXPECT_TRUE(t.given("--learning_rate"));
  EXPECT_FALSE(t.given("bf16"));
  EXPECT_EQ(t.text("lr"), "1");
}

TEST(Options, OptionsThatAreJsonReadYamlAsPyYamlDoes) {
  std::string kwargs;
  OptionTable table("tessera test", "");
  table.add(&kwargs, {"--kwargs"}, "").placeholder("JSON");
  const auto parsed = [&](const std::string& yaml) {
    (void)table.parse({write_temporary("kwargs.yaml", yaml)});
    return kwargs;
  };
  EXPECT_EQ(parsed("kwargs: {a: False, b: no, c: On, d: ~, e: 1e-4, f: 0.5, g: 1_000, h: word}\n"),
            R"({"a":false,"b":false,"c":true,"d":null,"e":0.0001,"f":0.5,"g":1000,"h":"word"})");
  EXPECT_EQ(parsed("kwargs: {a: 'False', b: \"1\"}\n"), R"({"a":"False","b":"1"})");
  EXPECT_EQ(parsed("kwargs:\n- path: x\n  columns: [a, b]\n"), R"([{"path":"x","columns":["a","b"]}])");
}

TEST(Options, KnownFlagsThatAreRefusedOrIdleTakeMappings) {
  const auto message = [](const std::string& yaml) {
    OptionTable table("tessera test", "");
    table.add_without_effect({"--idle", Unused::kText, "there is none"});
    table.add_refused({"--refused", Unused::kText, "leave it out"});
    try {
      (void)table.parse({write_temporary("kept.yaml", yaml)});
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("idle: {a: 1}\nrefused: {}\n"), "");
  EXPECT_NE(message("refused: {a: [1]}\n").find("refused is not supported: leave it out"), std::string::npos);
}

}  // namespace
}  // namespace tessera::config
