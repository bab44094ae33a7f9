#include <gtest/gtest.h>

#include <ATen/ops/ones.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "flag_sweep.h"
#include "support/program.h"
#include "tasks/generate.h"
#include "tasks/opened_model.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {
namespace {

using test::kTinyChat;

/// A LoRA adapter of the tiny model that changes what it says.
void write_adapter(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 64, "target_modules": ["layers.0.self_attn.o_proj"]})";
  const std::string module = "base_model.model.model.layers.0.self_attn.o_proj.";
  io::write_safetensors(folder + "/adapter_model.safetensors",
                        {{module + "lora_A.weight", at::ones({2, 48})}, {module + "lora_B.weight", at::ones({48, 2})}});
}

TEST(GenerateFlags, EachChangesSomethingOrIsRefusedOrSaysThatItDoesNot) {
  const test::TempFolder folder("generate_flags");
  const auto in = [&](const std::string& name) { return folder.path() + "/" + name; };
  std::filesystem::copy(kTinyChat, in("config"));
  auto config = nlohmann::json::parse(read_file(in("config/config.json")));
  config["initializer_range"] = 0.5;  // so that what comes depends on what was before
  write_file_atomically(in("config/config.json"), config.dump());
  make_model(in("config"), in("model"));
  make_model(in("config"), in("other"), "1");
  write_lines(in("rows.jsonl"), {R"("one and one")", R"("two")"});
  write_lines(in("chat.jinja"), {"{% for m in messages %}{{ m['content'] }}:{% endfor %}"});
  const Words base = {"--model", in("model"), "--max_new_tokens", "12"};
  const Words prompt = {"--prompt", "one and one"}, message = {"--message", "hello"};
  const Words sampled = {"--prompt", "one and one", "--do_sample"};
  const Words beams = {"--prompt", "one and one", "--num_beams", "3"};
  write_adapter(in("adapter"));
  const Words adapted = {"--prompt", "one and one", "--adapter", "a=" + in("adapter"), "b=" + in("adapter")};
  std::string bytes = "0";  // ids of which some come
  for (int id = 1; id < 80; ++id) bytes += "," + std::to_string(id);
  const std::vector<FlagCase> cases = {
      {"--model", {in("other")}, prompt},
      {"--tokenizer", {in("nowhere")}, prompt},
      {"--adapter", {in("nowhere")}, prompt},
      {"--adapter_name", {"__base__"}, adapted},
      {"--prompt", {"two"}, prompt},
      {"--message", {"bye"}, message},
      {"--system", {"be kind"}, message},
      {"--input_file", {in("rows.jsonl")}},
      {"--chat_template", {in("chat.jinja")}, message},
      {"--skip_special_tokens", {"false"}, {"--prompt", "one", "--max_new_tokens", "400", "--do_sample"}},
      {"--max_new_tokens", {"3"}, prompt},
      {"--device", {"cuda"}, prompt},
      {"--min_new_tokens", {"200"}, {"--prompt", "one", "--max_new_tokens", "400", "--do_sample"}},
      {"--do_sample", {}, prompt},
      {"--temperature", {"0.01"}, sampled},
      {"--top_k", {"1"}, sampled},
      {"--top_p", {"0.01"}, sampled},
      {"--min_p", {"0.99"}, sampled},
      {"--typical_p", {"0.01"}, sampled},
      {"--repetition_penalty", {"5"}, prompt},
      {"--no_repeat_ngram_size", {"1"}, prompt},
      {"--num_beams", {"3"}, prompt},
      {"--length_penalty", {"-20"}, {"--prompt", "one", "--num_beams", "3", "--max_new_tokens", "200"}},
      {"--num_return_sequences", {"2"}, beams},
      {"--seed", {"1"}, sampled},
      {"--max_length", {"9"}, prompt},
      {"--epsilon_cutoff", {"0.9"}, sampled},
      {"--early_stopping",
       {"true"},
       {"--prompt", "one and one", "--num_beams", "3", "--eos_token_id", bytes, "--length_penalty", "5"}},
      {"--eos_token_id", {bytes}, prompt},
      {"--bad_words_ids", {"[[" + std::regex_replace(bytes, std::regex(","), "],[") + "]]"}, prompt},
  };
  const std::vector<Unseen> unseen = {{"--batch_size", "time and memory"},
                                      {"--stream", "when the text appears"},
                                      {"--gather", "where parameters lie"},
                                      {"--dtype", "how scores are rounded"},
                                      {"--renormalize_logits", "scores that are compared with each other"}};
  GenerateOptions options;
  DecodingFlags decoding;
  const config::OptionTable table = generate_table(options, decoding);
  SweptTask task(generate, base, in("out"));
  const auto notes = [](const Words& args) {
    std::ostringstream quiet;
    return parse_generate(args, quiet)->notes;
  };
  sweep(table, task, notes, cases, unseen);
}

