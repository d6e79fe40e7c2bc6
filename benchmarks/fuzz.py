"""Changes valid folders, files, answers and requests at random, and reports each that is not answered or refused.

A change ends well in an answer, or in an error of the documented classes with a short and printable message. Anything
else is a fault: another class, a signal, more memory or time than the limits, a message of more than 2,000 characters.

    python benchmarks/fuzz.py --seconds 60
    python benchmarks/fuzz.py --kinds answers models --first 1000 --count 1   # repeats a fault
    python benchmarks/fuzz.py --guided --kinds tokenizers --seconds 600  # Atheris looks for new lines of the package

Each child process has limits of memory and time. After a fault another child goes on with the next number.
"""

import argparse
import collections
import contextlib
import functools
import json
import logging
import os
import pathlib
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zipfile

# The memory is what a case may take above a child that has loaded everything, the seconds are of the CPU.
MEMORY, SECONDS, LONGEST = 2**31, 10, 2000
START_SECONDS = 300  # that a child may take to load everything
HUNG_SECONDS = 60  # by the clock: other work on the machine costs a case time too
KINDS = (
    "models",
    "tokenizers",
    "pieces",
    "sentencepiece",
    "adapters",
    "vectors",
    "chats",
    "answers",
    "requests",
    "runs",
    "servables",
)
STRANGE = [
    *(
        None,
        True,
        0,
        -1,
        1,
        2**31,
        10**9,
        10**30,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        0.5,
        "",
        "a",
        "x" * 10**6,
    ),
    *("\0", "\ud800", "\x1b[2J\n", "..", "/dev/zero", "a/../b", "(a+)+!", "[", "{{", "＜|im_end|＞"),
    *([], [[]], [None], ["a"] * 3, [10**9], {}, {"": {}}, {"a": {"type": ["b"]}}, {"type": "Sequence"}),
]


def changed_json(value, draw):
    """Returns a JSON value with a few changes: other values, other keys, what is missing, what is there twice."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        places = [((), value)]
        for path, each in places:
            items = (
                each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
            )
            places += [((*path, key), inner) for key, inner in items][:50]
        path, old = draw.choice(places)
        new = draw.choice(
            [*STRANGE, draw.choice(places)[1], [old], {"a": old}, old * 2 if isinstance(old, str) else 7]
        )
        new = json.loads(json.dumps(new))  # no value holds itself
        if not path:
            value = new if draw.random() < 0.1 else value
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        if draw.random() < 0.15:
            del parent[path[-1]]
        elif isinstance(parent, dict) and draw.random() < 0.1:
            parent[draw.choice(["a", "\ud800", "\x1b[2J", "k" * 10**5])] = new
        else:
            parent[path[-1]] = new
    return value


def changed_bytes(content, draw):
    """Returns bytes with a few changes."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 3, 20))):
        place, kind = draw.randrange(len(content) + 1), draw.randrange(5)
        if kind == 0 and content:
            content[place - 1] = draw.randrange(256)
        elif kind == 1:
            content[place : place + draw.randrange(99)] = b""
        elif kind == 2:
            content[place:place] = draw.randbytes(draw.randrange(9))
        elif kind == 3:
            content[place : place + 8] = draw.choice([0, 1, 2**31, 2**63 - 1, 2**64 - 1]).to_bytes(
                8, "little"
            )
        else:
            content[place:place] = content[draw.randrange(len(content) + 1) :][: draw.randrange(200)]
    return bytes(content)


