#include "text/tokenizer_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "text/special_names.h"

namespace tessera::text {
namespace {

const SpecialTokens kNone;
const SpecialTokens kBert{.unk = "[UNK]", .sep = "[SEP]", .pad = "[PAD]", .cls = "[CLS]", .mask = "[MASK]"};
const SpecialTokens kDeberta{
    .bos = "[CLS]", .eos = "[SEP]", .unk = "[UNK]", .sep = "[SEP]", .pad = "[PAD]", .cls = "[CLS]", .mask = "[MASK]"};
const SpecialTokens kAlbert{
    .bos = "[CLS]", .eos = "[SEP]", .unk = "<unk>", .sep = "[SEP]", .pad = "<pad>", .cls = "[CLS]", .mask = "[MASK]"};
const SpecialTokens kRoberta{
    .bos = "<s>", .eos = "</s>", .unk = "<unk>", .sep = "</s>", .pad = "<pad>", .cls = "<s>", .mask = "<mask>"};
const SpecialTokens kMpnet{
    .bos = "<s>", .eos = "</s>", .unk = "[UNK]", .sep = "</s>", .pad = "<pad>", .cls = "<s>", .mask = "<mask>"};
const SpecialTokens kBigBird{
    .bos = "<s>", .eos = "</s>", .unk = "<unk>", .sep = "[SEP]", .pad = "<pad>", .cls = "[CLS]", .mask = "[MASK]"};
const SpecialTokens kFnet{.unk = "<unk>", .sep = "[SEP]", .pad = "<pad>", .cls = "[CLS]", .mask = "[MASK]"};
const SpecialTokens kHerbert{.unk = "<unk>", .sep = "</s>", .pad = "<pad>", .cls = "<s>", .mask = "<mask>"};
const SpecialTokens kFunnel{
    .bos = "<s>", .eos = "</s>", .unk = "<unk>", .sep = "<sep>", .pad = "<pad>", .cls = "<cls>", .mask = "<mask>"};
const SpecialTokens kXlnet{.bos = "<s>",
                           .eos = "</s>",
                           .unk = "<unk>",
                           .sep = "<sep>",
                           .pad = "<pad>",
                           .cls = "<cls>",
                           .mask = "<mask>",
                           .additional = {"<eop>", "<eod>"}};
const SpecialTokens kCamembert{.bos = "<s>",
                               .eos = "</s>",
                               .unk = "<unk>",
                               .sep = "</s>",
                               .pad = "<pad>",
                               .cls = "<s>",
                               .mask = "<mask>",
                               .additional = {"<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"}};
const SpecialTokens kGpt2{.bos = "<|endoftext|>", .eos = "<|endoftext|>", .unk = "<|endoftext|>"};
const SpecialTokens kQwen2{.eos = "<|endoftext|>", .unk = "<|endoftext|>", .pad = "<|endoftext|>"};
const SpecialTokens kLlama{.bos = "<s>", .eos = "</s>", .unk = "<unk>"};
const SpecialTokens kCodeLlama{
    .bos = "<s>",
    .eos = "</s>",
    .unk = "<unk>",
    .additional = {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<MID>", "\xE2\x96\x81<SUF>", "\xE2\x96\x81<EOT>"}};
const SpecialTokens kGemma{.bos = "<bos>", .eos = "<eos>", .unk = "<unk>", .pad = "<pad>"};
const SpecialTokens kBloom{.bos = "<s>", .eos = "</s>", .unk = "<unk>", .pad = "<pad>"};
const SpecialTokens kCohere{.bos = "<BOS_TOKEN>", .eos = "<|END_OF_TURN_TOKEN|>", .unk = "<UNK>"};
const SpecialTokens kT5{.eos = "</s>", .unk = "<unk>", .pad = "<pad>"};
const SpecialTokens kReformer{.eos = "</s>", .unk = "<unk>"};
const SpecialTokens kUnknown{.unk = "<unk>"};

constexpr unsigned kBertRules = kLowercases | kSpacesIdeographs, kBertKind = kBertRules | kGivesTypeIds;

const TokenizerClass kTokenizerClasses[] = {
    {"PreTrained", kGivesTypeIds, kNone},
    {"Albert", kMaskTakesSpace | kGivesTypeIds, kAlbert},
    {"Bart", kTrimsOffsets | kMaskTakesSpace | kMaskIsNormalized, kRoberta},
    {"Barthez", kMaskTakesSpace, kRoberta},
    {"Bert", kBertKind, kBert},
    {"BigBird", kMaskTakesSpace | kFlagsNames, kBigBird},
    {"Blenderbot", kTrimsOffsets | kMaskTakesSpace, kRoberta},
    {"Bloom", kPrefixesNested, kBloom},
    {"Camembert", kMaskTakesSpace, kCamembert},
    {"CodeGen", 0, kGpt2},
    {"CodeLlama", kBeginsRows | kOwnAdditional, kCodeLlama},
    {"Cohere", kBeginsRows | kPrefixesNested, kCohere},
    {"ConvBert", kBertKind, kBert},
    {"Deberta", kGivesTypeIds, kDeberta},
    {"DebertaV2", kGivesTypeIds, kDeberta},
    {"DistilBert", kBertRules, kBert},
    {"DPRContextEncoder", kBertKind, kBert},
    {"DPRQuestionEncoder", kBertKind, kBert},
    {"DPRReader", kBertRules, kBert},
    {"Electra", kBertKind, kBert},
    {"FNet", kMaskTakesSpace | kGivesTypeIds, kFnet},
    {"Funnel", kBertKind, kFunnel},
    {"GPT2", 0, kGpt2},
    {"GPTNeoX", kMayBeginRows | kOwnPad, kGpt2},
    {"Gemma", kBeginsRows, kGemma},
    {"Herbert", kGivesTypeIds, kHerbert},
    {"LED", kTrimsOffsets | kMaskTakesSpace, kRoberta},
    {"LayoutLM", kBertKind, kBert},
    {"Llama", kBeginsRows | kRebuilds | kOwnPrefix, kLlama},
    {"Longformer", kTrimsOffsets | kMaskTakesSpace, kRoberta},
    {"Lxmert", kBertKind, kBert},
    {"MPNet", kLowercases | kMaskTakesSpace | kFlagsNames, kMpnet},
    {"MT5", kRebuilds | kExtraIds | kOwnPrefix, kT5},
    {"MobileBert", kBertKind, kBert},
    {"Mvp", kTrimsOffsets | kMaskTakesSpace | kFlagsNames, kRoberta},
    {"Nougat", 0, kBloom},
    {"OpenAIGPT", 0, kUnknown},
    {"Parakeet", kGivesTypeIds, kNone},
    {"Qwen2", kFlagsNames, kQwen2},
    {"Realm", kBertKind, kBert},
    {"Reformer", 0, kReformer},
    {"RemBert", kMaskTakesSpace | kGivesTypeIds, kAlbert},
    {"RetriBert", kBertRules, kBert},
    {"Roberta", kTrimsOffsets | kMaskTakesSpace, kRoberta},
    {"SqueezeBert", kBertKind, kBert},
    {"T5", kRebuilds | kExtraIds | kOwnPrefix, kT5},
    {"XLMRoberta", kMaskTakesSpace, kRoberta},
    {"XLNet", kMaskTakesSpace | kGivesTypeIds, kXlnet},
};

struct Refused {
  std::string_view families, reason;
};
constexpr std::string_view kPython = "it works in Python alone, transformers has no fast form of it";
constexpr Refused kRefused[] = {
    {"MBart MBart50 Nllb SeamlessM4T", "its rows carry codes of languages that are chosen for each text"},
    {"LayoutLMv2 LayoutLMv3 LayoutXLM MarkupLM Udop", "it takes words with their places on a page, not texts"},
    {"RoFormer Cpm", "it cuts Chinese into words by a dictionary of its own"},
    {"CLIP Whisper", "it decodes by rules of its own"},
    {"Pegasus Splinter XGLM", "it puts special tokens of its own into the vocabulary"},
    {"BlenderbotSmall", "it ignores tokenizer.json"},
    {"MistralCommon", "it needs the package mistral-common"},
    {"Bartpho BertGeneration BertJapanese Bertweet BioGpt ByT5 CTRL Canine Clvp CpmAnt Dia ErnieM Esm FSMT "
     "FastSpeech2Conformer Flaubert GPTNeoXJapanese GPTSanJapanese GPTSw3 Jukebox Luke M2M100 MLuke Marian Mgpstr MyT5",
     kPython},
    {"PLBart Perceiver Phobert Pop2Piano ProphetNet Rag RoCBert Siglip Speech2Text2 Speech2Text SpeechT5 Tapas Tapex "
     "TransfoXL Vits Wav2Vec2CTC Wav2Vec2 Wav2Vec2PhonemeCTC XLMProphetNet XLM",
     kPython},
};

struct ModelTypes {
  std::string_view family, types;
};
constexpr ModelTypes kModelTypes[] = {
    {"Albert", "albert nystromformer yoso"},
    {"Bart", "bart"},
    {"Bert",
     "align bark bert blip bros chinese_clip ernie git grounding-dino megatron-bert nezha qdqbert tvp vilt "
     "visual_bert"},
    {"BigBird", "big_bird"},
    {"Blenderbot", "blenderbot"},
    {"Bloom", "bloom"},
    {"Camembert", "camembert"},
    {"CodeGen", "codegen phi"},
    {"CodeLlama", "code_llama"},
    {"Cohere", "aya_vision cohere cohere2"},
    {"ConvBert", "convbert"},
    {"Deberta", "deberta"},
    {"DebertaV2", "deberta-v2"},
    {"DistilBert", "distilbert"},
    {"Electra", "electra"},
    {"FNet", "fnet"},
    {"Funnel", "funnel"},
    {"GPT2",
     "blip-2 dbrx emu3 exaone4 gpt2 gpt_bigcode gpt_neo gptj granite granitemoe granitemoehybrid granitemoeshared "
     "instructblip minimax opt starcoder2 flex_olmo olmo3"},
    {"GPTNeoX", "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmo2 olmoe rwkv stablelm xlstm"},
    {"Gemma", "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 siglip2 t5gemma"},
    {"Herbert", "herbert"},
    {"LED", "led"},
    {"LayoutLM", "layoutlm"},
    {"Llama",
     "arcee aria chameleon colpali deepseek_v2 deepseek_v3 deepseek_vl diffllama ernie4_5 ernie4_5_moe idefics "
     "idefics2 idefics3 jamba janus jetmoe llama llama4 llama4_text llava llava_next llava_onevision ministral "
     "mistral mistral3 mixtral mllama paligemma persimmon phi3 phimoe video_llava vipllava zamba zamba2"},
    {"Longformer", "longformer"},
    {"MPNet", "mpnet"},
    {"MT5", "mt5"},
    {"MobileBert", "mobilebert"},
    {"Mvp", "mvp"},
    {"OpenAIGPT", "openai-gpt"},
    {"PreTrained",
     "bitnet blt falcon glm glm4 glm4_moe glm4v glm4v_moe gpt_oss helium modernbert moshi nemotron pixtral "
     "smollm3 voxtral"},
    {"Qwen2",
     "colqwen2 internvl qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_next "
     "qwen3_omni_moe qwen3_vl qwen3_vl_moe"},
    {"Reformer", "reformer"},
    {"RemBert", "rembert"},
    {"Roberta", "bridgetower clap data2vec-text ibert mega mra roberta roberta-prelayernorm"},
    {"SqueezeBert", "squeezebert"},
    {"T5", "longt5 musicgen musicgen_melody pix2struct switch_transformers t5 umt5"},
    {"XLMRoberta", "kosmos-2 metaclip_2 xlm-roberta xlm-roberta-xl xmod"},
    {"XLNet", "xlnet"},
};

// `words`: parted by spaces.
bool lists(std::string_view words, std::string_view word) {
  for (auto at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    const auto end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ')) return !word.empty();
  }
  return false;
}

[[noreturn]] void refuse(const std::string& name, std::string_view reason, const std::string& file) {
  throw DataError(fmt::format("{}: the tokenizer class {} is not supported: {}", file, name, reason), file);
}

}  // namespace

std::string tokenizer_family(std::string_view class_name) {
  if (class_name == "TokenizersBackend") return "PreTrained";  // what transformers 5 calls it
  for (const std::string_view suffix : {"Fast", "Tokenizer"})
    if (class_name.ends_with(suffix)) class_name.remove_suffix(suffix.size());
  return std::string(class_name);
}

const TokenizerClass* find_tokenizer_class(const std::string& name, const std::string& file) {
  if (name.empty()) return nullptr;
  const auto family = tokenizer_family(name);
  const auto it = std::find_if(std::begin(kTokenizerClasses), std::end(kTokenizerClasses),
                               [&](const TokenizerClass& known) { return known.family == family; });
  if (it != std::end(kTokenizerClasses)) return &*it;
  for (const auto& refused : kRefused)
    if (lists(refused.families, family)) refuse(name, refused.reason, file);
  refuse(name,
         "transformers has no class of this name. If the folder's tokenizer.json holds everything, name the class "
         "PreTrainedTokenizerFast",
         file);
}

std::string_view family_of_model_type(std::string_view model_type) {
  for (const auto& [family, types] : kModelTypes)
    if (lists(types, model_type)) return family;
  return {};
}

std::vector<std::string> special_list(const SpecialTokens& special) {
  std::vector<std::string> out;
  const auto take = [&](const std::string& token) {
    if (!token.empty() && std::find(out.begin(), out.end(), token) == out.end()) out.push_back(token);
  };
  for (const auto& [name, token] : kSpecialNames) take(special.*token);
  for (const auto& token : special.additional) take(token);
  return out;
}

void override_special(const SpecialTokens& with, SpecialTokens& special) {
  for (const auto& [name, token] : kSpecialNames)
    if (!(with.*token).empty()) special.*token = with.*token;
  if (!with.additional.empty()) special.additional = with.additional;
}

}  // namespace tessera::text