TEST(GenerateFlags, RowsTakeTheirAdaptersAndKeepTheirOrder) {
  const test::TempFolder folder("generate_adapters");
  const auto in = [&](const std::string& name) { return folder.path() + "/" + name; };
  make_model(kTinyChat, in("model"));
  write_adapter(in("loud"));
  write_adapter(in("other"));
  write_lines(in("rows.jsonl"),
              {R"({"prompt": "one", "adapter": "loud"})", R"({"prompt": "one", "adapter": "__base__"})",
               R"({"prompt": "two", "adapter": "loud"})", R"({"prompt": "one"})"});
  const auto run = [&](Words more) {
    Words words = {"--model", in("model"), "--max_new_tokens", "5"};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out, err;
    EXPECT_EQ(generate(words, out, err), 0) << err.str();
    return out.str();
  };
  std::istringstream lines(run({"--adapter", in("loud"), "--adapter", "b=" + in("other"), "--adapter_name", "__base__",
                                "--input_file", in("rows.jsonl"), "--batch_size", "1"}));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 4u);
  const auto text = [&](std::size_t row) { return rows[row]["generated"][0].get<std::string>() + "\n"; };
  EXPECT_EQ(text(0), run({"--adapter", in("loud"), "--prompt", "one"}));
  EXPECT_EQ(text(2), run({"--adapter", in("loud"), "--prompt", "two"}));
  EXPECT_EQ(text(1), run({"--prompt", "one"}));
  EXPECT_EQ(text(3), text(1));
  EXPECT_NE(text(0), text(1));
  EXPECT_EQ(rows[0]["adapter"], "loud");
}

TEST(GenerateFlags, SamplingFlagsOfAModelThatTakesTheLikeliestTokensAreNoted) {
  const test::TempFolder folder("generate_notes");
  const std::string model = folder.path() + "/model";
  make_model(kTinyChat, model);
  std::ostringstream out, err;
  ASSERT_EQ(generate({"--model", model, "--prompt", "one", "--max_new_tokens", "1", "--temperature", "0.5",
                      "--length_penalty", "2", "--batch_size", "2"},
                     out, err),
            0);
  EXPECT_EQ(err.str(),
            "--batch_size has no effect without --input_file\n"
            "--temperature has no effect without --do_sample\n"
            "--length_penalty has no effect without --num_beams above 1\n");
}

TEST(GenerateFlags, DtypeIsThatOfTheWeightsAndTheScores) {
  const test::TempFolder folder("generate_dtype");
  const std::string model = folder.path() + "/model", half = folder.path() + "/half";
  make_model(kTinyChat, model);
  std::ostringstream quiet;
  ASSERT_EQ(init_model({kTinyChat, half, "--dtype", "bfloat16"}, quiet, quiet), 0);
  const auto opened = [](const std::string& of, checkpoint::WeightDtype dtype) {
    GenerateOptions options;
    options.model = of;
    options.dtype = dtype;
    return open_model(options, comm::make_solo());
  };
  using Dtype = checkpoint::WeightDtype;
  for (const auto& [of, dtype, expected] :
       {std::tuple{model, Dtype::kFloat32, at::kFloat}, std::tuple{model, Dtype::kBFloat16, at::kBFloat16},
        std::tuple{model, Dtype::kFloat16, at::kHalf}, std::tuple{model, Dtype::kAuto, at::kFloat},
        std::tuple{half, Dtype::kFloat32, at::kFloat}, std::tuple{half, Dtype::kAuto, at::kBFloat16}}) {
    const auto answers = opened(of, dtype);
    for (const auto& weight : answers.loaded.model->parameters()) EXPECT_EQ(weight.scalar_type(), expected);
  }
}

