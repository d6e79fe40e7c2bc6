// A server with the batching of TensorFlow Serving, for the tests: no package registry has its binary.
//
// TensorFlow Serving is a loader (LoadSavedModel), a session (Session::Run) and a scheduler (SharedBatchScheduler).
// All three belong to TensorFlow, so its package holds them. TensorFlow Serving adds only the class BatchingSession
// (tensorflow_serving/batching/batching_session.cc), which turns requests into tasks of the scheduler. This program
// does the same, under the same names: ComputeInputSize, MergeInputTensors, SplitOutputTensors, SplitInputTask.
//
// One difference: when the parts of a split request are joined again, TensorFlow Serving calls tensor::Concat, which
// looks at the first axis only. Parts of different widths then overwrite memory. This program looks at all axes, and
// answers INTERNAL.
//
// usage: batching_server MODEL_DIR KEY=VALUE... LIBRARY.so...
// The keys are those of BatchingParameters, and the flags tensorflow_intra_op_parallelism and
// tensorflow_inter_op_parallelism of TensorFlow Serving. The libraries hold operations, such as those of
// tensorflow-text.
//
// Standard input and standard output hold frames: 4 bytes of length, 8 bytes of number (both little-endian), and a
// NodeDef, the message of TensorFlow that maps names to tensors. In a request `op` names the signature, and `attr`
// holds its inputs. In the answer with the same number `attr` holds the outputs, or `error` and its `code`. Answers
// come in any order. The first answer, number 0, says that the model is loaded.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/unknown_field_set.h"
#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/kernels/batching_util/batch_scheduler_utils.h"
#include "tensorflow/core/kernels/batching_util/input_split_metadata.h"
#include "tensorflow/core/kernels/batching_util/shared_batch_scheduler.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/session.h"

namespace tensorflow {

void DisableXlaCompilation();  // as a server that was started without --xla_cpu_compilation_enabled

namespace {

using serving::Batch;
using serving::BatchScheduler;
using serving::SharedBatchScheduler;
using Tensors = std::vector<Tensor>;
using Done = std::function<void(const absl::Status&, Tensors)>;

struct Task : public serving::BatchTask {
  size_t size() const override { return rows; }

  size_t rows = 0;
  Tensors inputs;  // in the order of the signature's input names
  Done done;
};

using Scheduler = SharedBatchScheduler<Task>;

struct Options {
  Scheduler::Options scheduler;
  Scheduler::QueueOptions queue;
  SessionOptions session;
  bool pad_variable_length_inputs = false;
};

bool SameExceptFirstAxis(const TensorShape& one, const TensorShape& other) {
  if (one.dims() != other.dims()) return false;
  for (int axis = 1; axis < one.dims(); ++axis) {
    if (one.dim_size(axis) != other.dim_size(axis)) return false;
  }
  return true;
}

// Returns the number of rows of a request.
absl::Status ComputeInputSize(const Tensors& inputs, size_t* rows) {
  if (inputs.empty()) return absl::InvalidArgumentError("Batching session Run() must have at least one input tensor");
  for (const Tensor& input : inputs) {
    if (input.dims() == 0) {
      return absl::InvalidArgumentError("Batching session Run() input tensors must have at least one dimension.");
    }
    if (input.dim_size(0) != inputs[0].dim_size(0)) {
      return absl::InvalidArgumentError(
          "Batching session Run() input tensors must have equal 0th-dimension size");
    }
  }
  *rows = inputs[0].dim_size(0);
  return absl::OkStatus();
}

// Collects the answers to the parts of a split request, and joins them after the last one.
class Parts {
 public:
  Parts(size_t count, Done done) : outputs_(count), missing_(count), done_(std::move(done)) {}

  void Add(size_t part, const absl::Status& status, Tensors outputs) {
    {
      mutex_lock lock(mutex_);
      status_.Update(status);
      outputs_[part] = std::move(outputs);
      if (--missing_ > 0) return;
    }
    Tensors joined(outputs_[0].size());
    for (size_t output = 0; status_.ok() && output < joined.size(); ++output) {
      Tensors pieces;
      for (const Tensors& each : outputs_) pieces.push_back(each[output]);
      for (const Tensor& piece : pieces) {
        if (!SameExceptFirstAxis(piece.shape(), pieces[0].shape())) {
          status_.Update(absl::InternalError(absl::StrCat(
              "The parts of a split request have outputs of the shapes ", pieces[0].shape().DebugString(), " and ",
              piece.shape().DebugString(), ". TensorFlow Serving would overwrite memory.")));
        }
      }
      if (status_.ok()) status_.Update(tensor::Concat(pieces, &joined[output]));
    }
    done_(status_, std::move(joined));
  }