def damaged_model(content, draw):
    """Returns a SentencePiece model with one of ten kinds of damage."""
    from sentencepiece import sentencepiece_model_pb2

    proto, kind = sentencepiece_model_pb2.ModelProto.FromString(content), draw.randrange(10)
    piece, trainer, normalizer = draw.choice(proto.pieces), proto.trainer_spec, proto.normalizer_spec
    if kind == 0:
        return content[: draw.randrange(len(content))]
    if kind == 1:
        return changed_bytes(content, draw)
    if kind == 2:
        normalizer.precompiled_charsmap = changed_bytes(normalizer.precompiled_charsmap, draw)
    elif kind == 3:
        size = 4 * draw.choice((0, 1, 256, 1024))
        trie = size.to_bytes(4, "little") + draw.randbytes(size) + draw.choice((b"", b"a\0", b"a"))
        draw.choice((normalizer, proto.denormalizer_spec)).precompiled_charsmap = trie
    elif kind == 4:
        piece.piece = draw.choice(["", "\0", "▁", "x" * 10**5, "<0x41>", "<0xZZ>", proto.pieces[-1].piece])
    elif kind == 5:
        piece.score = draw.choice([float("nan"), float("inf"), -float("inf"), 3e38, 0.0])
    elif kind == 6:
        piece.type = draw.choice([1, 2, 3, 4, 5, 6])
    elif kind == 7:
        names = (
            "unk_id",
            "bos_id",
            "eos_id",
            "pad_id",
            "model_type",
            "vocab_size",
            "max_sentencepiece_length",
        )
        number = draw.choice([-1, 0, 1, 2, 3, 4, 39, 40, 2**31 - 1, -(2**31)])
        name = draw.choice(names)
        setattr(trainer, name, number % 4 + 1 if name == "model_type" else number)
    elif kind == 8:
        for _ in range(draw.choice((1, len(proto.pieces) - 1, len(proto.pieces)))):
            del proto.pieces[draw.randrange(len(proto.pieces))]
    else:
        for spec in (trainer, normalizer):
            flags = [field.name for field, value in spec.ListFields() if isinstance(value, bool)]
            for name in draw.sample(flags, min(2, len(flags))):
                setattr(spec, name, not getattr(spec, name))
        trainer.byte_fallback = draw.random() < 0.5
        trainer.treat_whitespace_as_suffix = draw.random() < 0.5
        trainer.user_defined_symbols.append(draw.choice(["", "a", "\0", "x" * 10**5]))
        proto.normalizer_spec.normalization_rule_tsv = draw.choice(["61\t62", "zz", "61"])
    return proto.SerializeToString()


def change_folder(folder, draw, names=None):
    """Changes one file of a folder of links: its content, or into a link, a device, a pipe, a folder or nothing."""
    path = draw.choice(
        sorted(path for path in folder.rglob("*") if path.is_file() and names in (None, path.name))
    )
    content = path.read_bytes()
    kind = draw.random()
    path.unlink()
    if kind < 0.03:
        targets = ["/dev/zero", "/none", path.name, "."]
        link = draw.choice(targets)
        draw.choice([os.mkfifo, os.mkdir, lambda p: p.symlink_to(link), lambda p: None])(path)
    elif kind < 0.75 and path.suffix == ".json":
        path.write_text(json.dumps(changed_json(json.loads(content), draw)))
    elif kind < 0.75 and path.suffix == ".safetensors":
        size = int.from_bytes(content[:8], "little")
        header = json.dumps(changed_json(json.loads(content[8 : 8 + size]), draw)).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    else:
        path.write_bytes(changed_bytes(content, draw))


