"""Tokens that were added to a checkpoint's tokenizer, from each of the files that may name them."""

from keras_transformer.checks import check
from keras_transformer.huggingface.files import read_if_there
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG

ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
LISTS = ("additional_special_tokens", "extra_special_tokens")
SPECIAL_TOKENS = "special_tokens_map.json"
FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


def read_added_tokens(folder, pieces, *, roles=(), plain=(), finds_special=True):
    """Reads the tokens that were added to a tokenizer, as transformers does.

    They come from `added_tokens_decoder` of tokenizer_config.json, or else from added_tokens.json; from `added_tokens`
    of tokenizer.json; and from the lists of special tokens in tokenizer_config.json and special_tokens_map.json.

    A token with a role, such as `[SEP]` or `</s>`, is plain text in a text, because else its author could end a text.

    Args:
        folder: A `pathlib.Path`.
        pieces: The tokenizer's pieces in the order of their ids, a list of str.
        roles: Further tokens with a role, a sequence of str.
        plain: Other tokens that are plain text in a text, likewise.
        finds_special: Whether other special tokens are found in texts. Not in a language model, whose special tokens
            end a turn in a chat.

    Returns:
        The pieces, and after them the added tokens that are not among them; and those that are found in texts, a list
        of `AddedToken`.

    Raises:
        ValueError: If the ids are not those of the pieces and the ones after them, a token of white space takes the
            blanks around it, or a file is damaged.
    """
    from keras_transformer.text import AddedToken  # loads TensorFlow

    config, special_map = read_if_there(folder, TOKENIZER_CONFIG), read_if_there(folder, SPECIAL_TOKENS)
    try:
        named = [*_special_tokens(config), *_special_tokens(special_map)]
        roles = {*roles, *_roles(config), *_roles(special_map)}
        tokens = _with_ids(folder, config, {token["content"] for token in named} | roles)
        ids = {piece: i for i, piece in enumerate(pieces)}
        by_content = {token["content"]: token_id for token_id, token in tokens.items()}
        for token in named:
            if token["content"] not in by_content:
                last = max([len(ids) - 1, *tokens])
                token_id = by_content[token["content"]] = ids.get(token["content"], last + 1)
                tokens[token_id] = token
        new = sorted(token_id for token_id in tokens if token_id >= len(pieces))
        expected = list(range(len(pieces), len(pieces) + len(new)))
        rule = f"The ids of added tokens must follow those of the {len(pieces)} pieces, without a gap."
        check(new == expected, rule, ids=new)
        for token_id, token in tokens.items():
            at_its_id = ids.get(token["content"], token_id) == token_id
            at_its_id &= token_id >= len(pieces) or pieces[token_id] == token["content"]
            check(at_its_id, "An added token must have the id of its piece.", token_id=token_id, token=token)
        made = [
            AddedToken(token["content"], *(bool(token.get(flag)) for flag in FLAGS))
            for _, token in sorted(tokens.items())
        ]
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"The added tokens of {folder} are damaged. Received: {error!r:.200}.") from None
    in_texts = [
        token
        for token in made
        if token.content not in roles and token.content not in plain and (finds_special or not token.special)
    ]
    rule = "An added token of white space alone must not take the blanks around it (`lstrip`, `rstrip`)."
    for token in in_texts:
        check(token.content.strip() or not (token.lstrip or token.rstrip), rule, token=token.content)
    return [*pieces, *(tokens[token_id]["content"] for token_id in new)], in_texts


def _with_ids(folder, config, special):
    """Returns a dict from ids to the added tokens of the files that name their ids, dicts."""
    tokens = {}
    for token in read_if_there(folder, "tokenizer.json").get("added_tokens") or ():
        tokens[int(token["id"])] = token
    if config.get("added_tokens_decoder"):
        tokens |= {int(token_id): token for token_id, token in config["added_tokens_decoder"].items()}
    else:
        for content, token_id in read_if_there(folder, "added_tokens.json").items():
            is_special = content in special
            token = {"content": content, "special": is_special, "normalized": not is_special}
            tokens.setdefault(token_id, token)
    return tokens


def _special_tokens(config):
    """Lists the special tokens without a role that a file names, dicts."""
    listed = []
    for key in LISTS:
        values = config.get(key) or ()
        listed += values.values() if isinstance(values, dict) else values
    return [{**_as_dict(token), "special": True} for token in listed]


def _roles(config):
    return {_as_dict(config[f"{role}_token"])["content"] for role in ROLES if config.get(f"{role}_token")}


def _as_dict(token):
    return token if isinstance(token, dict) else {"content": token}


def added_tokens_decoder(tokens, pieces):
    """Returns tokens as tokenizer_config.json has them, a dict from ids to dicts.

    Args:
        tokens: A sequence of `AddedToken`.
        pieces: The tokenizer's pieces in the order of their ids, a list of str.
    """
    ids = {piece: i for i, piece in enumerate(pieces)}
    return {str(ids[token.content]): token._asdict() for token in tokens}
