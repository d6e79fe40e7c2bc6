"""A tokenizer in a function and in a saved module."""

import tensorflow as tf


def assert_same_in_graphs(tokenizer, rows, folder):
    """Ids and texts are what they are outside of a graph, before and after a module is saved.

    Returns:
        The texts of the rows' ids, a list of bytes; and the function that was loaded.
    """
    module = tf.Module()
    module.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def there_and_back(strings):
        ids = tokenizer.tokenize(strings).to_tensor(tokenizer.pad_id)
        return tokenizer.detokenize(ids), ids

    module.there_and_back = there_and_back
    tf.saved_model.save(module, str(folder))
    expected = tokenizer.tokenize(rows).to_tensor(tokenizer.pad_id).numpy()
    texts = tokenizer.detokenize(expected).numpy().tolist()
    loaded = tf.saved_model.load(str(folder)).there_and_back
    for function in (there_and_back, loaded):
        strings, ids = function(tf.constant(rows))
        assert (ids.numpy() == expected).all()
        assert strings.numpy().tolist() == texts
    return texts, loaded