@contextlib.contextmanager
def raw_server(draw, answer):
    """Serves changed bytes of an answer of HTTP, and yields the URL. Each connection gets other bytes."""

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # the case has ended
                return
            with connection, contextlib.suppress(OSError, ValueError):
                connection.settimeout(2)
                with connection.makefile("rb") as request:
                    headers = iter(request.readline, b"\r\n")
                    sizes = [
                        line.split(b":")[1] for line in headers if line.lower().startswith(b"content-length")
                    ]
                    request.read(int(sizes[0]) if sizes else 0)
                    body = json.dumps(changed_json(answer, draw) if draw.random() < 0.5 else answer).encode()
                    code = draw.choice(
                        [b"200 OK"] * 4 + [b"302 Found", b"307 Temporary Redirect", b"503 Busy"]
                    )
                    head = [b"HTTP/1.1 " + code, b"Content-Type: application/json", b"Location: /elsewhere"]
                    head.append(b"Content-Length: %d" % len(body))
                    head += draw.sample(
                        [b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"], draw.choice((0, 0, 1))
                    )
                    sent = b"\r\n".join([*head, b"", body])
                    connection.sendall(changed_bytes(sent, draw) if draw.random() < 0.8 else sent)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


class Cases:
    """The valid things, which are made once in the parent's folder, and what a child does with a changed one."""

    def __init__(self, root):
        self.root = pathlib.Path(root)

    def make(self):
        """Writes the valid folders."""
        from keras_transformer import huggingface, text

        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b"]
        families = huggingface.FAMILIES
        bert = {
            "model_type": "bert", "vocab_size": len(pieces), "hidden_size": 12, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 7, "max_position_embeddings": 16, "type_vocab_size": 2,
        }  # fmt: skip
        bert = families["bert"].make_model(bert)
        word = text.WordPieceTokenizer(pieces)
        for name in ("bert", "vectors"):
            huggingface.to_huggingface(bert, self.root / name, tokenizers=(word,), family="bert")
        self.put(
            "vectors/modules.json",
            [{"type": f"a.{k}", "path": p} for k, p in (("Transformer", ""), ("Pooling", "1"))],
        )
        self.put("vectors/1/config.json", {"pooling_mode": "mean", "include_prompt": True})
        self.put("vectors/sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
        self.put(
            "vectors/config_sentence_transformers.json", {"prompts": {"q": "a"}, "default_prompt_name": "q"}
        )
        piece = text.SentencePieceTokenizer.train(
            ["a man runs in the park", "ﬁ ½"] * 20, 40, byte_fallback=False
        )
        (self.root / "piece.model").write_bytes(piece.content)
        from keras_transformer.text.byte_pair import BYTE_CHARACTERS

        bpe = text.BytePairTokenizer([*BYTE_CHARACTERS, "ru", "run"], ["r u", "ru n"], added_tokens=["run"])
        (self.root / "bpe.json").write_bytes(bpe.content)
        (self.root / "word.json").write_bytes(word.content)
        llama = {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 31, "hidden_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 7,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 16,
            "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        }  # fmt: skip
        made = families["llama"].make_model(llama)
        huggingface.to_huggingface(made, self.root / "llama", family="llama")
        search = {
            "max_new_tokens": 5,
            "num_beams": 2,
            "bad_words_ids": [[3]],
            "eos_token_id": [2, 4],
            "top_k": 5,
        }
        self.put("llama/generation_config.json", {**search, "temperature": 0.5, "repetition_penalty": 1.1})
        self.put("adapter/adapter_config.json", {
            "peft_type": "LORA", "r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM", "use_rslora": False,
            "alpha_pattern": {"q_proj": 3}, "rank_pattern": {r"^model\.layers.0.*q_proj$": 2},
            "base_model_name_or_path": str(self.root / "llama"), "target_modules": ["q_proj"],
        })  # fmt: skip
        import numpy as np
        from safetensors.numpy import save_file

        module = "base_model.model.model.layers.0.self_attn.q_proj"
        stored = {
            f"{module}.lora_A.weight": np.ones((2, 12), "f4"),
            f"{module}.lora_B.weight": np.ones((12, 2), "f4"),
        }
        save_file(stored, self.root / "adapter" / "adapter_model.safetensors")
        from keras_transformer import decoding, models, serving

        small = models.Transformer(40, num_layers=1, d_model=4, num_heads=2, d_ff=8)
        serving.Translator(small, piece, strategy=decoding.Beam(2)).save(self.root / "translator")
        described = {
            "batch_sizes": [1, 8],
            "xla": False,
            "precision": "float32",
            "files": {},
            "signatures": {},
        }
        self.put("exports/1/assets.extra/export.json", described)
        self.put("exports/1/saved_model.pb", "")
        self.put("run/history.csv", "epoch,loss,val_perplexity\n0,1.5,9.1\n1,1.2,8.0\n")
        self.put(
            "run/out.txt.partial/journal.json",
            {"format": 1, "progress": {"lines": 1, "size": 2}, "job": {"a": 1}},
        )
        self.put("run/out.txt.partial/lines", "a\n")
        (self.root / "run" / "out.txt.partial").chmod(0o700)

    def put(self, name, value):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))

    @functools.cached_property
    def kt(self):
        import keras_transformer
        from keras_transformer import client, data, huggingface, runs, serving, text, training  # noqa: F401

        return keras_transformer

    def copied(self, name, target, copy=os.symlink):
        return shutil.copytree(self.root / name, target / name, copy_function=copy)

    def models(self, draw, folder):
        folder = self.copied(draw.choice(["bert", "llama"]), folder)
        change_folder(folder, draw)
        model = self.kt.huggingface.from_huggingface(folder)
        if folder.name == "llama":
            self.kt.huggingface.search_options(folder, model)

    def adapters(self, draw, folder):
        folder = self.copied("adapter", folder)
        change_folder(folder, draw)
        self.kt.huggingface.from_huggingface(folder)

    def vectors(self, draw, folder):
        folder = self.copied("vectors", folder)
        change_folder(folder, draw)
        self.kt.huggingface.embedder_options(folder)
        self.kt.huggingface.with_dense_modules(self.kt.huggingface.from_huggingface(folder), folder)

    def tokenizers(self, draw, folder):
        folder = self.copied("bert", folder)
        pieces = (folder / "vocab.txt").read_text().split()
        parts = {
            "model": {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "vocab": {p: i for i, p in enumerate(pieces)},
            },
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "BertNormalizer", "lowercase": True}],
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "added_tokens": [{"id": 0, "content": "[PAD]", "special": True}],
        }
        if draw.random() < 0.8:
            (folder / "tokenizer.json").unlink(missing_ok=True)
            (folder / "tokenizer.json").write_text(json.dumps(parts))
        names = [path.name for path in folder.glob("*") if "token" in path.name or path.name == "vocab.txt"]
        change_folder(folder, draw, draw.choice(names))
        (tokenizer,) = self.kt.huggingface.tokenizers_from_huggingface(folder)
        tokenizer.tokenize(["ab c", "\0"])

    def pieces(self, draw, folder):
        name = draw.choice(["piece.model", "bpe.json", "word.json"])
        content = (self.root / name).read_bytes()
        classes = {
            "piece": "SentencePieceTokenizer",
            "bpe": "BytePairTokenizer",
            "word": "WordPieceTokenizer",
        }
        if name.endswith("json") and draw.random() < 0.8:
            content = json.dumps(changed_json(json.loads(content), draw)).encode()
        else:
            content = changed_bytes(content, draw)
        (folder / name).write_bytes(content)
        tokenizer = getattr(self.kt.text, classes[name.split(".")[0]]).load(folder / name)
        tokenizer.detokenize(tokenizer.tokenize(["a man runs ﬁ½ Å", "", "\0\x01"]))

    def sentencepiece(self, draw, folder):
        """A SentencePiece model with one of ten kinds of damage, which native code reads."""
        path = folder / "piece.model"
        path.write_bytes(damaged_model((self.root / "piece.model").read_bytes(), draw))
        tokenizer = self.kt.text.SentencePieceTokenizer.load(path)
        tokenizer.detokenize(tokenizer.tokenize(["a man runs ﬁ½ Å", "", "\0\x01", "ｱ" * 99]))

    def chats(self, draw, folder):
        template = "{% for m in messages %}<|s|>{{ m.role }} {{ m.name }} {{ m.content }}<|e|>{% endfor %}{{ tools }}"
        chat = {
            "messages": [{"role": "user", "name": "b", "content": "c"}],
            "tools": [{"type": "function", "name": "f"}],
        }
        source = (
            template
            if draw.random() < 0.7
            else changed_bytes(template.encode(), draw).decode("utf-8", "replace")
        )
        chat = changed_json(chat, draw)
        chat = chat if isinstance(chat, dict) else {"messages": chat}
        made = self.kt.huggingface.ChatTemplate(source, {}, ("<|s|>", "<|e|>"))
        made.prompt(
            chat.pop("messages", None), **{key: value for key, value in chat.items() if key == "tools"}
        )

    def answers(self, draw, folder):
        kind = {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": -1}]}}
        signature = {"signature_def": {"serving_default": {"outputs": {"translation": kind}}}}
        answer = {
            "outputs": ["Ein Hund."],
            "metadata": {"signature_def": signature},
            "model_version_status": [{"version": "1", "state": "AVAILABLE"}],
        }
        if draw.random() < 0.4:
            with raw_server(draw, answer) as url, self.kt.client.Client(url, retries=0, timeout=2) as client:
                client.translate(["A dog."]) if draw.random() < 0.8 else client.status()
            return
        url = draw.choice(["http://localhost:1", "grpc://localhost:1"])
        with self.kt.client.Client(url, retries=0) as client:
            transport = client._transport
            if url.startswith("http"):
                transport._send = lambda *_: changed_json(answer, draw)
            else:
                from keras_transformer.client.messages import CLASSES

                message = CLASSES["PredictResponse"]()
                message.outputs["translation"].dtype = 7
                message.outputs["translation"].tensor_shape.dim.add(size=1)
                message.outputs["translation"].string_val.append(b"Ein Hund.")
                content = changed_bytes(message.SerializeToString(), draw)
                try:
                    message = CLASSES["PredictResponse"].FromString(content)
                except Exception:  # gRPC itself makes a refusal of it
                    return
                transport._send = lambda *_: message
            client.translate(["A dog."]) if draw.random() < 0.8 or url[0] == "g" else client.status()

    def requests(self, draw, folder):
        strange = [each for each in STRANGE if not isinstance(each, str) or len(each) < 10**5]
        with (
            raw_server(draw, {"outputs": []}) as url,
            self.kt.client.Client(url, retries=0, timeout=2) as client,
        ):
            options = {
                name: draw.choice([*strange, [draw.choice(strange)] * 2])
                for name in draw.sample(
                    ["prefix", "max_length", "min_length", "temperature", "top_p", "seed", "a"], 2
                )
            }
            client.answer([draw.choice(["a", b"\xff", *strange]), "b"], **options)

    def servables(self, draw, folder):
        """A saved translator, whose files or whose model's description changed, or the description of an export."""
        if draw.random() < 0.3:
            folder = self.copied("exports", folder, shutil.copy2)
            change_folder(folder, draw)
            from keras_transformer.serving.server.server_files import write_server_files
            from keras_transformer.serving.verify import verify

            draw.choice([write_server_files, lambda path: verify(path / "1")])(folder)
            return
        folder = self.copied("translator", folder)
        description = json.loads((folder / "translator.json").read_text())
        del description["sha256"]
        (folder / "translator.json").unlink()
        (folder / "translator.json").write_text(json.dumps(description))
        if draw.random() < 0.4:
            self.change_keras(folder / "model.keras", draw)
        else:
            change_folder(folder, draw)
        self.kt.serving.Translator.load(folder)

    def change_keras(self, path, draw):
        """Changes the description inside a .keras file."""
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        parts["config.json"] = json.dumps(changed_json(json.loads(parts["config.json"]), draw)).encode()
        path.unlink()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)

    def runs(self, draw, folder):
        folder = self.copied("run", folder, shutil.copy2)  # links are refused there
        (folder / "out.txt.partial").chmod(0o700)
        change_folder(folder, draw)
        from keras_transformer.runs.results import read_history
        from keras_transformer.serving.journal import Unfinished

        read_history(folder)
        unfinished = Unfinished(folder / "out.txt")
        with unfinished.opened({"a": 1}):
            unfinished.append(["b"])