 private:
  mutex mutex_;
  absl::Status status_;
  std::vector<Tensors> outputs_;
  size_t missing_;
  Done done_;
};

absl::Status SplitInputTask(std::unique_ptr<Task>* task, int open_slots, int max_batch_size,
                            std::vector<std::unique_ptr<Task>>* parts) {
  const serving::internal::InputSplitMetadata metadata((*task)->rows, open_slots, max_batch_size);
  const auto& sizes = metadata.task_sizes();
  auto collected = std::make_shared<Parts>(sizes.size(), std::move((*task)->done));
  for (size_t part = 0; part < sizes.size(); ++part) {
    auto each = std::make_unique<Task>();
    each->rows = sizes[part];
    each->done = [collected, part](const absl::Status& status, Tensors outputs) {
      collected->Add(part, status, std::move(outputs));
    };
    parts->push_back(std::move(each));
  }
  const std::vector<int64_t> rows(sizes.begin(), sizes.end());
  for (const Tensor& input : (*task)->inputs) {
    Tensors pieces;
    TF_RETURN_IF_ERROR(tensor::Split(input, rows, &pieces));
    for (size_t part = 0; part < pieces.size(); ++part) (*parts)[part]->inputs.push_back(pieces[part]);
  }
  return absl::OkStatus();
}

// A signature with a queue of its own.
class BatchedSignature {
 public:
  BatchedSignature(Session* session, const SignatureDef& signature, const Options& options, Scheduler* scheduler)
      : session_(session), options_(options.queue) {
    for (const auto& [name, info] : std::map<std::string, TensorInfo>(signature.inputs().begin(),
                                                                      signature.inputs().end())) {
      input_names_.push_back(name);
      input_tensors_.push_back(info.name());
    }
    for (const auto& [name, info] : signature.outputs()) {
      output_names_.push_back(name);
      output_tensors_.push_back(info.name());
    }
    if (options_.enable_large_batch_splitting) options_.split_input_task_func = SplitInputTask;
    TF_CHECK_OK(scheduler->AddQueue(
        options_, [this](std::unique_ptr<Batch<Task>> batch) { ProcessBatch(std::move(batch)); }, &queue_));
  }

  void Run(const NodeDef& request, std::function<void(const absl::Status&, NodeDef)> answer) {
    auto task = std::make_unique<Task>();
    absl::Status status = Read(request, task.get());
    Done done = [this, answer](const absl::Status& status, Tensors outputs) {
      NodeDef response;
      for (size_t i = 0; status.ok() && i < outputs.size(); ++i) {
        outputs[i].AsProtoField((*response.mutable_attr())[output_names_[i]].mutable_tensor());
      }
      answer(status, std::move(response));
    };
    task->done = done;
    if (status.ok()) status = queue_->Schedule(&task);
    if (!status.ok()) done(status, {});
  }

 private:
  absl::Status Read(const NodeDef& request, Task* task) {
    std::map<std::string, Tensor> given;
    for (const auto& [name, value] : request.attr()) {
      if (!given[name].FromProto(value.tensor())) {
        return absl::InvalidArgumentError(absl::StrCat("Input ", name, " cannot be read."));
      }
    }
    for (const std::string& name : input_names_) {
      auto found = given.find(name);
      if (found == given.end()) return absl::InvalidArgumentError(absl::StrCat("Input ", name, " is missing."));
      task->inputs.push_back(found->second);
    }
    if (given.size() > input_names_.size()) return absl::InvalidArgumentError("There is an unknown input.");
    return ComputeInputSize(task->inputs, &task->rows);
  }

  void ProcessBatch(std::unique_ptr<Batch<Task>> batch) {
    batch->WaitUntilClosed();
    if (batch->empty()) return;
    std::vector<std::pair<std::string, Tensor>> inputs;
    std::vector<int64_t> sizes;
    for (int i = 0; i < batch->num_tasks(); ++i) sizes.push_back(batch->task(i).rows);
    const int rows = batch->size();
    const int padding = serving::GetNextAllowedBatchSize(rows, options_.allowed_batch_sizes, false) - rows;
    if (padding > 0) sizes.push_back(padding);
    Tensors outputs;
    absl::Status status = MergeInputTensors(*batch, padding, &inputs);
    if (status.ok()) status = session_->Run(inputs, output_tensors_, {}, &outputs);
    std::vector<Tensors> of_tasks(sizes.size());
    if (status.ok()) status = SplitOutputTensors(outputs, sizes, rows + padding, &of_tasks);
    for (int i = 0; i < batch->num_tasks(); ++i) {
      batch->mutable_task(i)->done(status, status.ok() ? std::move(of_tasks[i]) : Tensors());
    }
  }

