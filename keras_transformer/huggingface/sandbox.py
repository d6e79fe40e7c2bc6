"""The sandbox in which chat templates run: Jinja's, with bounds on what a few characters may ask for."""

import functools
import json
import re
import string
from datetime import datetime

from keras_transformer.checks import printable

# They stand around each answer that a template marks by the tag `generation`. No text has these two: Unicode leaves
# them to programs.
ANSWER = ("\ufdd0", "\ufdd1")
LARGEST_FACTOR = 10_000  # in a template
WIDEST = 80  # blanks before a line
WIDENING = ("center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes")
# The width to which a format may widen a number or a text.
LARGEST_WIDTH = 1000
PERCENT = re.compile(r"%(?:\([^)]*\))?[#0 +-]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")


def compiled(source):
    """Compiles a template with what transformers gives to one. Its `render` puts `ANSWER` around the model's answers
    where the template has the tag `generation`.

    Raises:
        ValueError: If `source` is not a template.
        ImportError: If Jinja is not installed.
    """
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ImportError("Chat templates are rendered with Jinja: pip install jinja2") from error

    class Generation(jinja2.ext.Extension):
        """The tag `generation` around the model's own answer."""

        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("between_marks"), [], [], body, lineno=line)

        def between_marks(self, caller):
            begin, end = ANSWER
            return f"{begin}{caller()}{end}"

    def refuse(message):
        raise jinja2.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        widths = (indent if isinstance(indent, int) else len(indent or ""),)
        bounded(*widths, most=WIDEST)
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def bounded(*sizes, most):
        if any(size > most for size in sizes):
            raise jinja2.sandbox.SecurityError(f"a size is above {most}")

    def percent(text, values):
        widths = [width for pair in PERCENT.findall(text) for width in pair if width]
        if "*" in widths:
            raise jinja2.sandbox.SecurityError("the width of a format must be written in it")
        bounded(*(len(width) for width in widths), most=len(str(LARGEST_WIDTH)))
        bounded(*map(int, widths), most=LARGEST_WIDTH)
        return text % values

    def check_fields(text):
        for _, _, spec, _ in string.Formatter().parse(text):
            if "{" in (spec or ""):
                raise jinja2.sandbox.SecurityError("the width of a format must be written in it")
            widths = re.findall("[0-9]+", spec or "")
            bounded(*(len(width) for width in widths), most=len(str(LARGEST_WIDTH)))
            bounded(*map(int, widths), most=LARGEST_WIDTH)

    def with_bounded_size(function):
        most = 100 if function.__name__ == "do_round" else LARGEST_FACTOR

        # It keeps the marks of Jinja, such as that a filter gets the environment.
        @functools.wraps(function)
        def filtered(*args, **kwargs):
            sizes = [each for each in (*args[1:], *kwargs.values()) if isinstance(each, (int, float))]
            bounded(*sizes, most=most)
            return function(*args, **kwargs)

        return filtered

    class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """Jinja's sandbox, which also refuses products and powers of gigabytes, such as `"a" * 10 ** 10`."""

        intercepted_binops = frozenset({"*", "**", "%"})

        def is_safe_attribute(self, value, name, attribute):
            if name in ("format", "format_map") and isinstance(value, str):  # before Jinja 3.1.6
                check_fields(value)
            return name not in WIDENING and super().is_safe_attribute(value, name, attribute)

        def wrap_str_format(self, value):
            wrapped = super().wrap_str_format(value)
            if wrapped is not None:
                check_fields(value.__self__)
            return wrapped

        def call_binop(self, context, operator, left, right):
            numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
            if operator == "%" and isinstance(left, str):
                return percent(left, right)
            if operator == "%" and not numbers:
                raise jinja2.sandbox.SecurityError("% is for numbers and texts")
            if operator == "**" or not numbers:
                sizes = [each if isinstance(each, (int, float)) else len(each) for each in (left, right)]
                if any(abs(size) > LARGEST_FACTOR for size in sizes):
                    raise jinja2.sandbox.SecurityError(f"{operator} has a factor above {LARGEST_FACTOR}")
            return super().call_binop(context, operator, left, right)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    for name, taken in (("globals", "lipsum"), ("filters", "center")):
        # A few characters of them ask for gigabytes.
        del getattr(environment, name)[taken]
    environment.filters["format"] = lambda text, *args, **kwargs: percent(str(text), kwargs or args)
    for name in ("batch", "slice", "round"):
        environment.filters[name] = with_bounded_size(environment.filters[name])
    indent = environment.filters["indent"]
    environment.filters["indent"] = lambda text, width=4, *args, **kwargs: indent(
        text, width if isinstance(width, str) else min(width, WIDEST), *args, **kwargs
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(
            f"The chat template is not a template of Jinja: {printable(str(error) or repr(error), 500)}"
        ) from None
