#include "tasks/quantize.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/file.h"
#include "checkpoint/model_files.h"
#include "config/options.h"
#include "families/model_folder.h"
#include "io/tensor_source.h"
#include "models/check_sizes.h"
#include "models/gguf_model.h"
#include "models/pack_layers.h"
#include "quant/four_bit_codec.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

struct Settings {
  std::string model, output;
  families::Quantization quantization;
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kAuto;
  bool overwrite = false;
};

std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

template <class Map>
at::Tensor table_of(const Map& values) {
  auto table = at::empty({static_cast<std::int64_t>(values.size())}, at::kFloat);
  std::memcpy(table.mutable_data_ptr(), values.data(), sizeof(values));
  return table;
}

/// The JSON of bitsandbytes' quant_state, spaced as Python does it.
std::string state_json(const families::Quantization& q, at::ScalarType dtype, const std::vector<std::int64_t>& shape,
                       float offset) {
  auto text = fmt::format(R"({{"quant_type": "{}", "blocksize": 64, "dtype": "{}", "shape": [{}, {}])", q.quant_type,
                          dtype_name(dtype), shape[0], shape[1]);
  if (q.double_quant)
    text += fmt::format(R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": {})",
                        nlohmann::json(static_cast<double>(offset)).dump());
  return text + "}";
}

/// Writes a folder of packed and dense tensors.
class PackedWriter {
 public:
  PackedWriter(const Settings& settings, const quant::PackedSource& source, at::ScalarType dtype)
      : s_(settings),
        source_(source),
        dtype_(dtype),
        storage_(c10::getStringToDtypeMap().at(settings.quantization.quant_storage)) {}