  // Joins the inputs of all tasks. The first row of the last task fills the batch up.
  absl::Status MergeInputTensors(const Batch<Task>& batch, int padding,
                                 std::vector<std::pair<std::string, Tensor>>* merged) {
    for (size_t input = 0; input < input_names_.size(); ++input) {
      Tensors pieces;
      for (int i = 0; i < batch.num_tasks(); ++i) {
        pieces.push_back(batch.task(i).inputs[input]);
        if (!SameExceptFirstAxis(pieces.back().shape(), pieces[0].shape())) {
          return absl::FailedPreconditionError(absl::StrCat(
              "Tensors with name '", input_tensors_[input],
              "' from different tasks have different shapes and padding is turned off. Set "
              "pad_variable_length_inputs to true, or ensure that all tensors with the same name have equal "
              "dimensions starting with the first dim."));
        }
      }
      // As in TensorFlow Serving, Slice ends the process if the last request has no row.
      if (padding > 0) {
        const Tensor row = pieces.back().Slice(0, 1);
        pieces.insert(pieces.end(), padding, row);
      }
      Tensor whole;
      const absl::Status joined = tensor::Concat(pieces, &whole);
      if (!joined.ok()) {
        return absl::InternalError(absl::StrCat("Tensor concat operation failed: ", joined.message()));
      }
      merged->emplace_back(input_tensors_[input], std::move(whole));
    }
    return absl::OkStatus();
  }

  absl::Status SplitOutputTensors(const Tensors& outputs, const std::vector<int64_t>& sizes, int rows,
                                  std::vector<Tensors>* of_tasks) {
    for (size_t output = 0; output < outputs.size(); ++output) {
      if (outputs[output].dims() == 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("Batched output tensor ", output_names_[output], " has 0 dimensions"));
      }
      if (outputs[output].dim_size(0) != rows) {
        return absl::FailedPreconditionError(
            absl::StrCat("Batched output tensor's 0th dimension of ", output_names_[output],
                         " does not equal the sum of the 0th dimension sizes of the input tensors"));
      }
      Tensors pieces;
      TF_RETURN_IF_ERROR(tensor::Split(outputs[output], sizes, &pieces));
      for (size_t i = 0; i < pieces.size(); ++i) (*of_tasks)[i].push_back(pieces[i]);
    }
    return absl::OkStatus();
  }

