#include <arrow/ipc/reader.h>

#include "data/parquet/batch_source.h"
#include "data/parquet/parquet_rows.h"

namespace tessera::data {
namespace {

class ArrowSource : public BatchSource {
 public:
  explicit ArrowSource(const std::string& file) : BatchSource(file) {
    is_stream_ = mapped_.read([this] { return open_file(); });
  }

 private:
  bool open_file() {
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.memory_pool = &memory_;
    if (mapped_.text().starts_with("ARROW1")) {
      table_ = take(arrow::ipc::RecordBatchFileReader::Open(whole_file(), options));
      return false;
    }
    stream_ = take(arrow::ipc::RecordBatchStreamReader::Open(whole_file(), options));
    return true;
  }

  std::shared_ptr<arrow::RecordBatch> next_batch() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    if (is_stream_)
      require(stream_->ReadNext(&batch));
    else if (next_ < table_->num_record_batches())
      batch = take(table_->ReadRecordBatch(next_++));
    if (batch != nullptr) require(batch->ValidateFull());  // lengths and places are as the file has them
    return batch;
  }

  bool is_stream_ = false;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> stream_;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> table_;
  int next_ = 0;
};

}  // namespace

std::unique_ptr<RowSource> open_arrow(const std::string& file) {
  return std::make_unique<ArrowSource>(file);
}

}  // namespace tessera::data
