"""The cases of fuzz.py: valid folders, files, answers and requests, how each is changed, and what is done with it.

Each public method of `Cases` is a kind of cases, but for those of `NO_KINDS`.
"""

import contextlib
import functools
import gzip
import io
import json
import os
import pathlib
import shutil
import socket
import threading
import zipfile

import numpy as np

HOSTILE = ["\0", "\ud800", "\x1b[2J\n", "..", "/dev/zero", "a/../b", "(a+)+!", "[", "{{", "＜|im_end|＞"]
SHAPES = [[], [[]], [None], ["a"] * 3, [10**9], {}, {"": {}}, {"a": {"type": ["b"]}}, {"type": "Sequence"}]
NUMBERS = [0, -1, 1, 2**31, 10**9, 10**30, 10**400, 1e308, float("nan"), float("inf"), 0.5]
STRANGE = [None, True, *NUMBERS, "", "a", "x" * 10**5, *HOSTILE, *SHAPES]
ARRAYS = [np.zeros(0), np.array("a"), np.array(10**9), np.full(3, np.nan), np.ones((1,) * 9), np.array([-1])]
TEXTS = ["a man runs ﬁ½ Å", "", "\0\x01"]
TEMPLATE = "{% for m in messages %}<|s|>{{ m.role }} {{ m.name }} {{ m.content }}<|e|>{% endfor %}{{ tools }}"


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
        twice = old * 2 if isinstance(old, str) else 7
        new = draw.choice([*STRANGE, draw.choice(places)[1], [old], {"a": old}, twice])
        new = json.loads(json.dumps(new))  # no value holds itself
        if not path:
            value = new if draw.random() < 0.1 else value
            continue
        parent = functools.reduce(lambda outer, key: outer[key], path[:-1], value)
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
            number = draw.choice([0, 1, 2**31, 2**63 - 1, 2**64 - 1])
            content[place : place + 8] = number.to_bytes(8, "little")
        else:
            content[place:place] = content[draw.randrange(len(content) + 1) :][: draw.randrange(200)]
    return bytes(content)


def changed_arrays(content, draw):
    """Returns an archive of NumPy with another array in the place of one, or without it."""
    with np.load(io.BytesIO(content)) as arrays:
        values = dict(arrays)
    name = draw.choice(sorted(values))
    old = values[name]
    values[name] = draw.choice([*ARRAYS, old * 2, old.ravel()[:-1], old.astype("float16")])
    if draw.random() < 0.2:
        del values[name]
    file = io.BytesIO()
    draw.choice([np.savez, np.savez, np.savez_compressed])(file, **values)
    return file.getvalue()


def changed_content(name, content, draw):
    """Returns the content of a file with a few changes, which are often those of its format."""
    whole, kind = draw.random() < 0.75, pathlib.PurePath(name).suffix
    if whole and kind == ".json":
        return json.dumps(changed_json(json.loads(content), draw)).encode()
    if whole and kind == ".npz":
        return changed_arrays(content, draw)
    if whole and kind == ".safetensors":
        size = int.from_bytes(content[:8], "little")
        header = json.dumps(changed_json(json.loads(content[8 : 8 + size]), draw)).encode()
        return len(header).to_bytes(8, "little") + header + content[8 + size :]
    return changed_bytes(content, draw)


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
        ids = [f"{name}_id" for name in ("unk", "bos", "eos", "pad")]
        name = draw.choice([*ids, "model_type", "vocab_size", "max_sentencepiece_length"])
        number = draw.choice([-1, 0, 1, 2, 3, 4, 39, 40, 2**31 - 1, -(2**31)])
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
    files = sorted(path for path in folder.rglob("*") if path.is_file() and names in (None, path.name))
    path = draw.choice(files)
    content = path.read_bytes()
    path.unlink()
    if draw.random() < 0.03:
        link = draw.choice(["/dev/zero", "/none", path.name, "."])
        draw.choice([os.mkfifo, os.mkdir, lambda p: p.symlink_to(link), lambda p: None])(path)
    else:
        path.write_bytes(changed_content(path.name, content, draw))


def change_entry(path, name, change):
    """Changes a file in a zip archive by a function of its bytes."""
    with zipfile.ZipFile(path) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    parts[name] = change(parts[name])
    path.unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for each, content in parts.items():
            archive.writestr(each, content)


