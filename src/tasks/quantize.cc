#include "tasks/quantize.h"

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <cstring>
#include <filesystem>
#include <ostream>

#include "base/file.h"
#include "checkpoint/model_files.h"
#include "config/options.h"
#include "hub/model_folder.h"
#include "models/check_sizes.h"
#include "models/gguf_model.h"
#include "models/pack_layers.h"
#include "quant/packed_files.h"
#include "tasks/pack_flags.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {
namespace {

struct Settings {
  std::string model, output;
  PackFlags packed;
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kAuto;
  bool overwrite = false;
};

std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

/// Writes a folder of packed and dense tensors.
class PackedWriter {
 public:
  PackedWriter(const quant::PackedSource& source, const quant::FileForm& form) : source_(source), form_(form) {}

  /// Packed matrices.
  std::int64_t write(const std::string& file) {
    std::vector<io::TensorInfo> infos;
    std::int64_t packed = 0;
    for (const auto& info : source_.tensors()) {
      if (source_.codec(info.name)) {
        const auto offset = offset_of(info.name);
        for (auto& stored : quant::stored_infos(form_, info.name, info.shape[0], info.shape[1], offset))
          infos.push_back(std::move(stored));
        ++packed;
      } else if (!is_statistic(info.name)) {
        auto dense = info;
        dense.dtype = checkpoint::stored_as(info.dtype, form_.dtype);
        infos.push_back(std::move(dense));
      }
    }
    io::SafetensorsWriter writer(file, infos);
    for (const auto& info : source_.tensors()) {
      if (source_.codec(info.name)) {
        for (const auto& [name, tensor] :
             quant::stored_tensors(form_, info.name, matrix_of(info), quant::StateRoom::kExact))
          writer.write(name, tensor);
      } else if (!is_statistic(info.name)) {
        const auto dtype = checkpoint::stored_as(info.dtype, form_.dtype);
        writer.write(info.name, checkpoint::to_stored(io::read_tensor(source_, info.name), dtype, info.name));
      }
    }
    writer.commit();
    return packed;
  }

 private:
  bool is_statistic(const std::string& name) const {
    const auto dot = name.rfind('.');
    return dot != std::string::npos && source_.codec(name.substr(0, dot)) != nullptr;
  }
  /// Of double quantisation: 0 without.
  float offset_of(const std::string& name) const {
    float offset = 0;
    if (!source_.find(name + ".nested_offset")) return offset;
    auto bytes = at::empty({static_cast<std::int64_t>(sizeof offset)}, at::kByte);
    source_.read_bytes(name + ".nested_offset", 0, bytes);
    std::memcpy(&offset, bytes.const_data_ptr(), sizeof offset);
    return offset;
  }
  tensor::PackedMatrix matrix_of(const io::TensorInfo& info) const {
    tensor::PackedMatrix matrix{source_.codec(info.name), info.shape[0], info.shape[1], {}};
    for (const auto& field : matrix.codec->fields(matrix.rows, matrix.columns)) {
      auto& values = matrix.fields.emplace_back(at::empty(field.shape, field.dtype));
      source_.read_bytes(field.full_name(info.name), 0, values.view(-1).view(at::kByte));
    }
    return matrix;
  }

  const quant::PackedSource& source_;
  quant::FileForm form_;
};

config::OptionTable quantize_table(Settings& s) {
  config::OptionTable table("tessera quantize",
                            "packs the linear layers of a model in 4 or 8 bits, as bitsandbytes and transformers do");
  table.example("Llama-2-7b Llama-2-7b-nf4 --type nf4 --double_quant true");
  table.positional(&s.model, "MODEL", "folder, or name on the Hub, of a model");
  table.positional(&s.output, "OUTPUT_FOLDER", "folder to write");
  add_pack_flags(table, s.packed);
  table.add_enum(&s.dtype, checkpoint::dtype_choices(), {"--dtype"},
                 "of the other weights, to which all are rounded first; auto: as config.json says");
  table.add(&s.overwrite, {"--overwrite_output_dir"}, "replace weights that are already there");
  return table;
}

}  // namespace

int quantize(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  Settings s;
  s.packed.type = "nf4";
  auto table = quantize_table(s);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const auto folder = hub::find_model_folder(s.model), file = s.output + "/model.safetensors";
  if (!s.overwrite && std::filesystem::exists(file))
    throw CheckpointError("'" + file + "' exists already. Give another folder, or --overwrite_output_dir.", file);
  const auto dense = models::open_model_weights(folder);
  models::check_sizes(folder, *dense);
  models::ModelConfig config;
  const auto model = models::build_model(folder, &config);
  const auto packed_already = std::dynamic_pointer_cast<const quant::PackedSource>(dense);
  if (packed_already && !packed_already->is_also_dense())
    throw ConfigError("the weights of '" + folder +
                          "' are packed already; name the folder of the model they were made "
                          "from",
                      "MODEL");
  const auto dtype = checkpoint::chosen_dtype(s.dtype).value_or(config.stored_dtype);
  auto quantization = s.packed.quantization(config.output_embedding, dtype_name(dtype)).value();
  quantization.skip_modules = models::stated_skip_modules(*model, config, quantization);
  if (packed_already)
    models::check_not_packed(*model, models::layers_to_pack(*model, config, quantization), *packed_already, folder);
  if (const auto missing = models::missing_weights(*model, *dense); !missing.empty())
    out << fmt::format("'{}' lacks the tensors {}: what is written lacks them, too\n", folder, models::few_of(missing));
  const auto source = models::pack_while_reading(*model, config, quantization, dense, dtype);
  ensure_writable_folder(s.output);
  const auto packed = PackedWriter(*source, models::file_form(quantization, dtype)).write(file);
  checkpoint::copy_model_files({.model = folder, .tokenizer = folder}, s.output,
                               {.dtype = dtype, .quantization = quantization});
  out << fmt::format("{} with {} layers of {} saved in {}\n", config.model_type, packed, s.packed.type, s.output);
  return 0;
}

}  // namespace tessera::tasks
