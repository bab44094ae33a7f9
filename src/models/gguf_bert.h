#pragma once
// BERT, RoBERTa and XLM-RoBERTa as GGUF files, which all are of architecture "bert".
#include <nlohmann/json_fwd.hpp>

#include "families/bert_config.h"
#include "io/gguf.h"
#include "models/gguf_export.h"

namespace tessera::models {

GgufSubject gguf_bert_subject(const families::BertConfig& config);

/// A file without its own tensors: its keys. ConfigError for what its readers have no code for.
GgufExport gguf_bert_keys(const families::BertConfig& config, const nlohmann::json& json);

/// The other way round: config.json's keys, without those of the vocabulary. What was a RoBERTa is read as a BERT,
/// which computes the same.
nlohmann::json gguf_bert_config(const io::GgufFile& file);

}  // namespace tessera::models
