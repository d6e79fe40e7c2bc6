"""Starts `batching_server.cc`: an export behind the batching of TensorFlow Serving, in a process of its own."""

import glob
import importlib.util
import pathlib
import shutil
import struct
import subprocess
import threading
from concurrent.futures import Future

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2
from tensorflow.core.framework import node_def_pb2

PROGRAM = pathlib.Path(__file__).with_name("batching_server.cc")
COMPILER = shutil.which("g++") or shutil.which("clang++")
FRAME = struct.Struct("<IQ")  # length and number of a message
PATIENCE = 600  # seconds: on a machine that does other work, a first request took more than two minutes

# BatchingParameters of TensorFlow Serving (servables/tensorflow/session_bundle_config.proto). The package
# tensorflow-serving-api does not hold it.
WRAPPERS = {
    "max_batch_size": "Int64Value", "batch_timeout_micros": "Int64Value", "max_enqueued_batches": "Int64Value",
    "num_batch_threads": "Int64Value", "enable_large_batch_splitting": "BoolValue",
    "max_execution_batch_size": "Int64Value",
}  # fmt: skip


def _batching_parameters():
    """Returns the class of the message."""
    wrappers = wrappers_pb2.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name="batching_parameters.proto", package="tests", syntax="proto3", dependency=[wrappers.name]
    )
    message = file.message_type.add(name="BatchingParameters")
    field = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(WRAPPERS.items(), 1):
        message.field.add(
            name=name, number=number, type=field.TYPE_MESSAGE, type_name=f".google.protobuf.{kind}",
            label=field.LABEL_OPTIONAL,
        )  # fmt: skip
    message.field.add(
        name="allowed_batch_sizes", number=20, type=field.TYPE_INT64, label=field.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.BatchingParameters"))


def settings_of(text):
    """Reads the text of a `batching.config`. Returns a list of KEY=VALUE."""
    message = text_format.Parse(text, _batching_parameters()())
    settings = [f"{name}={int(getattr(message, name).value)}" for name in WRAPPERS if message.HasField(name)]
    return settings + [f"allowed_batch_sizes={size}" for size in message.allowed_batch_sizes]


def build(folder):
    """Compiles the program into a folder. Returns its path."""
    program = pathlib.Path(folder) / "batching_server"
    package = pathlib.Path(tf.__file__).parent
    command = [
        COMPILER, "-w", "-DNDEBUG", *tf.sysconfig.get_compile_flags(), str(PROGRAM), "-o", str(program),
    ]  # fmt: skip
    command += [*tf.sysconfig.get_link_flags(), "-l:libtensorflow_cc.so.2", f"-Wl,-rpath,{package}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return program


def _outputs(found):
    """Returns a dict of arrays, or raises the error of the server."""
    if "code" in found:  # an answer may have an output named error
        error = tf.compat.v1.errors.exception_type_from_error_code(found["code"].i)
        raise error(None, None, found["error"].s.decode("utf-8", "replace"))
    return {name: tf.make_ndarray(value.tensor) for name, value in found.items()}


class BatchingServer:
    """A running server. Any number of threads may call it.

    Args:
        program: Path of the program.
        export: Folder of an exported version.
        config: Text of a `batching.config`.
        intra_op: Number of threads of one operation, the flag `--tensorflow_intra_op_parallelism`; 0 for all cores.
        inter_op: Number of operations at the same time, `--tensorflow_inter_op_parallelism`; 0 for all cores.
    """

    def __init__(self, program, export, config, intra_op=0, inter_op=0):
        text = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
        settings = [
            f"tensorflow_intra_op_parallelism={intra_op}",
            f"tensorflow_inter_op_parallelism={inter_op}",
        ]
        settings += settings_of(config)
        command = [str(program), str(export), *settings, *glob.glob(f"{text}/python/ops/*.so")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._writing = threading.Lock()
        self._loaded = Future()
        self._waiting = {0: self._loaded}
        self._count = 0
        threading.Thread(target=self._read, daemon=True).start()
        self._loaded.result(PATIENCE)

    def predict(self, signature="serving_default", /, **inputs):
        """Sends tensors to a signature. Returns a dict of arrays, or raises the error of the server."""
        return self.send(signature, **inputs).result(PATIENCE)

    def send(self, signature="serving_default", /, **inputs):
        """Sends tensors to a signature. Returns a `Future`."""
        request = node_def_pb2.NodeDef(op=signature)
        for name, tensor in inputs.items():
            request.attr[name].tensor.CopyFrom(tf.make_tensor_proto(tensor))
        message, future = request.SerializeToString(), Future()
        with self._writing:
            self._count += 1
            self._waiting[self._count] = future
            self.process.stdin.write(FRAME.pack(len(message), self._count) + message)
            self.process.stdin.flush()
        return future

    def close(self):
        """Waits for the process. Returns its exit code."""
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _read(self):
        stream = self.process.stdout
        while head := stream.read(FRAME.size):
            length, number = FRAME.unpack(head)
            found = node_def_pb2.NodeDef.FromString(stream.read(length)).attr
            future = self._waiting.pop(number)
            try:
                future.set_result(_outputs(found))
            except Exception as error:
                future.set_exception(error)
        for future in list(self._waiting.values()):
            future.set_exception(ConnectionError(f"the server ended with {self.process.wait()}"))
