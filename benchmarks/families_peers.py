"""OpenVINO and llama.cpp as contestants of families.py: the files that they read, and their functions of ids.

OpenVINO needs openvino and nncf, llama.cpp needs gguf and llama-cpp-python. llama.cpp is compiled when pip installs it,
here with `CMAKE_ARGS=-DGGML_NATIVE=ON`, which lets it use every instruction of this processor.
"""

import ctypes
import functools

import numpy as np


def write_openvino(folder, calibration):
    """Writes the int8 model of `f32.onnx`: nncf rounds weights and activations, with the ranges in `calibration`."""
    import nncf
    import openvino

    texts = nncf.Dataset([{"ids": ids[None], "mask": np.ones_like(ids[None])} for ids in calibration])
    rounded = nncf.quantize(
        openvino.Core().read_model(folder / "f32.onnx"),
        texts,
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(calibration),
    )
    openvino.save_model(rounded, folder / "openvino-int8.xml", compress_to_fp16=False)


def openvino_states(folder, precision, hint, threads):
    """Returns a function of ids that gives the last states. The hint is `latency` or `throughput`.

    For latency all threads compute one request. For throughput each has a request of its own, a part of the batch.
    """
    import openvino

    core = openvino.Core()
    options = {
        "PERFORMANCE_HINT": hint.upper(),
        "INFERENCE_NUM_THREADS": threads,
        # Without it floats become bfloat16 where the processor has that.
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
    }

    @functools.cache
    def queue_of(shape):
        name = "openvino-int8.xml" if precision == "int8" else "f32.onnx"
        model = core.read_model(folder / name)
        model.reshape({"ids": shape, "mask": shape})  # fixed shapes are faster
        queue = openvino.AsyncInferQueue(core.compile_model(model, "CPU", options))
        queue.set_callback(lambda request, save: save(request.get_output_tensor().data.copy()))
        return queue

    def compute(ids):
        parts = np.split(ids, threads if hint == "throughput" and len(ids) % threads == 0 else 1)
        queue, found = queue_of(parts[0].shape), [None] * len(parts)
        for i, part in enumerate(parts):
            queue.start_async(
                {"ids": part, "mask": np.ones_like(part)}, functools.partial(found.__setitem__, i)
            )
        queue.wait_all()
        return np.concatenate(found)

    return compute


def write_gguf(folder, kinds):
    """Writes the checkpoint of a GPT-2 or Llama as one GGUF file for each kind, such as `f32` and `q8_0`."""
    import gguf
    import transformers
    from safetensors import torch

    config = transformers.AutoConfig.from_pretrained(folder / "hf")
    llama = config.model_type == "llama"
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)

    def rows_of_pairs(kernel, heads):
        """Puts the two numbers that rotary positions turn side by side."""
        return kernel.reshape(heads, 2, -1, kernel.shape[1]).swapaxes(1, 2).reshape(kernel.shape)

    for kind in kinds:
        writer = gguf.GGUFWriter(folder / f"{kind}.gguf", config.model_type)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_vocab_size(config.vocab_size)
        writer.add_tokenizer_model("none")
        if llama:
            writer.add_head_count_kv(config.num_key_value_heads)
            writer.add_feed_forward_length(config.intermediate_size)
            writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        else:
            writer.add_feed_forward_length(4 * config.hidden_size)
            writer.add_layer_norm_eps(config.layer_norm_epsilon)
        for name, tensor in torch.load_file(folder / "hf" / "model.safetensors").items():
            array = tensor.float().numpy()
            if "q_proj" in name:
                array = rows_of_pairs(array, config.num_attention_heads)
            elif "k_proj" in name:
                array = rows_of_pairs(array, config.num_key_value_heads)
            elif not llama and array.ndim == 2 and ".h." in name:  # GPT-2's kernels are (inputs, outputs)
                array = array.T
            name = names.get_name(name, (".weight", ".bias"))
            type_ = gguf.GGMLQuantizationType[kind.upper()]
            if array.ndim == 1 or name == "position_embd.weight":
                type_ = gguf.GGMLQuantizationType.F32
            array = gguf.quants.quantize(np.ascontiguousarray(array), type_)
            writer.add_tensor(name, array, raw_dtype=type_)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def llamacpp_generator(folder, kind, threads, new):
    """Returns a function of ids that gives the `new` tokens after them, searched for greedily."""
    import llama_cpp as lib

    lib.llama_log_set(_quiet, None)
    model = lib.llama_model_load_from_file(
        str(folder / f"{kind}.gguf").encode(), lib.llama_model_default_params()
    )
    vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    @functools.cache
    def context_of(rows, length):
        params = lib.llama_context_default_params()
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max, params.n_ctx, params.n_batch = rows, rows * (length + new), rows * length
        if kind == "f32":  # the cache is in float16 otherwise
            params.type_k = params.type_v = lib.GGML_TYPE_F32
        return lib.llama_init_from_model(model, params), lib.llama_batch_init(rows * length, 0, 1)

    def generate(ids):
        rows, length = ids.shape
        context, batch = context_of(rows, length)
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        tokens, position = ids, 0
        found = []
        while len(found) < new:
            columns = tokens.shape[1]
            batch.n_tokens = rows * columns
            for i, token in enumerate(tokens.ravel().tolist()):
                row, column = divmod(i, columns)
                batch.token[i], batch.pos[i] = token, position + column
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
                batch.logits[i] = column == columns - 1
            if lib.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
            logits = np.ctypeslib.as_array(lib.llama_get_logits(context), (rows, vocab_size))
            position += columns
            tokens = logits.argmax(-1)[:, None]
            found.append(tokens)
        return np.concatenate(found, axis=1)

    return generate


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _quiet(level, text, data):
    """Drops a line of llama.cpp's log."""