def change_archive(path, draw):
    """Changes one of the files of a .keras file, config.json in half of the cases."""
    with zipfile.ZipFile(path) as archive:
        name = draw.choice(["config.json", draw.choice(sorted(archive.namelist()))])
    change_entry(path, name, lambda content: changed_content(name, content, draw))


@contextlib.contextmanager
def raw_server(draw, answer):
    """Serves changed bytes of an answer of HTTP, and yields the URL. Each connection gets other bytes."""

    def send(connection):
        connection.settimeout(2)
        with connection.makefile("rb") as request:
            headers = iter(request.readline, b"\r\n")
            sizes = [line.split(b":")[1] for line in headers if line.lower().startswith(b"content-length")]
            request.read(int(sizes[0]) if sizes else 0)
        body = json.dumps(changed_json(answer, draw) if draw.random() < 0.5 else answer).encode()
        code = draw.choice([b"200 OK"] * 4 + [b"302 Found", b"307 Temporary Redirect", b"503 Busy"])
        head = [b"HTTP/1.1 " + code, b"Content-Type: application/json", b"Location: /elsewhere"]
        head.append(b"Content-Length: %d" % len(body))
        codings = [b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"]
        sent = b"\r\n".join([*head, *draw.sample(codings, draw.choice((0, 0, 1))), b"", body])
        connection.sendall(changed_bytes(sent, draw) if draw.random() < 0.8 else sent)

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # the case has ended
                return
            with connection, contextlib.suppress(OSError, ValueError):
                send(connection)

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

    @functools.cached_property
    def kt(self):
        """The library with all its parts."""
        import keras_transformer
        from keras_transformer import client, data, huggingface, runs, serving, text, training  # noqa: F401

        return keras_transformer

    def make(self):
        """Writes the valid things."""
        kt = self.kt
        word = kt.text.WordPieceTokenizer(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b"]
        )
        sentences = ["a man runs in the park", "ﬁ ½"] * 20
        piece = kt.text.SentencePieceTokenizer.train(sentences, 40, byte_fallback=False)
        bpe = kt.text.BytePairTokenizer([*self._bytes, "ru", "run"], ["r u", "ru n"], added_tokens=["run"])
        for name, tokenizer in {"piece.model": piece, "bpe.json": bpe, "word.json": word}.items():
            (self.root / name).write_bytes(tokenizer.content)
        self._make_checkpoints(word)
        self._make_adapter()
        small = kt.models.Transformer(40, num_layers=1, d_model=4, num_heads=2, d_ff=8)
        kt.serving.Translator(small, piece, strategy=kt.decoding.Beam(2)).save(self.root / "translator")
        described = {"batch_sizes": [1, 8], "xla": False, "precision": "float32"}
        self._put("exports/1/assets.extra/export.json", {**described, "files": {}, "signatures": {}})
        self._put("exports/1/saved_model.pb", "")
        self._put("run/history.csv", "epoch,loss,val_perplexity\n0,1.5,9.1\n1,1.2,8.0\n")
        journal = {"format": 1, "progress": {"lines": 1, "size": 2}, "job": {"a": 1}}
        self._put("run/out.txt.partial/journal.json", journal)
        self._put("run/out.txt.partial/lines", "a\n")
        (self.root / "run" / "out.txt.partial").chmod(0o700)
        self._make_training()

    def _make_checkpoints(self, word):
        from keras_transformer.models.heads import ProjectedPooler

        hub = self.kt.huggingface
        bert = {
            "model_type": "bert", "vocab_size": word.vocab_size, "hidden_size": 12, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 7, "max_position_embeddings": 16, "type_vocab_size": 2,
        }  # fmt: skip
        bert = hub.FAMILIES["bert"].make_model(bert)
        for name in ("bert", "vectors"):
            hub.to_huggingface(bert, self.root / name, tokenizers=(word,), family="bert")
        modules = (("Transformer", ""), ("Pooling", "1"))
        self._put("vectors/modules.json", [{"type": f"a.{kind}", "path": path} for kind, path in modules])
        self._put("vectors/1/config.json", {"pooling_mode": "mean", "include_prompt": True})
        self._put("vectors/sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
        prompts = {"prompts": {"q": "a"}, "default_prompt_name": "q"}
        self._put("vectors/config_sentence_transformers.json", prompts)
        llama = {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 31, "hidden_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 7,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 16,
            "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        }  # fmt: skip
        hub.to_huggingface(hub.FAMILIES["llama"].make_model(llama), self.root / "llama", family="llama")
        ends = {"max_new_tokens": 5, "bad_words_ids": [[3]], "eos_token_id": [2, 4], "num_beams": 2}
        search = {**ends, "top_k": 5, "temperature": 0.5, "repetition_penalty": 1.1}
        self._put("llama/generation_config.json", search)
        self._put("llama/chat_template.jinja", TEMPLATE)
        (self.root / "kept").mkdir()
        hub.from_huggingface(self.root / "llama").save(self.root / "kept" / "llama.keras")
        embedder = bert.with_head(None, ProjectedPooler([5], ["tanh"], [True], "mean"))
        files = hub.embedder_files(embedder, "projected", True, "q: ", 9)
        hub.to_huggingface(embedder, self.root / "dense", family="bert", files=files)
        dense = hub.with_dense_modules(hub.from_huggingface(self.root / "dense"), self.root / "dense")
        dense.save(self.root / "kept" / "dense.keras")

    def _make_adapter(self):
        from safetensors.numpy import save_file

        self._put("adapter/adapter_config.json", {
            "peft_type": "LORA", "r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM", "use_rslora": False,
            "alpha_pattern": {"q_proj": 3}, "rank_pattern": {r"^model\.layers.0.*q_proj$": 2},
            "base_model_name_or_path": str(self.root / "llama"), "target_modules": ["q_proj"],
        })  # fmt: skip
        name = "base_model.model.model.layers.0.self_attn.q_proj.lora"
        stored = {f"{name}_A.weight": np.ones((2, 12), "f4"), f"{name}_B.weight": np.ones((12, 2), "f4")}
        save_file(stored, self.root / "adapter" / "adapter_model.safetensors")

    def _make_training(self):
        """Writes checkpoints of trainings with adapters, after an epoch and within one."""
        training, ids = self.kt.training, np.arange(1, 25).reshape(4, 6)
        model = self.kt.huggingface.from_huggingface(self.root / "llama")
        training.add_adapters(model, 2)
        model.compile("adam", self.kt.losses.MaskedCrossentropy(), metrics=[self.kt.metrics.MaskedAccuracy()])
        for every in (None, 1):
            folder = self.root / "training" / str(every)
            saving = training.Checkpoint(folder, every=every, termination=None)
            saving.set_model(model)
            saving.set_params({"steps": 3})
            model.fit(ids, ids, verbose=0)
            saving.on_epoch_begin(0)
            saving.on_train_batch_end(0) if every else saving.on_epoch_end(0)

    def prepare(self, kinds):
        """Makes what takes longer than a case may, for the cases of some kinds."""
        made = {"recordings": "_recordings", "pictures": "_pictures", "kept": "_keeping"}
        for kind in made.keys() & {*kinds}:
            getattr(self, made[kind])

    @functools.cached_property
    def _recordings(self):
        """The `transcribe` and the `answer` of a `Transcriber`, the bytes of a recording, and its answer."""
        from keras_transformer.recordings import wav_of

        special = ["<end>", "<start>", "<en>", "<say>", "<notimes>"]
        end, start, english, say, no_times = range(256, 261)
        ids = self.kt.decoding.SpeechIds({"en": english}, {"transcribe": say}, no_timestamps_id=no_times)
        positions = self.kt.layers.LearnedPositions(25)
        source = self.kt.layers.ConvolutionalSubsampling(8, positions=positions, dropout=0.0)
        source.build((None, None, 6))
        model = self._writer(source, 287, start, end)
        ends = {"eos_token": "<end>", "pad_token": "<end>", "special_tokens": special}
        tokenizer = self.kt.text.BytePairTokenizer([*self._bytes, *special], [], **ends)
        spectrogram = self.kt.layers.LogMelSpectrogram(6, 4000, fft_length=100, sequence_stride=40)
        options = {"spectrogram": spectrogram, "ids": ids, "window_seconds": 0.5, "max_length": 6}
        servable = self.kt.serving.Transcriber(model, tokenizer, **options)
        valid = wav_of(np.random.default_rng(0).uniform(-1, 1, 2000).astype("float32"), 4000)

        def answer(contents):
            no_choice = [b""] * len(contents)
            return servable.answer(contents, no_choice, no_choice, signature="wav")

        servable.transcribe([valid])
        return servable.transcribe, answer, valid, answer([valid])

    @functools.cached_property
    def _pictures(self):
        """The `write` and the `answer` of an `ImageWriter`, the bytes of a picture, and its answer."""
        import keras

        layers, tokenizer = self.kt.layers, self.kt.text.ByteTokenizer()
        parts = [keras.Input((6, 4, 3)), layers.PatchEmbedding(2, 8), layers.LearnedPositions(6)]
        model = self._writer(keras.Sequential(parts), tokenizer.vocab_size, 2, 3, pad=0)
        options = {"preprocessing": layers.ImagePreprocessing((6, 4), scale=1 / 9)}
        servable = self.kt.serving.ImageWriter(model, tokenizer, **options)
        valid = self._picture("encode_png")
        servable.write([valid])
        return servable.write, servable.answer, valid, servable.answer([valid])

    def _picture(self, encode):
        import tensorflow as tf

        return getattr(tf.io, encode)(np.arange(9 * 7 * 3, dtype="uint8").reshape(9, 7, 3)).numpy()

    def _writer(self, source, vocab_size, bos, eos, pad=None):
        """A model that writes of what a layer reads."""
        layers, stack = self.kt.layers, {"dropout": 0.0, "normalize_first": True}
        encoder, decoder = layers.Encoder(1, 2, 16, **stack), layers.Decoder(1, 2, 16, **stack)
        target = layers.Embeddings(vocab_size, 8, layers.LearnedPositions(12), dropout=0.0)
        ids = {"pad_id": bos if pad is None else pad, "bos_id": bos, "eos_id": eos}
        return self.kt.models.EncoderDecoder(source, encoder, target, decoder, **ids)

    @property
    def _bytes(self):
        from keras_transformer.text.byte_pair import BYTE_CHARACTERS

        return BYTE_CHARACTERS

    def _put(self, name, value):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))

    def _copied(self, name, target, copy=os.symlink):
        return shutil.copytree(self.root / name, target / name, copy_function=copy)

    def models(self, draw, folder):
        """A folder with a model, and the search that it asks for."""
        folder = self._copied(draw.choice(["bert", "llama"]), folder)
        change_folder(folder, draw)
        model = self.kt.huggingface.from_huggingface(folder)
        if folder.name == "llama":
            self.kt.huggingface.search_options(folder, model)

    def adapters(self, draw, folder):
        """A folder with an adapter of PEFT."""
        folder = self._copied("adapter", folder)
        change_folder(folder, draw)
        self.kt.huggingface.from_huggingface(folder)

    def vectors(self, draw, folder):
        """A folder of sentence-transformers, without dense modules or with them."""
        folder = self._copied(draw.choice(["vectors", "dense"]), folder)
        change_folder(folder, draw)
        self.kt.huggingface.embedder_options(folder)
        self.kt.huggingface.with_dense_modules(self.kt.huggingface.from_huggingface(folder), folder)

    @functools.cached_property
    def _keeping(self):
        """Models that keep the files of a checkpoint, and these files, by the names of their `.keras` files."""
        load = self.kt.models.loading.load_model
        models = {path.name: load(path) for path in (self.root / "kept").iterdir()}
        return {name: (model, model.checkpoint_files) for name, model in models.items()}

    def kept(self, draw, folder):
        """A model that keeps the files of a checkpoint, such as one of a .keras file, and the folder that it writes."""
        name, files, before = draw.choice(["llama.keras", "dense.keras"]), None, []
        if draw.random() < 0.1:
            before = [pathlib.Path(shutil.copy2(self.root / "kept" / name, folder))]
            change_archive(*before, draw)
            model = self.kt.models.loading.load_model(*before)
        else:
            model, files = self._keeping[name]
            each = draw.choice([None, *files])
            changed = changed_json(files if each is None else files[each], draw)
            model.keep(changed if each is None else {**files, each: changed})
            files = None
        if draw.random() < 0.3 and name == "dense.keras":
            files = self.kt.huggingface.embedder_files(model, draw.choice(["mean", "projected"]))
        try:
            self.kt.huggingface.to_huggingface(model, folder / "new", files=files)
        finally:
            assert {*folder.iterdir()} <= {*before, folder / "new"}, "a file was written beside the folder"

    def checkpoints(self, draw, folder):
        """A checkpoint of a training with adapters, which goes on."""
        folder = self._copied(f"training/{draw.choice(['None', '1'])}", folder, shutil.copy2)
        (path,) = folder.iterdir()
        if draw.random() < 0.1:
            path.write_bytes(changed_bytes(path.read_bytes(), draw))
        elif draw.random() < 0.5:
            change_entry(path, "adapters.npz", lambda content: changed_content("adapters.npz", content, draw))
        else:
            change_archive(path, draw)
        (saved,) = self.kt.training.checkpoints(folder)
        model = self.kt.training.load_checkpoint(saved.path)
        if saved.steps:
            saved.restore_metrics(model)

    def tokenizers(self, draw, folder):
        """A folder with the files of a tokenizer, of which tokenizer.json may be one."""
        folder = self._copied("bert", folder)
        pieces = (folder / "vocab.txt").read_text().split()
        vocab = {piece: i for i, piece in enumerate(pieces)}
        parts = {
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab},
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
        """The file of a tokenizer of this library."""
        names = {"piece.model": "SentencePiece", "bpe.json": "BytePair", "word.json": "WordPiece"}
        name = draw.choice(list(names))
        (folder / name).write_bytes(changed_content(name, (self.root / name).read_bytes(), draw))
        tokenizer = getattr(self.kt.text, f"{names[name]}Tokenizer").load(folder / name)
        tokenizer.detokenize(tokenizer.tokenize(TEXTS))

    def sentencepiece(self, draw, folder):
        """A SentencePiece model with one of ten kinds of damage, which native code reads."""
        path = folder / "piece.model"
        path.write_bytes(damaged_model((self.root / "piece.model").read_bytes(), draw))
        tokenizer = self.kt.text.SentencePieceTokenizer.load(path)
        tokenizer.detokenize(tokenizer.tokenize([*TEXTS, "ｱ" * 99]))

    def chats(self, draw, folder):
        """A chat template, and the messages of a chat."""
        chat = {"messages": [{"role": "user", "name": "b", "content": "c"}]}
        chat["tools"] = [{"type": "function", "name": "f"}]
        source = TEMPLATE
        if draw.random() < 0.3:
            source = changed_bytes(source.encode(), draw).decode("utf-8", "replace")
        chat = changed_json(chat, draw)
        chat = chat if isinstance(chat, dict) else {"messages": chat}
        made = self.kt.huggingface.ChatTemplate(source, {}, ("<|s|>", "<|e|>"))
        made.prompt(chat.get("messages"), **{key: chat[key] for key in chat.keys() & {"tools"}})

    def conversations(self, draw, folder):
        """A file of chats, which become rows of ids."""
        openai = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ab"}]}
        sharegpt = {
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 1}]
        }
        lines = [draw.choice([openai, sharegpt]) for _ in range(3)]
        lines[draw.randrange(3)] = changed_json(draw.choice(lines), draw)
        content = "\n".join(map(json.dumps, lines)).encode()
        content = changed_bytes(content, draw) if draw.random() < 0.3 else content
        path = folder / draw.choice(["chats.jsonl", "chats.jsonl", "chats.jsonl.gz"])
        if path.suffix == ".gz":
            content = gzip.compress(content, 1)
            content = changed_bytes(content, draw) if draw.random() < 0.5 else content
        path.write_bytes(content)
        chats = self.kt.data.read_chats(path)
        special = ["<|s|>", "<|e|>"]
        ends = {"special_tokens": special, "eos_token": "<|e|>"}
        tokenizer = self.kt.text.BytePairTokenizer([*self._bytes, *special], [], **ends)
        template = self.kt.huggingface.ChatTemplate(TEMPLATE.replace("{{ tools }}", ""), {}, special)
        self.kt.data.Chats(chats, template, tokenizer, 40, 2)

    def recordings(self, draw, folder):
        """A WAV file."""
        content = self._recordings[2][: draw.choice([60, 500, 10**9])]
        for at, values in ((20, (1, 3, 0xFFFE)), (22, (0, 1, 2, 32)), (34, (8, 16, 24, 64))):
            content = (
                content[:at]
                + draw.choice([content[at : at + 2], draw.choice(values).to_bytes(2, "little")])
                + content[at + 2 :]
            )
        self._read_beside(draw, folder, content, *self._recordings)

    def pictures(self, draw, folder):
        """A JPEG or PNG file."""
        content = self._picture(draw.choice(["encode_png", "encode_jpeg"]))
        self._read_beside(draw, folder, content, *self._pictures)

    def _read_beside(self, draw, folder, content, read, answer, valid, expected):
        """Reads a changed file from its path, or beside a valid one, whose answer stays the same."""
        content = changed_bytes(content, draw)
        if draw.random() < 0.3:
            (folder / "file").write_bytes(content)
            read([folder / "file"])
            return
        for name, values in answer([content, valid]).items():
            received, known = np.array(values[1]), np.array(expected[name][0])
            same = (
                np.allclose(received, known, 1e-4)
                if known.dtype.kind == "f"
                else np.array_equal(received, known)
            )
            assert same, f"the {name} of a neighbour is {received!r:.200}, no longer {known!r:.200}"

    def answers(self, draw, folder):
        """An answer of a server to a client."""
        kind = {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": -1}]}}
        signature = {"signature_def": {"serving_default": {"outputs": {"translation": kind}}}}
        answer = {"outputs": ["Ein Hund."], "metadata": {"signature_def": signature}}
        answer["model_version_status"] = [{"version": "1", "state": "AVAILABLE"}]
        if draw.random() < 0.4:
            with raw_server(draw, answer) as url, self.kt.client.Client(url, retries=0, timeout=2) as client:
                client.translate(["A dog."]) if draw.random() < 0.8 else client.status()
            return
        url = draw.choice(["http://localhost:1", "grpc://localhost:1"])
        with self.kt.client.Client(url, retries=0) as client:
            if url.startswith("http"):
                client._transport._send = lambda *_: changed_json(answer, draw)
            else:
                from keras_transformer.client.messages import CLASSES

                message = CLASSES["PredictResponse"]()
                output = message.outputs["translation"]
                output.dtype = 7
                output.tensor_shape.dim.add(size=1)
                output.string_val.append(b"Ein Hund.")
                content = changed_bytes(message.SerializeToString(), draw)
                try:
                    message = CLASSES["PredictResponse"].FromString(content)
                except Exception:  # gRPC itself makes a refusal of it
                    return
                client._transport._send = lambda *_: message
            client.translate(["A dog."]) if draw.random() < 0.8 or url[0] == "g" else client.status()

    def requests(self, draw, folder):
        """A request of a caller, to a server that answers anything."""
        from keras_transformer.request_options import OPTIONS

        strange = [each for each in STRANGE if not isinstance(each, str) or len(each) < 10**5]
        names = [*OPTIONS, "n", "a"]
        with (
            raw_server(draw, {"outputs": []}) as url,
            self.kt.client.Client(url, retries=0, timeout=2) as client,
        ):
            values = [*strange, [draw.choice(strange)] * 2]
            options = {name: draw.choice(values) for name in draw.sample(names, 2)}
            client.answer([draw.choice(["a", b"\xff", *strange]), "b"], **options)

    def servables(self, draw, folder):
        """A saved translator, whose files or whose model's description changed, or the description of an export."""
        if draw.random() < 0.3:
            folder = self._copied("exports", folder, shutil.copy2)
            change_folder(folder, draw)
            from keras_transformer.serving.server.server_files import write_server_files
            from keras_transformer.serving.verify import verify

            draw.choice([write_server_files, lambda path: verify(path / "1")])(folder)
            return
        folder = self._copied("translator", folder)
        description = json.loads((folder / "translator.json").read_text())
        del description["sha256"]
        (folder / "translator.json").unlink()
        (folder / "translator.json").write_text(json.dumps(description))
        if draw.random() < 0.4:
            change_archive(folder / "model.keras", draw)
        else:
            change_folder(folder, draw)
        self.kt.serving.Translator.load(folder)

    def runs(self, draw, folder):
        """The folder of a training, and an output that goes on."""
        folder = self._copied("run", folder, shutil.copy2)  # links are refused there
        (folder / "out.txt.partial").chmod(0o700)
        change_folder(folder, draw)
        from keras_transformer.runs.results import read_history
        from keras_transformer.serving.journal import Unfinished

        read_history(folder)
        unfinished = Unfinished(folder / "out.txt")
        with unfinished.opened({"a": 1}):
            unfinished.append(["b"])


NO_KINDS = ("make", "prepare")
KINDS = tuple(
    name for name, value in vars(Cases).items() if callable(value) and name not in NO_KINDS and name[0] != "_"
)