  Session* session_;
  Scheduler::QueueOptions options_;
  std::vector<std::string> input_names_, input_tensors_, output_names_, output_tensors_;
  std::unique_ptr<BatchScheduler<Task>> queue_;
};

// Reads the settings, with the rules of TensorFlow Serving's WrapSessionForBatching.
absl::Status ReadOptions(const std::map<std::string, std::vector<int64_t>>& settings, Options* options) {
  auto get = [&](const char* key, int64_t otherwise) {
    auto found = settings.find(key);
    return found == settings.end() ? otherwise : found->second[0];
  };
  auto& queue = options->queue;
  queue.input_batch_size_limit = get("max_batch_size", queue.input_batch_size_limit);
  queue.batch_timeout_micros = get("batch_timeout_micros", queue.batch_timeout_micros);
  queue.max_enqueued_batches = get("max_enqueued_batches", queue.max_enqueued_batches);
  queue.enable_large_batch_splitting = get("enable_large_batch_splitting", 0);
  queue.max_execution_batch_size = queue.enable_large_batch_splitting
                                       ? get("max_execution_batch_size", queue.input_batch_size_limit)
                                       : queue.input_batch_size_limit;
  options->scheduler.num_batch_threads = get("num_batch_threads", options->scheduler.num_batch_threads);
  options->session.config.set_intra_op_parallelism_threads(get("tensorflow_intra_op_parallelism", 0));
  options->session.config.set_inter_op_parallelism_threads(get("tensorflow_inter_op_parallelism", 0));
  auto sizes = settings.find("allowed_batch_sizes");
  if (sizes != settings.end()) {
    queue.allowed_batch_sizes.assign(sizes->second.begin(), sizes->second.end());
    if (queue.allowed_batch_sizes.back() != static_cast<int>(queue.max_execution_batch_size)) {
      return absl::InvalidArgumentError("Last entry in allowed_batch_sizes must match max_batch_size");
    }
  }
  return absl::OkStatus();
}

// Reads assets.extra/saved_model_config.pb as TensorFlow Serving does (saved_model_config_util.cc). Its messages are in
// no package: session_overrides is field 1, and disable_meta_optimizer is field 3 of that.
absl::Status ReadModelConfig(const std::string& model, ConfigProto* config) {
  std::string bytes;
  const std::string path = model + "/assets.extra/saved_model_config.pb";
  if (!Env::Default()->FileExists(path).ok()) return absl::OkStatus();
  TF_RETURN_IF_ERROR(ReadFileToString(Env::Default(), path, &bytes));
  google::protobuf::UnknownFieldSet fields, overrides;
  if (!fields.ParseFromString(bytes)) return absl::InvalidArgumentError("The model's config cannot be read.");
  for (int i = 0; i < fields.field_count(); ++i) {
    if (fields.field(i).number() != 1) continue;
    if (!overrides.ParseFromString(std::string(fields.field(i).length_delimited()))) {
      return absl::InvalidArgumentError("The model's config cannot be read.");
    }
    for (int j = 0; j < overrides.field_count(); ++j) {
      if (overrides.field(j).number() == 3) {
        config->mutable_graph_options()->mutable_rewrite_options()->set_disable_meta_optimizer(
            overrides.field(j).varint());
      }
    }
  }
  return absl::OkStatus();
}

bool ReadBytes(char* bytes, size_t count) {
  return std::cin.read(bytes, count).gcount() == static_cast<std::streamsize>(count);
}

void Write(uint64_t number, const NodeDef& response) {
  static mutex* lock = new mutex;
  const std::string message = response.SerializeAsString();
  const uint32_t length = message.size();
  std::string frame(12, '\0');
  std::memcpy(&frame[0], &length, 4);
  std::memcpy(&frame[4], &number, 8);
  frame += message;
  mutex_lock locked(*lock);
  std::cout.write(frame.data(), frame.size()).flush();
}

void Answer(uint64_t number, const absl::Status& status, NodeDef response) {
  if (!status.ok()) {
    (*response.mutable_attr())["code"].set_i(static_cast<int>(status.code()));
    (*response.mutable_attr())["error"].set_s(std::string(status.message()));
  }
  Write(number, response);
}

absl::Status Serve(int count, char** arguments) {
  DisableXlaCompilation();
  std::map<std::string, std::vector<int64_t>> settings;
  for (int i = 2; i < count; ++i) {
    const std::string argument = arguments[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) {
      void* library;
      TF_RETURN_IF_ERROR(Env::Default()->LoadDynamicLibrary(argument.c_str(), &library));
    } else {
      settings[argument.substr(0, equals)].push_back(std::strtoll(argument.c_str() + equals + 1, nullptr, 10));
    }
  }
  Options options;
  TF_RETURN_IF_ERROR(ReadOptions(settings, &options));
  TF_RETURN_IF_ERROR(ReadModelConfig(arguments[1], &options.session.config));
  SavedModelBundle bundle;
  TF_RETURN_IF_ERROR(LoadSavedModel(options.session, RunOptions(), arguments[1], {"serve"}, &bundle));
  {
    // TensorFlow Serving keeps the signatures alone: --remove_unused_fields_from_bundle_metagraph is true by default.
    MetaGraphDef whole;
    bundle.meta_graph_def.Swap(&whole);
    bundle.meta_graph_def.mutable_signature_def()->swap(*whole.mutable_signature_def());
  }
  std::shared_ptr<Scheduler> scheduler;
  TF_RETURN_IF_ERROR(Scheduler::Create(options.scheduler, &scheduler));
  std::map<std::string, std::unique_ptr<BatchedSignature>> signatures;
  for (const auto& [name, signature] : bundle.meta_graph_def.signature_def()) {
    if (name.rfind("__", 0) == 0) continue;
    signatures[name] =
        std::make_unique<BatchedSignature>(bundle.session.get(), signature, options, scheduler.get());
  }
  Answer(0, absl::OkStatus(), {});
  char head[12];
  while (ReadBytes(head, sizeof head)) {
    uint32_t length;
    uint64_t number;
    std::memcpy(&length, head, 4);
    std::memcpy(&number, head + 4, 8);
    std::string message(length, '\0');
    if (!ReadBytes(&message[0], length)) break;
    NodeDef request;
    if (!request.ParseFromString(message)) return absl::InvalidArgumentError("A request cannot be read.");
    auto found = signatures.find(request.op());
    if (found == signatures.end()) {
      Answer(number, absl::NotFoundError(absl::StrCat("No signature ", request.op())), {});
      continue;
    }
    found->second->Run(request, [number](const absl::Status& status, NodeDef response) {
      Answer(number, status, std::move(response));
    });
  }
  return absl::OkStatus();  // the queues answer what is left before they are destroyed
}

}  // namespace
}  // namespace tensorflow

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: batching_server MODEL_DIR KEY=VALUE... LIBRARY.so...\n";
    return 2;
  }
  const absl::Status status = tensorflow::Serve(count, arguments);
  if (!status.ok()) std::cerr << status.ToString() << "\n";
  return status.ok() ? 0 : 1;
}
