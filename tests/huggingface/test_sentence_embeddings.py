"""Folders of sentence-transformers: the same vectors, and what is refused."""

import json

import numpy as np
import pytest

from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import embedder_options
from keras_transformer.serving import Embedder, load

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "e", ",", "a", "dog", ":"]
TEXTS = ["The cats, the cat", "a dog", "the the the cat a dog a dog a cat", ""]


def files(folder, pooling, modules=("Transformer", "Pooling", "Normalize"), **config):
    """Writes the files beside the model as older versions do."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {"idx": i, "path": paths.get(kind, f"{i}_{kind}"), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": false}')
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder


MEAN = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


@pytest.mark.parametrize(
    ("mode", "normalize", "prompt"), [("mean", True, None), ("cls", False, None), ("mean", False, "query")]
)
@pytest.mark.parametrize("kind", ["Bert", "MPNet"])
def test_vectors_are_those_of_sentence_transformers(kind, mode, normalize, prompt, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    library = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    marks = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"} if kind == "MPNet" else {}
    pieces = [marks.get(piece, piece) for piece in PIECES]
    if kind == "MPNet":
        pieces[0], pieces[1] = pieces[1], pieces[0]  # its padding has the id 1
    sizes = {"vocab_size": 13, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(
        getattr(transformers, f"{kind}Config")(
            **sizes, intermediate_size=7, max_position_embeddings=20, initializer_range=0.3
        )
    )
    tokenizer = getattr(transformers, f"{kind}Tokenizer")(vocab={piece: i for i, piece in enumerate(pieces)})
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    modules = [
        parts.Transformer(str(tmp_path / "model"), max_seq_length=9),
        parts.Pooling(12, pooling_mode=mode),
    ]
    prompts = {"query": "dog: "} if prompt else {}
    expected = library.SentenceTransformer(
        modules=modules + ([parts.Normalize()] if normalize else []),
        prompts=prompts,
        default_prompt_name=prompt,
        device="cpu",
    )
    expected.save(str(tmp_path / "saved"))
    (tmp_path / "saved" / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    embedder = convert(tmp_path / "saved", tmp_path / "own")
    with pytest.warns(UserWarning, match="longer than"):
        found = embedder.embed(TEXTS)
    np.testing.assert_allclose(found, expected.encode(TEXTS), atol=1e-5)
    again = load(tmp_path / "own")
    assert isinstance(again, Embedder)
    assert again.describe() == embedder.describe()
    assert (again.normalize, again.prompt) == (normalize, prompts.get(prompt, ""))


def test_options_of_an_older_folder(tmp_path):
    folder = files(tmp_path / "new", MEAN, prompts={"query": "q: "})
    options = {"pooling": "mean", "normalize": True, "prompt": "", "max_source_length": 9}
    assert embedder_options(folder) == options
    assert embedder_options(folder, "query") == {**options, "prompt": "q: "}
    first = files(tmp_path / "first", {"pooling_mode_cls_token": True}, ("Transformer", "Pooling"))
    assert embedder_options(first) == {**options, "pooling": "first", "normalize": False}


@pytest.mark.parametrize(
    ("pooling", "modules", "config", "message"),
    [
        ({"pooling_mode": "max"}, ("Transformer", "Pooling"), {}, "Received: \\['max'\\]"),
        ({**MEAN, "pooling_mode_max_tokens": True}, ("Transformer", "Pooling"), {}, "mode_max_tokens"),
        (MEAN, ("Transformer", "Pooling", "Dense"), {}, "Dense"),
        (MEAN, ("Transformer", "Pooling"), {"default_prompt_name": "query"}, "prompt_name='query'"),
        (
            {**MEAN, "include_prompt": False},
            ("Transformer", "Pooling"),
            {"default_prompt_name": "q", "prompts": {"q": "q: "}},
            "include_prompt=False",
        ),
    ],
)
def test_other_folders_are_refused(pooling, modules, config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        embedder_options(files(tmp_path / "new", pooling, modules, **config))


@pytest.mark.parametrize("path", ["../other", "/etc", None])
def test_a_path_out_of_the_folder_is_refused(path, tmp_path):
    folder = files(tmp_path / "new", MEAN)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="its pooling in a folder in it"):
        embedder_options(folder)