  /// Packed matrices.
  std::int64_t write(const std::string& file) {
    std::vector<io::TensorInfo> infos;
    std::int64_t packed = 0;
    for (const auto& info : source_.tensors()) {
      if (source_.codec(info.name)) {
        announce(info, infos);
        ++packed;
      } else if (!is_statistic(info.name)) {
        auto dense = info;
        dense.dtype = checkpoint::stored_as(info.dtype, dtype_);
        infos.push_back(std::move(dense));
      }
    }
    io::SafetensorsWriter writer(file, infos);
    for (const auto& info : source_.tensors()) {
      if (source_.codec(info.name)) {
        write_packed(writer, info);
      } else if (!is_statistic(info.name)) {
        const auto dtype = checkpoint::stored_as(info.dtype, dtype_);
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
  std::string state_name(const std::string& name) const {
    return name + ".quant_state.bitsandbytes__" + s_.quantization.quant_type;
  }
  std::string state_of(const io::TensorInfo& info) const {
    float offset = 0;
    if (s_.quantization.double_quant) {
      auto bytes = at::empty({static_cast<std::int64_t>(sizeof offset)}, at::kByte);
      source_.read_bytes(info.name + ".nested_offset", 0, bytes);
      std::memcpy(&offset, bytes.const_data_ptr(), sizeof offset);
    }
    return state_json(s_.quantization, dtype_, info.shape, offset);
  }
  std::vector<tensor::PackedField> fields_of(const io::TensorInfo& info) const {
    return source_.codec(info.name)->fields(info.shape[0], info.shape[1]);
  }

  void announce(const io::TensorInfo& info, std::vector<io::TensorInfo>& infos) const {
    const auto add = [&](const std::string& name, at::ScalarType dtype, std::vector<std::int64_t> shape) {
      infos.push_back({name, dtype, std::move(shape), info.file});
    };
    const auto size = static_cast<std::int64_t>(c10::elementSize(storage_));
    for (const auto& field : fields_of(info)) {
      if (field.is_codes()) {
        if (field.shape[0] % size != 0)
          throw ConfigError(fmt::format("'{}' has {} bytes of codes, which are no whole number of {}: take "
                                        "--bnb_4bit_quant_storage uint8",
                                        info.name, field.shape[0], s_.quantization.quant_storage),
                            "bnb_4bit_quant_storage");
        add(info.name, storage_, {field.shape[0] / size, 1});
      } else if (field.name != "nested_offset") {
        add(field.full_name(info.name), field.dtype, field.shape);
      }
    }
    add(info.name + ".quant_map", at::kFloat, {16});
    if (s_.quantization.double_quant) add(info.name + ".nested_quant_map", at::kFloat, {256});
    add(state_name(info.name), at::kByte, {static_cast<std::int64_t>(state_of(info).size())});
  }

  void write_packed(io::SafetensorsWriter& writer, const io::TensorInfo& info) const {
    for (const auto& field : fields_of(info)) {
      if (field.name == "nested_offset") continue;
      const auto name = field.full_name(info.name);
      auto values = at::empty(field.shape, field.dtype);
      source_.read_bytes(name, 0, values.view(-1).view(at::kByte));
      if (field.is_codes()) values = values.view(-1).view(storage_).view({-1, 1});
      writer.write(name, values);
    }
    const auto type = quant::four_bit_type(s_.quantization.quant_type).value();
    writer.write(info.name + ".quant_map", table_of(quant::four_bit_values(type)));
    if (s_.quantization.double_quant) writer.write(info.name + ".nested_quant_map", table_of(quant::dynamic_map(true)));
    const auto state = state_of(info);
    auto bytes = at::empty({static_cast<std::int64_t>(state.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), state.data(), state.size());
    writer.write(state_name(info.name), bytes);
  }

  const Settings& s_;
  const quant::PackedSource& source_;
  at::ScalarType dtype_, storage_;
};

config::OptionTable quantize_table(Settings& s) {
  config::OptionTable table("tessera quantize",
                            "packs the linear layers of a model in 4 bits, as bitsandbytes and transformers do");
  table.positional(&s.model, "MODEL", "folder of a model");
  table.positional(&s.output, "OUTPUT_FOLDER", "folder to write");
  table.add(&s.quantization.quant_type, {"--type", "--bnb_4bit_quant_type"}, "values that the codes stand for")
      .choices({"nf4", "fp4"});
  table.add(&s.quantization.double_quant, {"--double_quant", "--use_nested_quant", "--bnb_4bit_use_double_quant"},
            "pack the scales of the blocks in 8 bits, too: 4.13 bits an element, not 4.5");
  table
      .add(&s.quantization.quant_storage, {"--bnb_4bit_quant_storage", "--bnb_4bit_quant_storage_dtype"},
           "dtype of the packed bytes in the file; PyTorch's FSDP wants that of the other weights")
      .choices({"uint8", "bfloat16", "float16", "float32"});
  table.add_enum(&s.dtype, checkpoint::dtype_choices(), {"--dtype"},
                 "of the other weights, to which all are rounded first; auto: as config.json says");
  table.add(&s.quantization.skip_modules, {"--skip_modules"}, "modules that stay dense, besides the output head");
  table.add(&s.overwrite, {"--overwrite_output_dir"}, "replace weights that are already there");
  return table;
}

}  // namespace

int quantize(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  Settings s;
  auto table = quantize_table(s);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const auto folder = families::find_model_folder(s.model), file = s.output + "/model.safetensors";
  if (!s.overwrite && std::filesystem::exists(file))
    throw CheckpointError("'" + file + "' exists already. Give another folder, or --overwrite_output_dir.", file);
  const auto dense = models::open_model_weights(folder);
  models::check_sizes(folder, *dense);
  models::ModelConfig config;
  const auto model = models::build_model(folder, &config);
  if (config.quantization)
    throw ConfigError("the weights of '" + folder +
                          "' are packed already; name the folder of the model they were made "
                          "from",
                      "MODEL");
  const auto dtype = checkpoint::chosen_dtype(s.dtype).value_or(config.stored_dtype);
  s.quantization.compute_dtype = dtype_name(dtype);
  const auto source = models::pack_while_reading(*model, config, s.quantization, dense, dtype);
  ensure_writable_folder(s.output);
  const auto packed = PackedWriter(s, *source, dtype).write(file);
  checkpoint::copy_model_files({.model = folder, .tokenizer = folder}, s.output,
                               {.dtype = dtype, .quantization = s.quantization});
  out << fmt::format("{} with {} layers of {} saved in {}\n", config.model_type, packed, s.quantization.quant_type,
                     s.output);
  return 0;
}

}  // namespace tessera::tasks