ALLOWED = (ValueError, OSError)


def child(root, kinds, first, count, report):
    """Runs cases from a number on, and writes the result of each into a file."""
    import tensorflow as tf

    cases = Cases(root)
    assert cases.kt and tf
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    usage = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (usage + MEMORY, usage + MEMORY))
    with open(report, "a") as file:
        for number in range(first, first + count):
            kind, draw = kinds[number % len(kinds)], random.Random(number)
            print(json.dumps({"number": number, "kind": kind, "begun": time.time()}), file=file, flush=True)
            outcome = outcome_of(cases, kind, draw)
            print(json.dumps({"number": number, "kind": kind, "outcome": outcome}), file=file, flush=True)


def outcome_of(cases, kind, draw):
    """Runs a case. Returns `read`, `refused`, or what is wrong."""
    outcome, begun = "read", time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        try:
            getattr(cases, kind)(draw, pathlib.Path(folder))
        except ALLOWED as error:
            message = str(error)
            outcome = "refused"
            named = error.args and isinstance(error, OSError) and error.filename is not None
            if len(message) > LONGEST or not (message.isprintable() or named) or not message:
                outcome = f"message of {len(message)} characters: {message[:300]!r}"
            elif isinstance(error, UnicodeError):
                outcome = f"raw {error!r:.300}"
        except BaseException as error:
            steps = traceback.extract_tb(error.__traceback__)
            place = [step for step in steps if "keras_transformer" in step.filename][-1:] or steps[-1:]
            where = f"{place[0].filename[-50:]}:{place[0].lineno}"
            outcome = f"raw {type(error).__name__} {str(error)[:200]!r} at {where}"
    seconds = time.process_time() - begun
    return f"took {seconds:.0f} CPU seconds, then {outcome}" if seconds > SECONDS else outcome


