"""The messages of TensorFlow Serving's gRPC API that the client sends and reads.

The packages with the generated messages import TensorFlow, which takes seconds. So the messages are described here,
with the fields that the client uses and the numbers of `tensor.proto`, `model.proto`, `predict.proto`,
`get_model_status.proto` and `get_model_metadata.proto`. The other fields are skipped when an answer is read.
"""

import math

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
PACKAGE = "keras_transformer.client"
# TensorFlow's names of dtypes, their numbers in `types.proto`, and NumPy's dtypes. Strings are bytes in object arrays.
DTYPES = {
    "DT_FLOAT": (1, "float32"),
    "DT_DOUBLE": (2, "float64"),
    "DT_INT32": (3, "int32"),
    "DT_UINT8": (4, "uint8"),
    "DT_INT16": (5, "int16"),
    "DT_INT8": (6, "int8"),
    "DT_STRING": (7, "object"),
    "DT_INT64": (9, "int64"),
    "DT_BOOL": (10, "bool"),
    "DT_UINT16": (17, "uint16"),
    "DT_HALF": (19, "float16"),
    "DT_UINT32": (22, "uint32"),
    "DT_UINT64": (23, "uint64"),
}
NUMPY_DTYPES = {number: np.dtype(name) for number, name in DTYPES.values()}
NUMBERS = {dtype: number for number, dtype in NUMPY_DTYPES.items()}
# The field of a TensorProto with the values of a dtype, if they are not in `tensor_content`.
VALUES = {
    "float32": "float_val",
    "float64": "double_val",
    "object": "string_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}
# The messages: for each field its number, and its type or the name of a message. "[]" is a list, "{}" a map from str.
MESSAGES = {
    "Dim": {"size": (1, "int64")},
    "Shape": {"dim": (2, "Dim[]")},
    "Tensor": {
        "dtype": (1, "int32"),
        "tensor_shape": (2, "Shape"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "float[]"),
        "double_val": (6, "double[]"),
        "int_val": (7, "int32[]"),
        "string_val": (8, "bytes[]"),
        "int64_val": (10, "int64[]"),
        "bool_val": (11, "bool[]"),
        "uint32_val": (16, "uint32[]"),
        "uint64_val": (17, "uint64[]"),
    },
    "Version": {"value": (1, "int64")},
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "Version"),
        "signature_name": (3, "string"),
        "version_label": (4, "string"),
    },
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "Tensor{}")},
    "PredictResponse": {"outputs": (1, "Tensor{}")},
    "GetModelStatusRequest": {"model_spec": (1, "ModelSpec")},
    "ModelVersionStatus": {"version": (1, "int64"), "state": (2, "int32")},
    "GetModelStatusResponse": {"model_version_status": (1, "ModelVersionStatus[]")},
    "GetModelMetadataRequest": {"model_spec": (1, "ModelSpec"), "metadata_field": (2, "string[]")},
    "GetModelMetadataResponse": {},
}
# A message may leave out this many values. Without a limit, 20 bytes could fill the memory.
MOST_REPEATED = 2**24
STATES = {0: "UNKNOWN", 10: "START", 20: "LOADING", 30: "AVAILABLE", 40: "UNLOADING", 50: "END"}


def _make_classes():
    """Makes the classes of `MESSAGES`, a dict from name to class."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            if kind.endswith("{}"):
                entry = message.nested_type.add(name=f"{field.title()}Entry")
                entry.options.map_entry = True
                _add_field(entry, "key", 1, "string")
                _add_field(entry, "value", 2, kind.removesuffix("{}"))
                kind = f"{name}.{entry.name}[]"
            _add_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


def _add_field(message, name, number, kind):
    element = kind.removesuffix("[]")
    field = message.field.add(name=name, number=number)
    field.label = FIELD.LABEL_REPEATED if kind != element else FIELD.LABEL_OPTIONAL
    if element.islower():
        field.type = FIELD.Type.Value(f"TYPE_{element.upper()}")
    else:
        field.type, field.type_name = FIELD.TYPE_MESSAGE, f".{PACKAGE}.{element}"


CLASSES = _make_classes()


def fill_tensor(tensor, array):
    """Writes a NumPy array into a Tensor message. Raises `TypeError` for a dtype that is not in `DTYPES`."""
    if array.dtype not in NUMBERS:
        raise TypeError(f"no input can have the dtype {array.dtype}")
    tensor.dtype = NUMBERS[array.dtype]
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if array.dtype == object:
        tensor.string_val.extend(array.ravel().tolist())
    else:
        tensor.tensor_content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def array_of(tensor):
    """Reads the NumPy array of a Tensor message.

    Raises:
        ValueError: If it has an unknown dtype, or another number of values than its shape.
    """
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    count = math.prod(shape)
    if tensor.dtype not in NUMPY_DTYPES or count < 0:
        raise ValueError(f"a tensor of dtype {tensor.dtype} and shape {shape}")
    dtype = NUMPY_DTYPES[tensor.dtype]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    values = getattr(tensor, VALUES.get(dtype.name, "int_val"))
    if not 0 <= count - len(values) <= MOST_REPEATED:
        raise ValueError(f"{len(values)} values for the shape {shape}")
    array = np.full(count, b"" if dtype.hasobject else 0, dtype)
    if values:
        array[: len(values)] = values
        # A message leaves out the values that repeat the last one.
        array[len(values) :] = values[-1]
    return array.reshape(shape)