TEST(GenerateFlags, SeveralAnswersToOnePromptAreToldApart) {
  const test::TempFolder folder("generate_several");
  const std::string model = folder.path() + "/model";
  make_model(kTinyChat, model);
  const auto run = [&](const Words& more) {
    std::ostringstream out, err;
    Words words = {"--model", model, "--prompt", "one", "--max_new_tokens", "2", "--num_beams", "2"};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(generate(words, out, err), 0);
    return out.str();
  };
  const auto two = run({"--num_return_sequences", "2"});
  EXPECT_TRUE(two.starts_with("--- answer 1 of 2\n")) << two;
  EXPECT_NE(two.find("\n--- answer 2 of 2\n"), std::string::npos) << two;
  EXPECT_EQ(run({}).find("---"), std::string::npos);
}

TEST(GenerateFlags, APromptBeyondTheModelsPositionsIsNoted) {
  const test::TempFolder folder("generate_positions");
  const std::string model = folder.path() + "/model";
  std::filesystem::copy(kTinyChat, folder.path() + "/config");
  auto config = nlohmann::json::parse(read_file(kTinyChat + "/config.json"));
  config["max_position_embeddings"] = 8;
  write_file_atomically(folder.path() + "/config/config.json", config.dump());
  make_model(folder.path() + "/config", model);
  const auto said = [&](const std::string& new_tokens) {
    std::ostringstream out, err;
    EXPECT_EQ(generate({"--model", model, "--prompt", "o", "--max_new_tokens", new_tokens}, out, err), 0);
    return err.str();
  };
  EXPECT_EQ(said("2"), "");
  EXPECT_NE(said("40").find("more than the 8 positions that the model was made for"), std::string::npos) << said("40");
}

TEST(GenerateFlags, WhatIsNotBuiltIsRefusedWithWhatThereIsInstead) {
  std::ostringstream quiet;
  const auto refused = [&](const Words& more) -> std::string {
    Words words = {"--model", "m", "--prompt", "a"};
    words.insert(words.end(), more.begin(), more.end());
    try {
      (void)parse_generate(words, quiet);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return {};
  };
  EXPECT_NE(refused({"--stop_strings", "END"}).find("--eos_token_id"), std::string::npos);
  EXPECT_NE(refused({"--bad_words_ids", "[5]"}).find("expects lists of token ids"), std::string::npos);
  EXPECT_NE(refused({"--eos_token_id", "end"}).find("expects token ids"), std::string::npos);
  EXPECT_EQ(refused({"--eos_token_id", "2,7", "--max_length", "9"}), "");
}

TEST(GenerateFlags, EverythingWrongIsSaidAtOnce) {
  std::ostringstream quiet;
  try {
    (void)parse_generate({"--prompt", "a", "--message", "b", "--temprature", "1", "--top_p", "3", "--system", "c"},
                         quiet);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_EQ(std::string(e.what()),
              "4 problems with the command line:\n"
              "  unknown flag --temprature (did you mean '--temperature'?)\n"
              "  --model is required (folder, or name on the Hub, of the model or of an adapter)\n"
              "  give exactly one of --prompt, --message and --input_file\n"
              "  --top_p must lie between 0 and 1\n"
              "'tessera generate --help' lists all flags");
  }
}

}  // namespace
}  // namespace tessera::tasks