class Guided(random.Random):
    """Draws what the bytes of a fuzzer say, so that it can look for cases that reach new lines of the package."""

    def __init__(self, provider):
        super().__init__(0)
        self.provider = provider

    def random(self):
        return self.provider.ConsumeIntInRange(0, 2**32 - 1) / 2**32

    def getrandbits(self, k):
        return self.provider.ConsumeIntInRange(0, 2**k - 1)

    def randbytes(self, n):
        return self.provider.ConsumeBytes(n).ljust(n, b"\0")


def guide(root, kinds, seconds):
    """Lets Atheris draw the cases for some seconds. It ends at the first fault."""
    import atheris

    cases = Cases(root)
    with atheris.instrument_imports(include=["keras_transformer"]):
        cases.make()
        assert cases.kt
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")

    def one(data):
        provider = atheris.FuzzedDataProvider(data)
        kind = kinds[provider.ConsumeIntInRange(0, len(kinds) - 1)]
        outcome = outcome_of(cases, kind, Guided(provider))
        if outcome not in ("read", "refused"):
            raise RuntimeError(f"{kind}: {outcome}")

    options = [
        f"-max_total_time={seconds:.0f}",
        "-rss_limit_mb=8192",
        f"-timeout={SECONDS}",
        "-max_len=4096",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={root}/"], one)
    atheris.Fuzz()


def fuzz(kinds, seconds, first=0, count=None, stop=False):
    """Runs cases for some seconds, or some cases. Returns the number of each outcome, and the faults."""
    end, number, counts, faults = time.monotonic() + seconds, first, collections.Counter(), []
    with tempfile.TemporaryDirectory() as root:
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "FUZZ_ROOT": root,
        }
        command = [sys.executable, __file__, "--kinds", *kinds, "--first"]
        subprocess.run([*command, "0", "--make"], env=environment, check=True)
        while time.monotonic() < end and (count is None or number < first + count):
            report = pathlib.Path(root, f"report-{number}.jsonl")
            report.touch()
            size = 10**9 if count is None else first + count - number
            lines, error_file = [], pathlib.Path(root, "errors")
            with (
                open(error_file, "wb") as stderr,
                open(report) as new,
                subprocess.Popen(
                    [*command, str(number), "--count", str(size), "--report", str(report)],
                    env=environment,
                    stderr=stderr,
                ) as process,
            ):
                last, part = time.monotonic() + START_SECONDS, ""
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(0.05)
                    *whole, part = (part + new.read()).split("\n")
                    if whole:  # a case begins or ends
                        lines += whole
                        last = time.monotonic()
                    if time.monotonic() - last > HUNG_SECONDS:
                        break
                finished = process.poll()
                process.kill()
                process.wait()
                *whole, _ = (part + new.read()).split("\n")
                lines += whole
            errors = error_file.read_text(errors="replace")[-300:]
            for line in lines:
                entry = json.loads(line)
                number = max(number, entry["number"] + ("outcome" in entry))
                if "outcome" in entry:
                    good = entry["outcome"] in ("read", "refused")
                    counts[entry["kind"], entry["outcome"] if good else "fault"] += 1
                    faults += [] if good else [entry]
            if time.monotonic() >= end and finished is None:
                break
            if finished != 0:
                outcome = "hung" if finished is None else f"ended with {finished}: {errors}"
                faults.append({"number": number, "kind": kinds[number % len(kinds)], "outcome": outcome})
                number += 1
                if stop:
                    break
    return counts, faults


def main():
    """Reads the options, and prints the faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument(
        "--guided", action="store_true", help="let Atheris draw the cases (pip install atheris)"
    )
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        return Cases(os.environ["FUZZ_ROOT"]).make()
    if arguments.report:
        return child(
            os.environ["FUZZ_ROOT"], arguments.kinds, arguments.first, arguments.count, arguments.report
        )
    if arguments.guided:
        with tempfile.TemporaryDirectory() as root:
            return guide(root, arguments.kinds, arguments.seconds)
    counts, faults = fuzz(arguments.kinds, arguments.seconds, arguments.first, arguments.count)
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind:12} {outcome:8} {count:7}")
    for fault in faults:
        print(json.dumps(fault))
    print(f"{sum(counts.values())} cases, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
